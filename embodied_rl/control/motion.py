"""What each mode wants of the robot in each tick: the policy's plan, the human, a return point, a recording.

Shapes: `A` action entries.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.control.control_step import Units
from embodied_rl.control.scripted import Recording, ReturnPath
from embodied_rl.control.settings import CoreSettings
from embodied_rl.control.takeover import Takeover
from embodied_rl.deployment.executor import Executor
from embodied_rl.deployment.messages import RobotCommand, Why
from embodied_rl.deployment.settings import Settings
from embodied_rl.deployment.tick import Mode, OperatorInput
from embodied_rl.interfaces.sim import Source

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Want:
    """What a mode wants in a tick.

    Attributes:
        wanted: float64 [A], a command; None: come to rest.
        source: who decided it. why: in words, why the robot should rest.
        over: the mode has come to its end, and why.
    """

    wanted: Vector | None
    source: Source = Source.HOLD
    why: str = ""
    over: str = ""


class Motion:
    """The motions of one robot.

    Args:
        settings: of the core.
        policy: how its chunks are executed; None: there is no policy.
        clock: of the core.

    Attributes:
        executor: of the policy's chunks.
        made: what the executor made of this control step; None outside of `RUN`.
        path, recording: what `RETURN` and `REPLAY` follow; None: nobody said.
    """

    def __init__(self, settings: CoreSettings, policy: Settings | None, clock: Callable[[], float]) -> None:
        self.units = Units(settings)
        self.executor = None if policy is None else Executor(policy, clock)
        self.path: ReturnPath | None = None
        self.recording: Recording | None = None
        self.made: RobotCommand | None = None
        self._settings, self._takeover, self._clock = settings, Takeover(settings), clock
        self._silent_s: float | None = None
        self.interrupt(np.zeros(len(settings.limits.entries)))

    def interrupt(self, command: Vector) -> None:
        """Forget the plan and all that was asked for: what comes next begins at the command [A], with a new epoch."""
        self._start = self._target = None
        self.made, self._silent_s, self._anchored, self._replayed = None, None, False, 0
        if self.path is not None:
            self.path.begin()
        if self.executor is not None:
            self.executor.begin(self.units.action(command, command))

    def find_lack(self, mode: Mode) -> str:
        """Return in words what a mode lacks to begin; empty: nothing."""
        lacks = {
            Mode.RUN: "there is no policy" if self.executor is None else "",
            Mode.RETURN: "no return point was given" if self.path is None else "",
            Mode.REPLAY: "no recording was loaded" if self.recording is None else "",
        }
        return lacks.get(mode, "")

    def note_request(self, now: float) -> None:
        """Note that the policy was asked, and since when it has not answered."""
        self._silent_s = now if self._silent_s is None else self._silent_s

    def note_answer(self) -> None:
        """Note that the policy has answered with a chunk that was accepted."""
        self._silent_s = None

    def want(self, mode: Mode, tick: int, command: Vector, measured: Vector) -> Want:
        """Return what a mode other than `TELEOP` wants.

        Args:
            mode: which moves. tick: number of the tick in its control step.
            command: [A], of the tick before. measured: [A], NaN where nothing measures.
        """
        if mode == Mode.RUN:
            return self._run(tick, command)
        return self._return(command, measured) if mode == Mode.RETURN else self._replay(tick, command, measured)

    def follow_human(self, operator: OperatorInput, now: float, command: Vector, rate: Vector) -> Want:
        """Return what the human wants; `rate` [A] is the change of the command [A] per second."""
        age = np.inf if operator.teleop is None or operator.teleop_s is None else now - operator.teleop_s
        if operator.teleop is None or not 0 <= age <= self._settings.teleop_s:
            self._anchored = False
            said = "no command of the human has come" if np.isinf(age) else f"no command of the human for {age:.2f} s"
            return Want(None, why=said)
        if not self._anchored:
            self._takeover.begin(command, rate)
            self._anchored = True
        return Want(self._takeover.follow(operator.teleop), Source.HUMAN)

    def _run(self, tick: int, command: Vector) -> Want:
        executor = self.executor
        assert executor is not None, "nobody runs without a policy"
        if tick == 0:
            self._drop_silent_plan(executor, command)
            self.made = executor.act()
            action = self.made.action
            self._aim(None if action is None else self.units.command(action), command)
        if self._target is None or self._start is None:
            return Want(None, why=self._say_why())
        return Want(self.units.interpolate(self._start, self._target, tick), Source.POLICY)

    def _aim(self, target: Vector | None, command: Vector) -> None:
        """Begin a control step towards a target [A], from where the last one wanted to be."""
        self._start = command if self._target is None else self._target
        self._target = target

    def _drop_silent_plan(self, executor: Executor, command: Vector) -> None:
        longest = self._settings.silence_s
        since, now = self._silent_s, self._clock()
        if longest is not None and since is not None and now - since > longest and executor.remaining:
            executor.counts["silent"] += 1
            executor.begin(self.units.action(command, command))

    def _say_why(self) -> str:
        if self.made is None:
            return "waiting for the next control step"
        if self._silent_s is None or self.made.why == Why.PLAN:
            return str(self.made.why)
        return f"{self.made.why}; the policy has not answered for {self._clock() - self._silent_s:.2f} s"

    def _return(self, command: Vector, measured: Vector) -> Want:
        assert self.path is not None, "nobody returns without a point"
        wanted = self.path.step(command, measured)
        if wanted is None:
            return Want(None, over="the return point is reached")
        if self.path.left_s < 0:
            return Want(None, over=f"the return took longer than {self._settings.return_s:g} s")
        return Want(wanted, Source.REPLAY)

    def _replay(self, tick: int, command: Vector, measured: Vector) -> Want:
        assert self.recording is not None, "nobody replays without a recording"
        if tick == 0:
            if self._replayed == len(self.recording.actions):
                return Want(None, over="the replay is over")
            if deviation := self.recording.compare(self._replayed, measured):
                return Want(None, over=f"the replay was stopped: {deviation}")
            self._aim(self.units.command(self.recording.actions[self._replayed]), command)
            self._replayed += 1
        if self._target is None or self._start is None:
            return Want(None, why="waiting for the next control step")
        return Want(self.units.interpolate(self._start, self._target, tick), Source.REPLAY)
