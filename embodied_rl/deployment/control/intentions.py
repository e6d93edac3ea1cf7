"""What each mode wants of the robot in each tick: the policy's plan, the human, or a motion such as a return.

Shapes: `A` action entries.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.control_step import Units
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.control.takeover import Takeover
from embodied_rl.deployment.execution.executor import Executor
from embodied_rl.deployment.execution.messages import ChunkRefusal, RobotCommand, Why
from embodied_rl.deployment.execution.motion import Motion
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.interfaces.sim import Source

Vector = NDArray[np.float64]
MOST = 1e6
"""No robot is wanted to be farther or faster, in the units of any entry: what is larger is a mistake."""


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


class Intentions:
    """The intentions of one robot.

    Args:
        settings: of the core.
        policy: how its chunks are executed; None: there is no policy.
        clock: of the core.

    Attributes:
        executor: of the policy's chunks.
        made: what the executor made of this control step; None outside of `RUN`.
        motion: what `RETURN` or `REPLAY` does; None: nobody said.
    """

    def __init__(self, settings: CoreSettings, policy: Settings | None, clock: Callable[[], float]) -> None:
        self.units = Units(settings)
        self.executor = None if policy is None else Executor(policy, clock)
        self.motion: Motion | None = None
        self._settings, self._takeover, self._clock = settings, Takeover(settings), clock
        self.interrupt(np.zeros(len(settings.limits.entries)))

    def interrupt(self, command: Vector) -> None:
        """Forget the plan and all that was asked for: what comes next begins at the command [A], with a new epoch."""
        self._target: Vector | None = None
        self.made: RobotCommand | None = None
        self._silent_s: float | None = None
        self._refused, self._anchored, self._begun = "", False, False
        if self.executor is not None:
            self.executor.begin(self.units.action(command, command))

    def find_lack(self, mode: Mode) -> str:
        """Return in words what a mode lacks to begin; empty: nothing."""
        if mode == Mode.RUN and self.executor is None:
            return "there is no policy"
        if mode in (Mode.RETURN, Mode.REPLAY) and (self.motion is None or self.motion.mode != mode):
            return f"nobody has said what to {mode}"
        return ""

    def note_request(self, now: float) -> None:
        """Note that the policy was asked, and since when it has not answered."""
        self._silent_s = now if self._silent_s is None else self._silent_s

    def note_answer(self, refusal: ChunkRefusal | None) -> None:
        """Note what became of the policy's answer; one that was refused does not end its silence."""
        self._silent_s = self._silent_s if refusal else None
        self._refused = "" if refusal is None else str(refusal.reason)

    def want(self, mode: Mode, tick: int, command: Vector, measured: Vector) -> Want:
        """Return what a mode other than `TELEOP` wants.

        Args:
            mode: which moves. tick: number of the tick in its control step.
            command: [A], of the tick before. measured: [A], NaN where nothing measures.
        """
        if mode == Mode.RUN:
            return self._run(tick, command)
        return self._follow_motion(tick, command, measured)

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
        if self._target is None:
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
        silent = f"for {self._clock() - self._silent_s:.2f} s"
        if self._refused:
            return f"{self.made.why}; the policy's chunk was refused, {self._refused}; none was accepted {silent}"
        return f"{self.made.why}; the policy has not answered {silent}"

    def _follow_motion(self, tick: int, command: Vector, measured: Vector) -> Want:
        motion = self.motion
        assert motion is not None, "nobody returns or replays without a motion"
        if not self._begun:
            if tick != 0:
                return Want(None, why="waiting for the next control step")
            self._begun = True
            if refused := motion.begin(measured, command, self._clock()):
                return Want(None, over=f"the {motion.mode} was refused: {refused}")
        made = motion.step(measured, self._clock())
        if made.failed:
            return Want(None, over=f"the {motion.mode} was given up: {made.failed}")
        if made.done:
            return Want(None, over=f"the {motion.mode} is done")
        if made.wanted is not None and not (
            np.shape(made.wanted) == command.shape and (np.abs(made.wanted) <= MOST).all()
        ):
            return Want(None, over=f"the {motion.mode} was given up: it wants {made.wanted}")
        return Want(made.wanted, Source.HOLD if made.wanted is None else Source.REPLAY)
