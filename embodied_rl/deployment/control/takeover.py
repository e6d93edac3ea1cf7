"""Takeovers without a jump: blends a human's command with the command before the takeover.

At a takeover the target is the human's position plus an offset, so that it starts at the present command with the
present speed. The offset fades to zero along a cubic; a larger offset takes longer, so that the robot does not jump to
the pose of a leader arm. Shapes: `A` action entries.
"""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.settings import CoreSettings

Vector = NDArray[np.float64]


class Takeover:
    """Blend of one human's commands.

    Attributes:
        wanted: float64 [A], the target of the last tick.
    """

    def __init__(self, settings: CoreSettings) -> None:
        entries = settings.limits.entries
        self._position = np.array([entry.kind == "position" for entry in entries])
        self._speed = settings.approach * np.array([entry.speed for entry in entries])
        self._blend_s, self._period_s = settings.blend_s, settings.period_s
        zeros = np.zeros(len(entries))
        self.wanted = self._rate = zeros  # target and its change per second
        self._touched = np.zeros(len(entries), bool)
        self._rest = self._offset = self._slope = zeros  # position at rest; offset and its change per second
        self._elapsed, self._length = zeros, np.full(len(entries), self._blend_s)  # of the blend, in s

    def begin(self, command: Vector, rate: Vector) -> None:
        """Start a takeover, or restart it after a gap in the human's commands.

        Args:
            command: [A], of the tick before. rate: [A], its change per second.
        """
        self.wanted, self._rate = command.copy(), np.where(self._position, rate, 0.0)
        self._touched = np.zeros(len(command), bool)
        self._rest, self._offset, self._slope = np.zeros((3, len(command)))
        self._elapsed, self._length = np.zeros(len(command)), np.full(len(command), self._blend_s)
        self._anchor(self._position, np.full(len(command), np.nan))

    def follow(self, human: Vector) -> Vector:
        """Return the target of this tick, [A].

        Args:
            human: [A], entries in their own kind; NaN where the human does not touch it: a speed goes to 0, a position
                slows down from its present speed.
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
