"""Targets of the modes in each tick: the policy's plan, the human's command, or a motion such as a return.

Shapes: `A` action entries.
"""

import math
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
"""Largest position or speed that is accepted, in the units of any entry; a larger one is an error."""


@dataclass(frozen=True)
class Target:
    """The target of a mode in one tick.

    Attributes:
        wanted: float64 [A], a command; None: ramp to rest.
        source: who decided it. why: the reason to rest.
        over: why the mode has ended; empty while it goes on.
    """

    wanted: Vector | None
    source: Source = Source.HOLD
    why: str = ""
    over: str = ""


class ModeTargets:
    """Computes the targets of one robot's modes.

    Args:
        settings: of the core.
        policy: how its chunks are executed; None: there is no policy.
        clock: of the core.

    Attributes:
        executor: of the policy's chunks.
        made: the executor's command of this control step; None outside of `RUN`.
        motion: the motion that `RETURN` or `REPLAY` executes; None: none is set.
    """

    def __init__(self, settings: CoreSettings, policy: Settings | None, clock: Callable[[], float]) -> None:
        self.units = Units(settings)
        self.executor = None if policy is None else Executor(policy, clock)
        self.motion: Motion | None = None
        self.made: RobotCommand | None = None
        self._settings, self._takeover, self._clock = settings, Takeover(settings), clock
        self._start = np.zeros(len(settings.limits.entries))  # [A], where the control step started
        self._target: Vector | None = None  # [A], where the control step ends
        self._unanswered_s: float | None = None  # time of the first request that no accepted chunk has answered
        self._refused, self._follows_human, self._motion_begun = "", False, False
        self.interrupt(self._start)

    def interrupt(self, command: Vector) -> None:
        """Drop the plan and all requests: the next target starts at the command [A], in a new epoch."""
        self._target, self.made, self._unanswered_s = None, None, None
        self._refused, self._follows_human, self._motion_begun = "", False, False
        if self.executor is not None:
            self.executor.begin(self.units.action(command, command))

    def missing_input(self, mode: Mode) -> str:
        """Return what a mode lacks to begin; empty: nothing."""
        if mode == Mode.RUN and self.executor is None:
            return "there is no policy"
        if mode in (Mode.RETURN, Mode.REPLAY) and (self.motion is None or self.motion.mode != mode):
            return f"no {mode} motion is set"
        return ""

    def note_request(self, now: float) -> None:
        """Note the time of a request to the policy."""
        self._unanswered_s = now if self._unanswered_s is None else self._unanswered_s

    def note_answer(self, refusal: ChunkRefusal | None) -> None:
        """Note whether the policy's chunk was accepted; a refused chunk counts as no answer."""
        self._unanswered_s = self._unanswered_s if refusal else None
        self._refused = "" if refusal is None else str(refusal.reason)

    def compute(self, mode: Mode, tick: int, command: Vector, measured: Vector) -> Target:
        """Return the target of a moving mode other than `TELEOP`.

        Args:
            mode: `RUN`, `RETURN` or `REPLAY`. tick: number of the tick in its control step.
            command: [A], of the tick before. measured: [A], NaN for entries that are not measured.
        """
        return self._follow_plan(tick, command) if mode == Mode.RUN else self._follow_motion(tick, command, measured)

    def follow_human(self, operator: OperatorInput, now: float, command: Vector, rate: Vector) -> Target:
        """Return the human's target; `rate` [A] is the change of the command [A] per second."""
        age = np.inf if operator.teleop is None or operator.teleop_s is None else now - operator.teleop_s
        if operator.teleop is None or not 0 <= age <= self._settings.teleop_s:
            self._follows_human = False
            said = "no command of the human has come" if np.isinf(age) else f"no command of the human for {age:.2f} s"
            return Target(None, why=said)
        if not self._follows_human:
            self._takeover.begin(command, rate)
            self._follows_human = True
        return Target(self._takeover.follow(operator.teleop), Source.HUMAN)

    def _follow_plan(self, tick: int, command: Vector) -> Target:
        """Return the policy's target; a plan is dropped when the policy has not answered for `silence_s`."""
        executor, longest = self.executor, self._settings.silence_s
        assert executor is not None, "RUN needs a policy"
        if tick == 0:
            if longest is not None and self._wait_for_answer() > longest and executor.remaining:
                executor.counts["silent"] += 1
                executor.begin(self.units.action(command, command))
            self.made = executor.act()
            self._start = command if self._target is None else self._target
            self._target = None if self.made.action is None else self.units.command(self.made.action)
        if self._target is None:
            return Target(None, why=self._explain_hold())
        return Target(self.units.interpolate(self._start, self._target, tick), Source.POLICY)

    def _wait_for_answer(self) -> float:
        """Return for how many seconds the policy has not answered; NaN if no request waits."""
        return math.nan if self._unanswered_s is None else self._clock() - self._unanswered_s

    def _explain_hold(self) -> str:
        """Return why the plan has no action."""
        if self.made is None:
            return "waiting for the next control step"
        if self._unanswered_s is None or self.made.why == Why.PLAN:
            return str(self.made.why)
        silent = f"for {self._wait_for_answer():.2f} s"
        if self._refused:
            return f"{self.made.why}; the policy's chunk was refused, {self._refused}; none was accepted {silent}"
        return f"{self.made.why}; the policy has not answered {silent}"

    def _follow_motion(self, tick: int, command: Vector, measured: Vector) -> Target:
        motion = self.motion
        assert motion is not None, "RETURN and REPLAY need a motion"
        if not self._motion_begun:
            if tick != 0:
                return Target(None, why="waiting for the next control step")
            self._motion_begun = True
            if refused := motion.begin(measured, command, self._clock()):
                return Target(None, over=f"the {motion.mode} was refused: {refused}")
        made = motion.step(measured, self._clock())
        if made.failed:
            return Target(None, over=f"the {motion.mode} was given up: {made.failed}")
        if made.done:
            return Target(None, over=f"the {motion.mode} is done")
        if made.wanted is not None and not (
            np.shape(made.wanted) == command.shape and (np.abs(made.wanted) <= MOST).all()
        ):
            return Target(None, over=f"the {motion.mode} was given up: it wants {made.wanted}")
        return Target(made.wanted, Source.HOLD if made.wanted is None else Source.REPLAY)
