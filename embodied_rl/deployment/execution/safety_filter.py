"""Safety filter: the last stage before the robot; every command passes it. Pure, with NumPy only.

In each tick it turns any target into a command that is finite and inside its box, and from which the robot can stop
inside the box. Speed, acceleration and jerk of the commands keep their limits, as differences at the period of a tick,
from `begin` on, also at splices, takeovers and stops.

A target within all limits passes unchanged, to the bit. For a speed the filter assumes that the robot moves as it is
commanded; the caller passes the difference to the measured motion as `drift`.

Shapes: `A` action entries.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limiter import Correction, Limiter
from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.interfaces.errors import UserError

Numbers = NDArray[np.float64]
OUTSIDE = 1e-3
"""Distance outside its box at which a position may start, as a share of the box: noise of a robot at its edge."""


@dataclass(frozen=True)
class FilteredCommand:
    """Command, float64 [A]: a position, or a speed for velocities and displacements; whether it is at rest.

    `why` is what was changed and for which entries; empty if the target passed unchanged.
    """

    command: Numbers
    why: str
    still: bool


class SafetyFilter:
    """Safety filter of one robot, with a tick of `period_s`.

    Raises:
        UserError: an invalid period, or limits too fine for double precision.
    """

    def __init__(self, limits: CommandLimits, period_s: float) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise UserError(f"period_s={period_s} must be above 0.", code="value-out-of-range")
        self._entries = limits.entries
        self._limiters = [Limiter(entry, period_s) for entry in limits.entries]
        self._begun = False

    @property
    def command(self) -> Numbers:
        """Return the last command, float64 [A]."""
        return np.array([limiter.command for limiter in self._limiters])

    def begin(self, measured: Numbers, start: Numbers | None = None) -> None:
        """Start at rest, at the measured position, float64 [A]; NaN for entries that are not measured.

        Args:
            start: float64 [A], where these entries start; None: at the value in their box that is nearest to 0.

        Raises:
            UserError: a position is outside its box, so that every command would be a jump.
        """
        values = self._read(measured)
        given = [math.nan] * len(values) if start is None else self._read(start)
        begun = []
        for entry, known, other in zip(self._entries, values, given, strict=True):
            known = known if math.isfinite(known) else other
            inside = min(max(known if math.isfinite(known) else 0.0, entry.low), entry.high)
            if entry.kind != "position":
                inside = 0.0
            elif math.isfinite(known) and abs(known - inside) > OUTSIDE * (entry.high - entry.low):
                raise UserError(
                    f"{entry.name} is at {known:.4g}, outside its limits {entry.low:g} to {entry.high:g}. Move the "
                    "robot inside, by hand, or correct the limits.",
                    code="entry-outside-box",
                )
            begun.append(inside)
        for limiter, value in zip(self._limiters, begun, strict=True):
            limiter.begin(value)
        self._begun = True

    def step(self, wanted: Numbers | None, measured: Numbers | None, drift: Numbers | None = None) -> FilteredCommand:
        """Return the command of this tick. Raises `RuntimeError` before `begin`.

        Args:
            wanted: float64 [A], the target: a position, or a speed for velocities and displacements; None: rest.
            measured: float64 [A], q of each entry; NaN if it is not measured. None: none is measured.
            drift: float64 [A], the dead-reckoned q minus the measured one: the box of a speed holds for both positions
                and all between them. None: 0.
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
        """Return A floats, finite or NaN; all NaN if `values` are not A numbers."""
        if values is None or not _has_numbers(values, len(self._entries)):
            return [math.nan] * len(self._entries)
        return [value if math.isfinite(value) else math.nan for value in np.asarray(values, np.float64).tolist()]

    def _find_stop(self, wanted: Numbers | None, measured: list[float]) -> str:
        """Return why the whole robot must ramp to rest, with the causing entries; empty: it need not."""
        if wanted is not None:
            if not _has_numbers(wanted, len(self._entries)):
                return Correction.SHAPE
            values = zip(self._entries, np.asarray(wanted, np.float64).tolist(), strict=True)
            if strange := [entry.name for entry, value in values if not math.isfinite(value)]:
                return f"{Correction.NOT_FINITE}: {', '.join(strange)}"
        unmeasured = [
            entry.name
            for entry, value in zip(self._entries, measured, strict=True)
            if math.isnan(value)
            and entry.kind != "position"
            and (math.isfinite(entry.low) or math.isfinite(entry.high))  # its box needs a measurement
        ]
        return f"{Correction.MEASUREMENT}: {', '.join(unmeasured)}" if unmeasured else ""


def measure_longest_ramp(limits: CommandLimits, period_s: float) -> float:
    """Return the duration of the longest ramp to rest, from top speed in any entry, in seconds."""
    return max(Limiter(entry, period_s).count_ramp_ticks() for entry in limits.entries) * period_s


def _has_numbers(values: Numbers, count: int) -> bool:
    """Return whether the values are an array of `count` numbers; they may be of any type."""
    return isinstance(values, np.ndarray) and values.shape == (count,) and values.dtype.kind in "fiu"
