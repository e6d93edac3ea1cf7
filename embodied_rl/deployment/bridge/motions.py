"""Returns and replays that the operator requests, and the results that are counted for return points.

The control loop calls `prepare` and `follow` in each tick; the reporting thread calls the rest.
"""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.execution.demonstration import Replay
from embodied_rl.deployment.execution.return_points import ReturnMotion, ReturnPoints
from embodied_rl.deployment.execution.tick import Mode, Motion, OperatorInput
from embodied_rl.deployment.robots.return_file import ReturnFile
from embodied_rl.interfaces.errors import UserError

Vector = NDArray[np.float64]
MOTIONS = (Mode.RETURN, Mode.REPLAY)


class MotionManager:
    """Plans motions for one robot and counts the results of its return points.

    A try of a point begins when the robot has arrived there and the policy starts. Its result is the next label, or a
    simulated robot's outcome. Aborted tries, and tries that another motion follows, have no result.

    Args:
        file: return points; None: none are configured.
        replay: a demonstration. start: motion to its start, for a return without return points.
        seed: of the choice of return points.

    Attributes:
        refused: why the operator's last request for a motion was refused; empty if it was not.
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
        self._planned_for: tuple[ReturnPoints | None, str] = (None, "")
        self._next: ReturnMotion | None = None
        self._problem, self._draws = "", 0
        self._current: ReturnMotion | None = None
        self._trying, self._mode = False, Mode.HOLD

    def prepare(
        self, given: OperatorInput, core: DeploymentCore, place: tuple[Vector, Vector], instruction: str
    ) -> OperatorInput:
        """Store the present place or plan a motion, as the operator requests; return the input for the core.

        Args:
            place: [A] measured, [A] last commanded.
        """
        if given.store:
            stale = core.status().stale
            if self._file is None or stale:
                known = "start with return_points=<file>, where places are stored"
                self._refuse(f"store was refused: {stale or known}")
            else:
                try:
                    self._file.store(*place, instruction)
                    self.refused = ""
                except UserError as error:
                    self._refuse(f"store was refused: {error}")
        if given.wanted is None or given.wanted not in MOTIONS or core.mode in MOTIONS:
            return given
        motion: Motion | None = self._replay if given.wanted == Mode.REPLAY else self._start
        if given.wanted == Mode.RETURN and self._file is not None:
            self._plan_return(instruction)
            motion = self._next
            if motion is None:
                self._refuse(f"{given.wanted} was refused: {self._problem}")
                return replace(given, wanted=None)
        if motion is not None:  # the core refuses a mode without a motion
            core.plan(motion)
            self.refused = ""
        return given

    def follow(self, mode: Mode, label: str, instruction: str) -> None:
        """Update the try with the mode after the operator's input, and with the label of an episode."""
        if mode in MOTIONS and mode != self._mode:
            self._current, self._trying = (self._next if mode == Mode.RETURN else None), False
            self._draws += mode == Mode.RETURN
            self._planned_for = (None, "")
        if mode != self._mode:
            self.refused = ""
        self._mode = mode
        if self._current is not None and mode == Mode.RUN:
            self._trying |= self._current.arrived
        if not self._trying and mode in (Mode.RUN, Mode.TELEOP):
            self._current = None  # the episode began at another place
        if label:
            current, trying = self._current, self._trying
            self.forget()
            if self._file is not None and current is not None and trying and label != "abort":
                self._file.count(current.point.name, failed=label == "failure")
        self._plan_return(instruction)

    def forget(self) -> None:
        """Discard the present try, because the robot was moved to another place."""
        self._current, self._trying = None, False

    def settle(self) -> list[str]:
        """Write changes to the file; return lines about everything that happened since the last call."""
        written = [] if self._file is None else self._file.write()
        return written + [self._lines.popleft() for _ in range(len(self._lines))]

    def close(self) -> list[str]:
        """Write the remaining changes, as `settle`; raises `UserError` if that fails."""
        return self.settle() if self._file is None else self._file.close() + self.settle()

    def describe(self) -> dict[str, Any]:
        """Return the next return and replay, and refusals, for the status."""
        back, replay = self._next if self._file is not None else self._start, self._replay
        return {
            "return": "" if back is None else back.words,
            "replay": "" if replay is None else replay.words,
            "points": None if self._file is None else len(self._file.points.points),
            "refused": self.refused,
            "problem": self._problem or ("" if self._file is None else self._file.problem),
        }

    def _plan_return(self, instruction: str) -> None:
        """Draw the next return point if the points, the instruction or the number of draws have changed."""
        if self._file is None or (self._planned_for[0] is self._file.points and self._planned_for[1] == instruction):
            return
        points = self._file.points
        self._planned_for = points, instruction
        number = self._draws + sum(point.tries for point in points.points)  # continues after a restart
        try:
            point = points.select(instruction).choose(self._seed, number)
        except UserError as error:
            self._next, self._problem = None, str(error)
        else:
            self._next, self._problem = self._file.make_motion(point), ""

    def _refuse(self, problem: str) -> None:
        self.refused = problem
        self._lines.append(problem)
