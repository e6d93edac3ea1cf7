"""Checks commands against limits by their differences alone, without a part of the filter that made them."""

import math

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import CommandLimits

ROUNDING = 1e-6
"""Differences of numbers of double precision exceed a limit by this share at most, where it is kept."""


class LimitCheck:
    """Checks the commands of one robot, from an activation on.

    Args:
        limits: of its A entries.
        period_s: of a tick.
    """

    def __init__(self, limits: CommandLimits, period_s: float) -> None:
        self._position = np.array([entry.kind == "position" for entry in limits.entries])
        self._low, self._high = (np.array(limits.list_values(edge)) for edge in ("low", "high"))
        self._most = [np.array(limits.list_values(name)) for name in ("speed", "acceleration", "jerk")]
        self._period_s, self._count = period_s, len(limits.entries)
        self.begin(np.zeros(self._count))

    def begin(self, command: NDArray[np.float64]) -> None:
        """Begin at rest at a command [A]."""
        self._before = command.copy()
        self._rates = [np.zeros(self._count), np.zeros(self._count)]

    def find_broken(self, command: NDArray[np.float64]) -> list[str]:
        """Return which limits the next command [A] breaks, empty for none; "still" is one that moves nothing."""
        if command.shape != (self._count,) or not np.isfinite(command).all():
            return ["finite"]
        broken = []
        if (self._position & ((command < self._low) | (command > self._high))).any():
            broken.append("box")
        change = (command - self._before) / self._period_s
        speed = np.where(self._position, change, command)
        acceleration = np.where(self._position, (speed - self._rates[0]) / self._period_s, change)
        jerk = (acceleration - self._rates[1]) / self._period_s
        grain = 8 * math.ulp(float(np.abs(command).max()) + 1.0)
        derivatives = {"speed": speed, "acceleration": acceleration, "jerk": jerk}
        for order, (name, value) in enumerate(derivatives.items()):
            rounding = grain / self._period_s ** (order + 1)
            if (np.abs(value) > self._most[order] * (1 + ROUNDING) + rounding).any():
                broken.append(name)
        self._before, self._rates = command.copy(), [speed, acceleration]
        return broken

    @property
    def moving(self) -> bool:
        """Return whether the last command moves the robot."""
        return bool((self._rates[0] != 0).any())
