"""The safety filter: the last stage before the robot, which nothing bypasses. Pure, with NumPy alone.

In each tick it turns what is wanted, whatever that is, into a command that is finite and inside its box, and from which
the robot can stop inside the box. Speed, acceleration and jerk of the commands keep their limits, as differences at the
period of a tick, from `begin` on, at each splice, takeover and stop. The filter never jumps: where the robot does not
follow its commands, the filter trips, ramps to rest, and stays there until the next `begin`.

What is wanted within all limits passes as it is, to the bit. For a speed the filter takes it that the robot moves as it
is commanded; where it lags, the caller gives the difference as `drift`.

Shapes: `A` action entries.
"""

import math
from collections import Counter
from collections.abc import Sequence
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
        changed: whether this differs from what was wanted; True for a ramp to rest.
        why: in words, what was changed and for which entries; empty where nothing was.
        still: the command is at rest.
        tripped: in words, why the filter stopped for good; empty while it has not.
    """

    command: Numbers
    changed: bool
    why: str
    still: bool
    tripped: str = ""


class SafetyFilter:
    """Filters the commands of one robot.

    Args:
        limits: of its A entries.
        period_s: of a tick, in seconds: every tick commands once.
        tracking_error: [A], the largest distance in q between a commanded position and the measured one; beyond it the
            filter trips. `inf` for none, which is the default. It says nothing for a speed.

    Attributes:
        counts: in how many ticks a command was changed for each `Correction`.
        tripped: in words, why the filter stopped for good; empty while it has not.

    Raises:
        UserError: a period or a tracking error that cannot be, or limits too fine for double precision.
    """

    def __init__(self, limits: CommandLimits, period_s: float, tracking_error: Sequence[float] | None = None) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise UserError(f"period_s={period_s} must be above 0.")
        allowed = (
            [math.inf] * len(limits.entries) if tracking_error is None else [float(each) for each in tracking_error]
        )
        if len(allowed) != len(limits.entries) or not all(each > 0 for each in allowed):
            raise UserError(f"tracking_error={allowed}: give {len(limits.entries)} numbers above 0, or inf for none.")
        self.limits, self.period_s = limits, period_s
        self.counts: Counter[Correction] = Counter()
        self.tripped = ""
        self._allowed = allowed
        self._limiters = [Limiter(entry, period_s) for entry in limits.entries]
        self._measured: list[bool] = []

    @property
    def command(self) -> Numbers:
        """Return the last command, float64 [A]."""
        return np.array([limiter.command for limiter in self._limiters])

    def begin(self, measured: Numbers, start: Numbers | None = None) -> None:
        """Begin at rest, at the measured position. This releases a trip.

        Args:
            measured: float64 [A], q of each entry; NaN where nothing measures it.
            start: float64 [A], the position of entries that nothing measures, such as the last command; without it, the
                number of their box that is nearest to 0.

        Raises:
            UserError: a position is outside its box, so that each command would be a jump.
        """
        values = self._read(measured)
        given = [math.nan] * len(values) if start is None else self._read(start)
        begun = [_choose_start(entry, *each) for entry, *each in zip(self.limits.entries, values, given, strict=True)]
        for limiter, value in zip(self._limiters, begun, strict=True):
            limiter.begin(value)
        self._measured = [math.isfinite(value) for value in values]
        self.tripped = ""

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
        if not self._measured:
            raise RuntimeError("SafetyFilter.begin(measured) must be called before step.")
        values = self._read(measured)
        reasons = self._find_stop(wanted, values)
        for limiter, away in zip(self._limiters, np.zeros(len(values)) if drift is None else drift, strict=True):
            limiter.drift = float(away)
        if wanted is None or reasons:
            for limiter, value in zip(self._limiters, values, strict=True):
                limiter.stop(value)
            said = [] if reasons or wanted is not None else ["ramp to rest"]
        else:
            targets, said = np.asarray(wanted, np.float64).tolist(), []
            for limiter, target, value in zip(self._limiters, targets, values, strict=True):
                if (reason := limiter.follow(target, value)[1]) is not None:
                    reasons.setdefault(reason, []).append(limiter.limits.name)
        self.counts.update(reasons.keys())
        said += [f"{reason}: {', '.join(names)}" if names else str(reason) for reason, names in reasons.items()]
        still = all(limiter.still for limiter in self._limiters)
        return FilteredCommand(self.command, bool(said), "; ".join(said), still, self.tripped)

    def _read(self, values: Numbers | None) -> list[float]:
        """Return A floats, finite or NaN; NaN throughout where `values` are not that many numbers."""
        if values is None or not _has_numbers(values, len(self.limits.entries)):
            return [math.nan] * len(self.limits.entries)
        return [value if math.isfinite(value) else math.nan for value in np.asarray(values, np.float64).tolist()]

    def _find_stop(self, wanted: Numbers | None, measured: list[float]) -> dict[Correction, list[str]]:
        """Return why the whole robot has to ramp to rest, with the entries that are the cause; empty: it has not to."""
        self._check_tracking(measured)
        if self.tripped:
            return {Correction.TRIPPED: []}
        entries = self.limits.entries
        if wanted is not None:
            if not _has_numbers(wanted, len(entries)):
                return {Correction.SHAPE: []}
            values = zip(entries, np.asarray(wanted, np.float64).tolist(), strict=True)
            if strange := [entry.name for entry, value in values if not math.isfinite(value)]:
                return {Correction.NOT_FINITE: strange}
        blind = [
            entry.name
            for entry, value, known, allowed in zip(entries, measured, self._measured, self._allowed, strict=True)
            if not math.isfinite(value) and _needs_measurement(entry, known, allowed)
        ]
        return {Correction.MEASUREMENT: blind} if blind else {}

    def _check_tracking(self, measured: list[float]) -> None:
        for limiter, value, allowed in zip(self._limiters, measured, self._allowed, strict=True):
            error = abs(limiter.command - value)
            if limiter.moves_position and error > allowed and not self.tripped:
                self.tripped = (
                    f"{limiter.limits.name} is at {value:.4g}, {error:.3g} from its command {limiter.command:.4g}; "
                    f"{allowed:.3g} is allowed"
                )


def measure_longest_ramp(limits: CommandLimits, period_s: float) -> float:
    """Return how long the longest ramp to rest takes, from top speed in any entry, in seconds."""
    return max(Limiter(entry, period_s).count_ramp_ticks() for entry in limits.entries) * period_s


def _has_numbers(values: Numbers, count: int) -> bool:
    """Return whether these are `count` numbers; what comes from outside may be anything."""
    return isinstance(values, np.ndarray) and values.shape == (count,) and values.dtype.kind in "fiu"


def _needs_measurement(entry: EntryLimits, known: bool, allowed: float) -> bool:
    """Return whether an entry moves only while it is measured."""
    if entry.kind == "position":
        return known and math.isfinite(allowed)
    return math.isfinite(entry.low) or math.isfinite(entry.high)


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
