"""The safety filter: the last stage before the robot, which nothing bypasses. Pure, with NumPy alone.

In each tick it turns what is wanted, whatever that is, into a command that is finite and inside its box, and from which
the robot can stop inside the box. Speed, acceleration and jerk of the commands keep their limits, as differences at the
period of a tick, from `begin` on, at each splice, takeover and stop.

What is wanted within all limits passes as it is, to the bit. For a speed the filter takes it that the robot moves as it
is commanded; where it lags, the caller gives the difference as `drift`.

Shapes: `A` action entries.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limiter import Correction, Limiter
from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.interfaces.errors import UserError

Numbers = NDArray[np.float64]
OUTSIDE = 1e-3
"""How far outside its box a position may begin, as a part of the box: noise of a robot that rests against its edge."""


@dataclass(frozen=True)
class FilteredCommand:
    """What the filter commands.

    Attributes:
        command: float64 [A]: a position, or a speed for velocities and displacements.
        why: in words, what was changed and for which entries; empty where it is what was wanted.
        still: the command is at rest.
    """

    command: Numbers
    why: str
    still: bool


class SafetyFilter:
    """Filters the commands of one robot.

    Args:
        limits: of its A entries.
        period_s: of a tick, in seconds: every tick commands once.

    Raises:
        UserError: a period that cannot be, or limits too fine for double precision.
    """

    def __init__(self, limits: CommandLimits, period_s: float) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise UserError(f"period_s={period_s} must be above 0.")
        self._entries = limits.entries
        self._limiters = [Limiter(entry, period_s) for entry in limits.entries]
        self._begun = False

    @property
    def command(self) -> Numbers:
        """Return the last command, float64 [A]."""
        return np.array([limiter.command for limiter in self._limiters])

    def begin(self, measured: Numbers, start: Numbers | None = None) -> None:
        """Begin at rest, at the measured position.

        Args:
            measured: float64 [A], q of each entry; NaN where nothing measures it.
            start: float64 [A], the position of entries that nothing measures, such as the last command; without it, the
                number of their box that is nearest to 0.

        Raises:
            UserError: a position is outside its box, so that each command would be a jump.
        """
        values = self._read(measured)
        given = [math.nan] * len(values) if start is None else self._read(start)
        begun = [_choose_start(entry, *each) for entry, *each in zip(self._entries, values, given, strict=True)]
        for limiter, value in zip(self._limiters, begun, strict=True):
            limiter.begin(value)
        self._begun = True

    def step(self, wanted: Numbers | None, measured: Numbers | None, drift: Numbers | None = None) -> FilteredCommand:
        """Return the command of this tick.

        Args:
            wanted: float64 [A]: a position, or a speed for velocities and displacements. None: ramp to rest.
            measured: float64 [A], q of each entry; NaN where nothing measures it. None: nothing is measured.
            drift: float64 [A], the dead-reckoned q less the measured one: the box of a speed holds for both places, and
                for all between them. None: 0.

        Raises:
            RuntimeError: `begin` was not called.
        """
        if not self._begun:
            raise RuntimeError("SafetyFilter.begin(measured) must be called before step.")
        values = self._read(measured)
        why = self._find_stop(wanted, values)
        for limiter, away in zip(self._limiters, np.zeros(len(values)) if drift is None else drift, strict=True):
            limiter.drift = float(away)
        if wanted is None or why:
            why = why or "ramp to rest"
            for limiter, value in zip(self._limiters, values, strict=True):
                limiter.stop(value)
        else:
            targets, reasons = np.asarray(wanted, np.float64).tolist(), dict[Correction, list[str]]()
            for limiter, target, value in zip(self._limiters, targets, values, strict=True):
                if (reason := limiter.follow(target, value)[1]) is not None:
                    reasons.setdefault(reason, []).append(limiter.limits.name)
            why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items())
        return FilteredCommand(self.command, why, all(limiter.still for limiter in self._limiters))

    def _read(self, values: Numbers | None) -> list[float]:
        """Return A floats, finite or NaN; NaN throughout where `values` are not that many numbers."""
        if values is None or not _has_numbers(values, len(self._entries)):
            return [math.nan] * len(self._entries)
        return [value if math.isfinite(value) else math.nan for value in np.asarray(values, np.float64).tolist()]

    def _find_stop(self, wanted: Numbers | None, measured: list[float]) -> str:
        """Return why the whole robot has to ramp to rest, with the entries that are the cause; empty: it has not to."""
        if wanted is not None:
            if not _has_numbers(wanted, len(self._entries)):
                return Correction.SHAPE
            values = zip(self._entries, np.asarray(wanted, np.float64).tolist(), strict=True)
            if strange := [entry.name for entry, value in values if not math.isfinite(value)]:
                return f"{Correction.NOT_FINITE}: {', '.join(strange)}"
        pairs = zip(self._entries, measured, strict=True)
        blind = [entry.name for entry, value in pairs if math.isnan(value) and _needs_measurement(entry)]
        return f"{Correction.MEASUREMENT}: {', '.join(blind)}" if blind else ""


def measure_longest_ramp(limits: CommandLimits, period_s: float) -> float:
    """Return how long the longest ramp to rest takes, from top speed in any entry, in seconds."""
    return max(Limiter(entry, period_s).count_ramp_ticks() for entry in limits.entries) * period_s


def _has_numbers(values: Numbers, count: int) -> bool:
    """Return whether these are `count` numbers; what comes from outside may be anything."""
    return isinstance(values, np.ndarray) and values.shape == (count,) and values.dtype.kind in "fiu"


def _needs_measurement(entry: EntryLimits) -> bool:
    """Return whether an entry moves only while it is measured: one that is commanded a speed and has a box."""
    return entry.kind != "position" and (math.isfinite(entry.low) or math.isfinite(entry.high))


def _choose_start(entry: EntryLimits, measured: float, given: float) -> float:
    """Return the first command of an entry, at rest."""
    if entry.kind != "position":
        return 0.0
    known = measured if math.isfinite(measured) else given
    inside = min(max(known if math.isfinite(known) else 0.0, entry.low), entry.high)
    if math.isfinite(known) and abs(known - inside) > OUTSIDE * (entry.high - entry.low):
        raise UserError(
            f"{entry.name} is at {known:.4g}, outside its limits {entry.low:g} to {entry.high:g}. Move the robot "
            "inside, by hand, or correct the limits."
        )
    return inside
