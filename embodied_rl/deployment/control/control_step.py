"""Control steps: the target of each tick, and the action that was executed, in the policy's units.

Shapes: `A` action entries. A displacement is commanded as a speed, displacement · control_hz; a position is
interpolated over the step's ticks, except for entries that keep their last command, such as a gripper's switch.
"""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode
from embodied_rl.interfaces.sim import Array, Source

Vector = NDArray[np.float64]


class Units:
    """Conversion of a policy's actions to commands, and back."""

    def __init__(self, settings: CoreSettings) -> None:
        kinds = [entry.kind for entry in settings.limits.entries]
        self.position = np.array([kind == "position" for kind in kinds])
        self.along_line = self.position & ~np.array(settings.keeps)
        self._scale = np.array([settings.control_hz if kind == "displacement" else 1.0 for kind in kinds])
        self._ticks = settings.ticks

    def command(self, action: Array) -> Vector:
        """Return the command [A] at the end of an action float32 [A]."""
        return np.asarray(action, np.float64) * self._scale

    def interpolate(self, start: Vector, target: Vector, tick: int) -> Vector:
        """Return the target of a tick, [A], between the end of the last step and the target of this one."""
        rest = 1 - (tick + 1) / self._ticks
        return np.where(self.along_line, target - (target - start) * rest, target)

    def action(self, mean: Vector, last: Vector) -> Array:
        """Return the action float32 [A] of commands: their mean for speeds, the last one for positions."""
        return (np.where(self.position, last, mean) / self._scale).astype(np.float32)


class StepAccount:
    """Account of the ticks of a control step.

    Args:
        units: of the robot.
        most: float64 [A], largest change of an action by the filter that is not material.

    Attributes:
        step, sequence, policy_version: of the policy's chunk; -1 without.
    """

    def __init__(self, units: Units, most: Vector) -> None:
        self._units, self._most, self._most_command = units, most, units.command(most)
        self._sources: set[Source] = set()
        self._whys: dict[str, None] = {}
        self._sum: Vector | float = 0.0
        self._wanted_sum: Vector | float = 0.0
        self._ticks = self._wanted_ticks = 0
        self._command, self._wanted = np.zeros(len(most)), None
        self.step = self.sequence = self.policy_version = -1

    def begin(self) -> None:
        """Start a control step."""
        self._sources, self._whys = set(), {}
        self._sum = self._wanted_sum = 0.0
        self._ticks = self._wanted_ticks = 0
        self._wanted = None
        self.step = self.sequence = self.policy_version = -1

    def add(self, wanted: Vector | None, command: Vector, source: Source, why: str) -> tuple[Array, Source]:
        """Add a tick; return the action until now, float32 [A], and the tick's source.

        The source of a policy's command is `SAFETY` if the filter changed it materially.

        Args:
            wanted: float64 [A], the target; None: there is none. command: float64 [A], after the safety filter.
            source: of the target. why: reasons, separated by "; ".
        """
        self._sum, self._ticks = self._sum + command, self._ticks + 1
        if wanted is not None:
            self._wanted_sum, self._wanted_ticks = self._wanted_sum + wanted, self._wanted_ticks + 1
            self._wanted = wanted
        self._sources.add(source)
        for each in why.split("; ") if why else ():
            self._whys[each] = None
        self._command = command
        if (
            source == Source.POLICY
            and wanted is not None
            and why
            and (np.abs(command - wanted) > self._most_command).any()
        ):
            source = Source.SAFETY
        return self.executed(), source

    def executed(self) -> Array:
        """Return the action until now, float32 [A]."""
        return self._units.action(self._sum / self._ticks, self._command)  # type: ignore[arg-type]

    def proposed(self) -> Array | None:
        """Return the action that was wanted until now, float32 [A]; None: there was no target."""
        if self._wanted is None:
            return None
        return self._units.action(self._wanted_sum / self._wanted_ticks, self._wanted)  # type: ignore[arg-type]

    def end(self, time: float, mode: Mode) -> ExecutedStep:
        """Return the finished control step."""
        proposed, executed = self.proposed(), self.executed()
        why = "; ".join(self._whys)
        source = self._choose_source(proposed, executed)
        ids = (self.step, self.sequence, self.policy_version)
        return ExecutedStep(time, mode, source, proposed, executed, self._command, why, *ids)

    def _choose_source(self, proposed: Array | None, executed: Array) -> Source:
        """Return who decided the step: a human or a replay if in any tick, else the policy, the filter or nothing."""
        for source in (Source.HUMAN, Source.REPLAY):
            if source in self._sources:
                return source
        if Source.POLICY not in self._sources:
            return Source.HOLD
        cut = self._sources != {Source.POLICY}
        changed = proposed is not None and bool((np.abs(executed - proposed) > self._most).any())
        return Source.SAFETY if cut or changed else Source.POLICY


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
