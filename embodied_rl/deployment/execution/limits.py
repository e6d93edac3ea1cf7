"""The limits of a robot's commands, which the safety filter holds.

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
    """The limits of one entry of an action.

    Attributes:
        name: of the entry, as the policy calls it.
        kind: what the policy's number means. "position": where to be, in q. "velocity": how fast to move, in q/s.
            "displacement": how far to move in one control step, in q; the robot is commanded the speed that does it.
        low, high: the box of q, which is never left. For a velocity or a displacement it holds for the measured q.
        speed, acceleration, jerk: largest magnitudes of the first three derivatives of what is commanded, in q/s, q/s²
            and q/s³; `inf` for none, which a description has to say in words.

    Raises:
        UserError: an unknown kind, limits the wrong way round, or a number that is no limit.
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
            raise UserError(f"{self.name}: kind={self.kind!r} is none of {', '.join(ENTRY_KINDS)}.")
        if not self.low < self.high:
            raise UserError(f"{self.name}: low={self.low} must be below high={self.high}.")
        for limit in ("speed", "acceleration", "jerk"):
            if not getattr(self, limit) > 0:
                raise UserError(f"{self.name}: {limit}={getattr(self, limit)} must be above 0.")


@dataclass(frozen=True)
class CommandLimits:
    """The limits of all A entries, in the order of the robot's actions."""

    entries: tuple[EntryLimits, ...]

    def list_values(self, limit: str) -> Sequence[float]:
        """Return one attribute of all entries, length A."""
        return [getattr(entry, limit) for entry in self.entries]
