"""Limits of a robot's commands, which the safety filter keeps.

Shapes: `A` action entries. Units are SI: of an entry's own quantity q (metres, radians, or 1 for a gripper), per second
for its speed, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from embodied_rl.interfaces.errors import UserError

EntryKind = Literal["position", "velocity", "displacement"]
ENTRY_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)


@dataclass(frozen=True)
class EntryLimits:
    """Limits of one entry of an action.

    Attributes:
        name: of the entry in the policy's action.
        kind: meaning of the policy's number. "position": target in q. "velocity": speed in q/s. "displacement": motion
            in one control step, in q; it is commanded as a speed.
        low, high: the box of q, which is never left. For a velocity or a displacement it holds for the measured q.
        speed, acceleration, jerk: largest magnitudes of the first three derivatives of the command, in q/s, q/s² and
            q/s³; `inf` for none, which a robot's file must give explicitly.

    Raises:
        UserError: an unknown kind, reversed or invalid limits.
    """

    name: str
    kind: EntryKind
    low: float
    high: float
    speed: float
    acceleration: float
    jerk: float

    def __post_init__(self) -> None:
        if self.kind not in ENTRY_KINDS:
            raise UserError(
                f"{self.name}: kind={self.kind!r} is none of {', '.join(ENTRY_KINDS)}.", code="entry-kind-unknown"
            )
        if not self.low < self.high:
            raise UserError(f"{self.name}: low={self.low} must be below high={self.high}.", code="limits-reversed")
        for limit in ("speed", "acceleration", "jerk"):
            if not getattr(self, limit) > 0:
                raise UserError(
                    f"{self.name}: {limit}={getattr(self, limit)} must be above 0.", code="value-out-of-range"
                )


@dataclass(frozen=True)
class CommandLimits:
    """Limits of all A entries, in the order of the robot's actions."""

    entries: tuple[EntryLimits, ...]

    def list_values(self, limit: str) -> Sequence[float]:
        """Return one attribute of all entries, length A."""
        return [getattr(entry, limit) for entry in self.entries]
