"""Motion to a return point: a straight minimum-jerk line in the quantities of the action's entries.

The line lasts T, so that no entry exceeds a share of its limits: for a distance D the largest speed is 1.875 D/T,
the largest acceleration 5.774 D/T², the largest jerk 60 D/T³ (Flash and Hogan, 1985). Entries that are commanded a
speed get the line's speed plus a feedback term on the distance from the line. Shapes: `A` action entries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.return_points import ReturnPoint
from embodied_rl.deployment.execution.tick import Mode, MotionStep

_PEAKS = (("speed", 1.875, 1), ("acceleration", 5.774, 2), ("jerk", 60.0, 3))


@dataclass(frozen=True)
class ReturnSettings:
    """Settings of the motion to a return point.

    Attributes:
        tolerance: [A], largest distance of every measured entry from the point at arrival, in q.
        tracking_error: [A], distance of an entry from the line at which the motion is aborted; `inf` for never.
        share: of the limits that the line uses, above 0, 1 at most.
        gain: speed per distance from the line, in 1/s.
        settle_s: longest time after T until arrival.
    """

    tolerance: tuple[float, ...]
    tracking_error: tuple[float, ...]
    share: float = 0.5
    gain: float = 4.0
    settle_s: float = 3.0


def choose_distances(limits: CommandLimits, tracking_error: Sequence[float], share: float) -> tuple[float, ...]:
    """Return [A]: the robot's tracking error where it is finite, else a share of the entry's box."""
    boxes = [entry.high - entry.low for entry in limits.entries]
    return tuple(
        error if math.isfinite(error) else share * box for error, box in zip(tracking_error, boxes, strict=True)
    )


class ReturnMotion:
    """Motion to a return point; a `embodied_rl.deployment.execution.tick.Motion`. `arrived`: it ended at the point."""

    mode = Mode.RETURN

    def __init__(self, point: ReturnPoint, limits: CommandLimits, settings: ReturnSettings) -> None:
        self.point, self._limits, self._settings = point, limits, settings
        self.words = f"go to the return point '{point.name}' ({point.failures} of {point.tries} tries failed there)"
        self.arrived = False
        self._position = np.array([entry.kind == "position" for entry in limits.entries])
        self._given = np.array([value is not None for value in point.pose])
        self._target = np.array([math.nan if value is None else value for value in point.pose])
        self._start = np.zeros(len(point.pose))
        self._since = self._duration = 0.0
        self._at_end = False

    def begin(self, measured: NDArray[np.float64], commanded: NDArray[np.float64], now_s: float) -> str:
        unmeasured = self._given & ~self._position & np.isnan(measured)
        if unmeasured.any():
            name = self._limits.entries[int(np.argmax(unmeasured))].name
            return f"'{name}' is moved by its speed, and its position is not measured"
        self._start = np.where(self._position, commanded, np.nan_to_num(measured))
        self._target = np.where(self._given, self._target, self._start)
        self._since, self._duration, self._at_end, self.arrived = now_s, 0.0, False, False
        for limit, peak, order in _PEAKS:  # the shortest duration within the share of every limit
            most = self._settings.share * np.array(self._limits.list_values(limit))
            lasts = (peak * np.abs(self._target - self._start) / most) ** (1 / order)
            self._duration = max(self._duration, float(lasts.max()))
        return ""

    def step(self, measured: NDArray[np.float64], now_s: float) -> MotionStep:
        passed, settings = now_s - self._since, self._settings
        x = min(max(passed / self._duration, 0.0), 1.0) if self._duration else 1.0
        share, rate = x**3 * (10 - 15 * x + 6 * x**2), 30 * x**2 * (1 - x) ** 2
        way = self._target - self._start
        place, speed = self._start + share * way, way * (rate / self._duration if self._duration else 0.0)
        away = np.abs(np.where(self._given & ~np.isnan(measured), place - measured, 0))
        if (away > settings.tracking_error).any():
            return MotionStep(None, failed=self._explain("left the line by", away, int(np.argmax(away))))
        left = np.where(self._given & ~np.isnan(measured), np.abs(self._target - measured), 0)
        if self._at_end:  # the end was commanded once, which counts for entries that are not measured
            if (left <= settings.tolerance).all():
                self.arrived = True
                return MotionStep(None, done=True)
            if passed > self._duration + settings.settle_s:
                worst = int(np.argmax(left - np.array(settings.tolerance)))
                return MotionStep(None, failed=self._explain("did not arrive, and is away by", left, worst))
        self._at_end = passed >= self._duration
        back = settings.gain * np.where(np.isnan(measured), 0, place - measured)
        return MotionStep(np.where(self._position, place, np.where(self._given, speed + back, 0)))

    def _explain(self, what: str, distance: NDArray[np.float64], entry: int) -> str:
        return f"'{self._limits.entries[entry].name}' {what} {distance[entry]:.3g}"
