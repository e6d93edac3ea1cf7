"""What the operator's wish for a return or a replay means, where present places are stored, and what tries came to.

The control loop calls `prepare` and `follow` in each tick; whoever reports calls the rest, from another thread.
"""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.execution.demonstration import Replay
from embodied_rl.deployment.execution.motion import Motion
from embodied_rl.deployment.execution.return_motion import ReturnMotion
from embodied_rl.deployment.execution.return_points import ReturnPoints
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.robots.return_file import ReturnFile
from embodied_rl.interfaces.errors import UserError

Vector = NDArray[np.float64]
MOTIONS = (Mode.RETURN, Mode.REPLAY)


class MotionDesk:
    """Plans motions for one robot, and keeps the account of its return points.

    A try begins at a point if the robot arrived there and the policy began from there; the label that follows, or a
    simulated robot's outcome, is its result. What was aborted, or followed by another motion, has none.

    Args:
        file: return points; None: none were named.
        replay: a demonstration. start: goes to where that begins, for a return without return points.
        seed: of the draws.

    Attributes:
        refused: in words, why the operator's last wish for one of these things was refused; empty if it was not.
    """

    def __init__(
        self,
        file: ReturnFile | None = None,
        replay: Replay | None = None,
        start: ReturnMotion | None = None,
        seed: int = 0,
    ) -> None:
        self.refused = ""
        self._file, self._replay, self._start, self._seed = file, replay, start, seed
        self._lines = deque[str]()
        self._seen: tuple[ReturnPoints | None, str] = (None, "")
        self._next: ReturnMotion | None = None
        self._lack, self._draws = "", 0
        self._going: ReturnMotion | None = None
        self._trying, self._mode = False, Mode.HOLD

    def prepare(
        self, said: OperatorInput, core: DeploymentCore, place: tuple[Vector, Vector], words: str
    ) -> OperatorInput:
        """Store the present place, and plan the motion that the operator wants; return what is left to the core.

        Args:
            said: what the operator does. core: of the robot. place: [A] measured, [A] last commanded.
            words: of the task.
        """
        if said.store:
            self._store(core, place, words)
        if said.wanted is None or said.wanted not in MOTIONS or core.mode in MOTIONS:
            return said
        try:
            motion = self._choose(said.wanted, words)
        except UserError as error:
            self._refuse(f"{said.wanted} was refused: {error}")
            return replace(said, wanted=None)
        if motion is not None:
            core.plan(motion)
            self.refused = ""
        return said

    def follow(self, mode: Mode, label: str, words: str) -> None:
        """Note the mode after the operator was heard, and how an episode was judged."""
        if mode in MOTIONS and mode != self._mode:
            self._going, self._trying = (self._next if mode == Mode.RETURN else None), False
            self._draws += mode == Mode.RETURN
            self._seen = (None, "")
        if mode != self._mode:
            self.refused = ""
        self._mode = mode
        if self._going is not None and mode == Mode.RUN:
            self._trying |= self._going.arrived
        if not self._trying and mode in (Mode.RUN, Mode.TELEOP):
            self._going = None  # it began elsewhere
        if label:
            self._judge(label)
        self._look_ahead(words)

    def forget(self) -> None:
        """Forget the try that is under way, because the robot was put somewhere else."""
        self._going, self._trying = None, False

    def settle(self) -> list[str]:
        """Write what has changed; return in words what has happened since the last call."""
        written = [] if self._file is None else self._file.write()
        return written + [self._lines.popleft() for _ in range(len(self._lines))]

    def close(self) -> list[str]:
        """Write what is left, as `settle`; raises `UserError` where it cannot be written."""
        return self.settle() if self._file is None else self._file.close() + self.settle()

    def describe(self) -> dict[str, Any]:
        """Return what a return and a replay would do, and what was refused, for the status."""
        back, replay = self._next if self._file is not None else self._start, self._replay
        return {
            "return": "" if back is None else back.words,
            "replay": "" if replay is None else replay.words,
            "points": None if self._file is None else len(self._file.points.points),
            "refused": self.refused,
            "problem": self._lack or ("" if self._file is None else self._file.problem),
        }

    def _choose(self, wanted: Mode, words: str) -> Motion | None:
        """Return the motion of a mode; None: there is none, as the core will say. Raises `UserError`: no such point."""
        if wanted == Mode.REPLAY:
            return self._replay
        if self._file is None:
            return self._start
        self._look_ahead(words)
        if self._next is None:
            raise UserError(self._lack)
        return self._next

    def _look_ahead(self, words: str) -> None:
        """Draw the next point where points, words or draws are others than they were."""
        if self._file is None or (self._seen[0] is self._file.points and self._seen[1] == words):
            return
        points = self._file.points
        self._seen = points, words
        number = self._draws + sum(point.tries for point in points.points)  # a restart draws on
        try:
            point = points.select(words).choose(self._seed, number)
        except UserError as error:
            self._next, self._lack = None, str(error)
        else:
            self._next, self._lack = self._file.make_motion(point), ""

    def _store(self, core: DeploymentCore, place: tuple[Vector, Vector], words: str) -> None:
        stale = core.status().stale
        if self._file is None or stale:
            self._refuse(f"store was refused: {stale or 'start with return_points=<file>, where places are stored'}")
            return
        try:
            self._file.store(*place, words)
        except UserError as error:
            self._refuse(f"store was refused: {error}")
        else:
            self.refused = ""

    def _judge(self, label: str) -> None:
        going, trying = self._going, self._trying
        self.forget()
        if self._file is not None and going is not None and trying and label != "abort":
            self._file.count(going.point.name, failed=label == "failure")

    def _refuse(self, words: str) -> None:
        self.refused = words
        self._lines.append(words)
