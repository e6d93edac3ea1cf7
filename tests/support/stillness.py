"""Measure when a robot came to rest, from its joint states."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

STILL = 0.02
"""Largest joint speed of a robot at rest, in rad/s or m/s."""
LASTS_S = 0.2
"""Seconds for which all joints must be below `STILL`: a speed that crosses 0 is not rest."""


@dataclass
class StillnessWatch:
    """Watches joint states; `note` is the callback of a subscription to them.

    Attributes:
        limit: the speed below which a joint is still.
        moved_ns: when the robot was last seen to move, by the receiver's clock; None: never.
        seen_ns: when the last joint states came; None: none did.
        speed: the largest of a joint in the last joint states.
    """

    limit: float = STILL
    moved_ns: int | None = None
    seen_ns: int | None = None
    speed: float = field(default=float("nan"))

    def note(self, message: Any, received_ns: int, source_ns: int) -> None:
        """Add joint states. NaN speeds count as movement."""
        self.seen_ns, self.speed = received_ns, float(np.max(np.abs(message.velocity), initial=0.0))
        if not self.speed < self.limit:
            self.moved_ns = received_ns

    def measure(self, since_ns: int) -> float | None:
        """Return the seconds from `since_ns` until the robot was still; None while it is not, or was not for `LASTS_S`.

        Args:
            since_ns: of the receiver's clock, such as that of a kill.
        """
        if self.seen_ns is None:
            return None
        stopped = max(since_ns, self.moved_ns or 0)
        if self.seen_ns - stopped < LASTS_S * 1e9:
            return None
        return (stopped - since_ns) / 1e9
