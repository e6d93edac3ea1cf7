"""Targets of the modes in each tick, the account of a control step, and the conversion between actions and commands.

A mode follows the policy's plan, the human's command, or a motion such as a return. Shapes: `A` action entries. A
displacement is commanded as a speed, displacement · control_hz; a position is interpolated over the step's ticks,
except for entries that keep their last command, such as a gripper's switch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.executor import Executor
from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest, RobotCommand, Why
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, Motion, OperatorInput
from embodied_rl.interfaces.sim import Array, Source

Vector = NDArray[np.float64]
MOST = 1e6
"""Largest position or speed that is accepted, in the units of any entry; a larger one is an error."""


class Units:
    """Conversion of a policy's actions float32 [A] to commands float64 [A], and back."""

    def __init__(self, settings: CoreSettings) -> None:
        kinds = [entry.kind for entry in settings.limits.entries]
        self.position = np.array([kind == "position" for kind in kinds])
        self.along_line = self.position & ~np.array(settings.keeps)
        self._scale = np.array([settings.control_hz if kind == "displacement" else 1.0 for kind in kinds])
        self._ticks = settings.ticks

    def command(self, action: Array) -> Vector:
        """Return the command at the end of an action."""
        return np.asarray(action, np.float64) * self._scale

    def interpolate(self, start: Vector, target: Vector, tick: int) -> Vector:
        """Return the target of a tick between the end of the last step and the target of this one."""
        rest = 1 - (tick + 1) / self._ticks
        return np.where(self.along_line, target - (target - start) * rest, target)

    def action(self, mean: Vector, last: Vector) -> Array:
        """Return the action of commands: their mean for speeds, the last one for positions."""
        return (np.where(self.position, last, mean) / self._scale).astype(np.float32)


class StepAccount:
    """Account of the ticks of a control step.

    `most` is the largest change of an action by the filter that is not material, float64 [A]; `ids` are the step,
    sequence and policy version of the policy's chunk, -1 without.
    """

    def __init__(self, units: Units, most: Vector) -> None:
        self._units, self._most, self._most_command = units, most, units.command(most)
        self.begin()

    def begin(self) -> None:
        """Start a control step."""
        self._sources, self._whys = set[Source](), dict[str, None]()
        self._sum: Vector | float = 0.0
        self._wanted_sum: Vector | float = 0.0
        self._ticks = self._wanted_ticks = 0
        self._command, self._wanted = np.zeros(len(self._most)), None
        self.ids: tuple[int, int, int] = (-1, -1, -1)

    def add(self, wanted: Vector | None, command: Vector, source: Source, why: str) -> tuple[Array, Source]:
        """Add a tick; return the action until now, float32 [A], and the tick's source.

        The source of a policy's command is `SAFETY` if the filter changed it materially.

        Args:
            wanted: float64 [A], the target; None: there is none. command: float64 [A], after the safety filter.
            source: of the target. why: reasons, separated by "; ".
        """
        self._sum, self._ticks, self._command = self._sum + command, self._ticks + 1, command
        if wanted is not None:
            self._wanted_sum, self._wanted_ticks = self._wanted_sum + wanted, self._wanted_ticks + 1
            self._wanted = wanted
        self._sources.add(source)
        self._whys |= dict.fromkeys(why.split("; ") if why else ())
        if source == Source.POLICY and wanted is not None and why:
            source = Source.SAFETY if (np.abs(command - wanted) > self._most_command).any() else source
        return self.executed(), source

    def executed(self) -> Array:
        """Return the action until now, float32 [A]."""
        return self._units.action(self._sum / self._ticks, self._command)  # type: ignore[arg-type]

    def end(self, time: float, mode: Mode) -> ExecutedStep:
        """Return the finished step; a human or a replay decided it if in any tick, else the policy or the filter."""
        proposed, executed, sources = None, self.executed(), self._sources
        if self._wanted is not None:
            proposed = self._units.action(self._wanted_sum / self._wanted_ticks, self._wanted)  # type: ignore[arg-type]
        source = Source.HOLD
        if Source.HUMAN in sources or Source.REPLAY in sources:
            source = Source.HUMAN if Source.HUMAN in sources else Source.REPLAY
        elif Source.POLICY in sources:
            changed = proposed is not None and bool((np.abs(executed - proposed) > self._most).any())
            source = Source.SAFETY if sources != {Source.POLICY} or changed else Source.POLICY
        return ExecutedStep(time, mode, source, proposed, executed, self._command, "; ".join(self._whys), *self.ids)


def find_material(settings: CoreSettings, policy: Settings | None) -> Vector:
    """Return the largest change of an action that is not material, float64 [A]: a share of the action's range."""
    ranges = []
    for entry in settings.limits.entries:
        step = settings.control_hz if entry.kind == "displacement" else 1.0
        ranges.append(entry.high - entry.low if entry.kind == "position" else 2 * entry.speed / step)
    most = np.array(ranges, np.float64)
    if policy is not None:
        most = np.minimum(most, np.asarray(policy.action_high, np.float64) - np.asarray(policy.action_low, np.float64))
    return settings.material * most


@dataclass(frozen=True)
class Target:
    """Target of a mode in one tick, float64 [A], None to ramp to rest; its source, and the reason to rest.

    `over` is why the mode has ended; empty while it goes on.
    """

    wanted: Vector | None
    source: Source = Source.HOLD
    why: str = ""
    over: str = ""


class ModeTargets:
    """Computes the targets of one robot's modes; without a policy there is no executor.

    Attributes:
        executor: of the policy's chunks. made: its command of this control step; None outside of `RUN`.
        motion: the motion that `RETURN` or `REPLAY` executes; None: none is set.
    """

    def __init__(self, settings: CoreSettings, policy: Settings | None, clock: Callable[[], float]) -> None:
        self.units = Units(settings)
        self.executor = None if policy is None else Executor(policy, clock)
        self.motion: Motion | None = None
        self._settings, self._takeover, self._clock = settings, Takeover(settings), clock
        self._start = np.zeros(len(settings.limits.entries))  # [A], where the control step started
        self.interrupt(self._start)

    def interrupt(self, command: Vector) -> None:
        """Drop the plan and all requests: the next target starts at the command [A], in a new epoch."""
        self.made: RobotCommand | None = None
        self._target: Vector | None = None  # [A], where the control step ends
        self._unanswered_s: float | None = None  # time of the first request that no accepted chunk has answered
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

    def request(self, now: float) -> ChunkRequest | None:
        """Return the executor's request if one is due."""
        assert self.executor is not None, "a request needs a policy"
        made = self.executor.request()
        if made is not None and self._unanswered_s is None:
            self._unanswered_s = now
        return made

    def receive(self, chunk: Chunk) -> ChunkRefusal | None:
        """Pass a chunk to the executor; a refused one counts as no answer."""
        assert self.executor is not None, "a chunk needs a policy"
        refusal = self.executor.receive(chunk)
        self._unanswered_s = self._unanswered_s if refusal else None
        self._refused = "" if refusal is None else str(refusal.reason)
        return refusal

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

    def follow_plan(self, tick: int, command: Vector) -> Target:
        """Return the policy's target in a tick of the control step, after the command [A] of the tick before.

        A plan is dropped when the policy has not answered for `silence_s`.
        """
        executor, longest = self.executor, self._settings.silence_s
        assert executor is not None, "RUN needs a policy"
        waited = math.nan if self._unanswered_s is None else self._clock() - self._unanswered_s
        if tick == 0:
            if longest is not None and waited > longest and executor.remaining:
                executor.counts["silent"] += 1
                executor.begin(self.units.action(command, command))
            self.made = executor.act()
            self._start = command if self._target is None else self._target
            self._target = None if self.made.action is None else self.units.command(self.made.action)
        if self._target is not None:
            return Target(self.units.interpolate(self._start, self._target, tick), Source.POLICY)
        why = "waiting for the next control step" if self.made is None else str(self.made.why)
        if self.made is not None and self._unanswered_s is not None and self.made.why != Why.PLAN:
            said = f"the policy has not answered for {waited:.2f} s"
            if self._refused:
                said = f"the policy's chunk was refused, {self._refused}; none was accepted for {waited:.2f} s"
            why = f"{why}; {said}"
        return Target(None, why=why)

    def follow_motion(self, tick: int, command: Vector, measured: Vector) -> Target:
        """Return the target of `RETURN` or `REPLAY` in a tick of the control step."""
        motion = self.motion
        assert motion is not None, "RETURN and REPLAY need a motion"
        if not self._motion_begun:
            if tick != 0:
                return Target(None, why="waiting for the next control step")
            self._motion_begun = True
            if refused := motion.begin(measured, command, self._clock()):
                return Target(None, over=f"the {motion.mode} was refused: {refused}")
        made = motion.step(measured, self._clock())
        failed, wanted = made.failed, made.wanted
        if not failed and made.done:
            return Target(None, over=f"the {motion.mode} is done")
        if not failed and wanted is not None:
            valid = np.shape(wanted) == command.shape and (np.abs(wanted) <= MOST).all()
            failed = "" if valid else f"it wants {wanted}"
        if failed:
            return Target(None, over=f"the {motion.mode} was given up: {failed}")
        return Target(wanted, Source.HOLD if wanted is None else Source.REPLAY)


class Takeover:
    """Blend of one human's commands with the command before the takeover, without a jump.

    At a takeover the target is the human's position plus an offset, so that it starts at the present command with the
    present speed. The offset fades to zero along a cubic; a larger offset takes longer, so that the robot does not jump
    to the pose of a leader arm.
    """

    def __init__(self, settings: CoreSettings) -> None:
        entries = settings.limits.entries
        self._position = np.array([entry.kind == "position" for entry in entries])
        self._speed = settings.approach * np.array([entry.speed for entry in entries])
        self._blend_s, self._period_s = settings.blend_s, settings.period_s
        self.begin(np.zeros(len(entries)), np.zeros(len(entries)))

    def begin(self, command: Vector, rate: Vector) -> None:
        """Start a takeover at a command [A] that changes at a rate [A] per second, or restart it after a gap."""
        count = len(command)
        self.wanted, self._rate = command.copy(), np.where(self._position, rate, 0.0)
        self._touched = np.zeros(count, bool)
        self._rest, self._offset, self._slope = np.zeros((3, count))  # position at rest; offset, its change per second
        self._elapsed, self._length = np.zeros(count), np.full(count, self._blend_s)  # of the blend, in s
        self._anchor(self._position, np.full(count, np.nan))

    def follow(self, human: Vector) -> Vector:
        """Return the target of this tick, [A].

        NaN where the human does not touch an entry: a speed goes to 0, a position slows down from its present speed.
        """
        touched = ~np.isnan(human)
        if (touched != self._touched).any():
            self._anchor(touched != self._touched, np.where(touched, human, np.nan))
            self._touched = touched
        self._elapsed += self._period_s
        share = np.minimum(self._elapsed / self._length, 1.0)
        fading = (2 * share - 3) * share**2 + 1
        moving = self._length * self._slope * (share - 1) ** 2 * share
        target = np.where(touched, human, self._rest)
        wanted = target + np.where(touched | self._position, self._offset * fading + moving, 0.0)
        self._rate = np.where(self._position, (wanted - self.wanted) / self._period_s, 0.0)
        self.wanted = wanted
        return wanted

    def _anchor(self, chosen: NDArray[np.bool_], human: Vector) -> None:
        """Start a blend of the chosen entries towards the human's [A]; NaN: towards rest."""
        resting = np.where(self._position, self.wanted + self._rate * self._blend_s / 3, 0.0)
        self._rest = np.where(chosen, resting, self._rest)
        offset = self.wanted - np.where(np.isnan(human), resting, human)
        slowest = np.where(self._position & ~np.isnan(human), 1.5 * np.abs(offset) / self._speed, 0.0)
        self._offset = np.where(chosen, offset, self._offset)
        self._slope = np.where(chosen, self._rate, self._slope)
        self._length = np.where(chosen, np.maximum(self._blend_s, slowest), self._length)
        self._elapsed = np.where(chosen, 0.0, self._elapsed)
