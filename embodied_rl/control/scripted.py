"""Motions that nobody decides while they run: going to a return point, and repeating a recorded episode.

Shapes: `A` action entries, `T` control steps.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.control.settings import CoreSettings
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

Vector = NDArray[np.float64]
APPROACH_S = 0.5
"""A speed is the distance to the target over this time, so that it fades as the robot arrives."""


class ReturnPath:
    """Goes to a point, at a share of the largest speed.

    Args:
        settings: of the core.
        target: float64 [A], in each entry's own quantity; NaN: this entry stays as it is.

    Raises:
        UserError: a target is outside its box, or nothing measures what a speed should reach.
    """

    def __init__(self, settings: CoreSettings, target: Vector) -> None:
        entries = settings.limits.entries
        self._target = _check_target(settings, np.array(target, np.float64))
        self._position = np.array([entry.kind == "position" for entry in entries])
        self._by_command = np.array(settings.keeps) | ~np.array(settings.measured)
        box = np.array([entry.high - entry.low for entry in entries])
        self._near = settings.near * np.where(np.isfinite(box), box, 1.0)
        speed = np.array([entry.speed for entry in entries])
        self._speed = settings.return_speed * np.where(np.isfinite(speed), speed, np.where(np.isfinite(box), box, 1.0))
        self._period_s, self._most_s = settings.period_s, settings.return_s
        self.begin()

    def begin(self) -> None:
        """Begin the time that is left."""
        self.left_s = self._most_s

    def step(self, command: Vector, measured: Vector) -> Vector | None:
        """Return what is wanted in this tick, [A]; None: the robot has arrived.

        Args:
            command: [A], of the tick before. measured: [A], NaN where nothing measures.
        """
        self.left_s -= self._period_s
        where = np.where(self._position & self._by_command, command, measured)
        distance = np.where(np.isnan(self._target), 0.0, self._target - where)
        if (np.abs(distance) <= self._near).all():
            return None
        most = self._speed * self._period_s
        towards = np.where(np.isnan(self._target), 0.0, self._target - command)
        speed = np.where(self._by_command, 0.0, np.clip(distance / APPROACH_S, -self._speed, self._speed))
        return np.where(self._position, command + np.clip(towards, -most, most), speed)


def _check_target(settings: CoreSettings, target: Vector) -> Vector:
    entries = settings.limits.entries
    if target.shape != (len(entries),) or np.isinf(target).any():
        raise UserError(f"A return point has {len(entries)} numbers, one per entry of the action, NaN for any.")
    for entry, value, measured in zip(entries, target, settings.measured, strict=True):
        if not np.isnan(value) and not entry.low <= value <= entry.high:
            raise UserError(f"A return point has {entry.name}={value:g}, outside its box {entry.low:g}…{entry.high:g}.")
        if not np.isnan(value) and entry.kind != "position" and not measured:
            raise UserError(f"A return point has {entry.name}={value:g}, and nothing measures it. Give NaN.")
    return target


@dataclass(frozen=True)
class Recording:
    """A recorded episode to repeat, one action in each control step.

    Attributes:
        actions: float32 [T, A], in the policy's units.
        measured: float64 [T, A], what was measured when each action began; None: nobody recorded it.
        deviation: float64 [A], the replay ends where what is measured differs by more; `inf` for any.

    Raises:
        UserError: shapes do not fit, or an action is not finite.
    """

    actions: Array
    measured: Vector | None = None
    deviation: Vector | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.actions)
        if len(shape) != 2 or 0 in shape or not np.isfinite(self.actions).all():
            raise UserError(f"A recording has actions [steps, entries] that are finite; this one has {list(shape)}.")
        if (self.measured is None) != (self.deviation is None):
            raise UserError("A recording has both what was measured and the largest deviation from it, or neither.")
        if self.measured is None or self.deviation is None:
            return
        if np.shape(self.measured) != shape or np.shape(self.deviation) != shape[1:]:
            raise UserError(f"A recording's measured entries and deviation do not fit its actions {list(shape)}.")

    def compare(self, step: int, measured: Vector) -> str:
        """Return in words why the robot is not where it was when the recording was made; empty if it is."""
        if self.measured is None or self.deviation is None:
            return ""
        error = np.abs(measured - self.measured[step])
        if not (error > self.deviation).any():
            return ""
        worst = int(np.nanargmax(np.where(error > self.deviation, error, -1.0)))
        return f"entry {worst} is {error[worst]:.4g} from the recording, at most {self.deviation[worst]:g}"
