"""Shortest stops of sampled motions under limits of speed, acceleration and jerk: exact, in closed form.

All is per tick. With x a position, v = x - x₋₁ is the speed, a = v - v₋₁ the acceleration; |a - a₋₁| ≤ j and |a| ≤ A.

1. While a > 0 fades to 0 as fast as the jerk allows, the speed still grows by f(a) = (a-j) + (a-2j) + …, its positive
   terms. So v + f(a) ≤ V keeps the speed limit from then on, and with g(a) = a + f(a) the largest next a is g⁻¹(V - v).
2. The shortest stop that does not reverse takes in each tick the largest braking b = -a that can fade before v is 0:
   b' = min(b + j, A, g⁻¹(v)). No other stop has a smaller v in any of its ticks, by induction over the three branches.
3. Its ticks are b+j, b+2j … up to a peak, then A, one tick in between, then fading by j: sums of polynomials. With
   b = (p + r)·j, p whole, the peak (P + r)·j is the largest with (P + r)² ≤ v/j + p(p+1)/2 + rp + r², at most A.
4. A motion is safe where this stop stays inside the box. The next state of the stop is safe as well, because the rest
   of a stop is the stop from there. So there is always a next command within all limits at once; nothing is clipped.
"""

import math
from typing import NamedTuple


class Stop(NamedTuple):
    """Stop, relative to the present position: where it rests, and the largest excursions above and below."""

    rest: float
    above: float
    below: float


def sum_fading(acceleration: float, jerk: float) -> float:
    """Return f, the growth of the speed while a positive acceleration fades to 0; 0 for a negative one."""
    if acceleration <= jerk:
        return 0.0
    ticks = math.floor(acceleration / jerk)
    return ticks * acceleration - jerk * ticks * (ticks + 1) / 2


def find_acceleration(growth: float, jerk: float) -> float:
    """Return g⁻¹, the acceleration whose fading, this tick included, lets the speed grow by `growth`."""
    if growth <= jerk:
        return growth
    ticks = math.floor((math.sqrt(1 + 8 * growth / jerk) - 1) / 2)
    return growth / (ticks + 1) + jerk * ticks / 2


class StopPlanner:
    """Planner of the shortest stop under one pair of limits, per tick.

    Args:
        acceleration, jerk: the largest ones; finite, above 0, with jerk ≤ 2·acceleration.
    """

    def __init__(self, acceleration: float, jerk: float) -> None:
        self.acceleration, self.jerk = acceleration, jerk
        self._most = acceleration / jerk
        self._fading = self._most + sum_fading(self._most, 1.0)

    def next_acceleration(self, speed: float, acceleration: float) -> float:
        """Return the next acceleration of the shortest stop."""
        sign = 1 if self._ends_forward(speed, acceleration) else -1
        braking = min(self.acceleration, self.jerk - sign * acceleration)
        if sign * speed >= 0:
            braking = min(braking, find_acceleration(sign * speed, self.jerk))
        return -sign * braking

    def stopping_points(self, speed: float, acceleration: float) -> Stop:
        """Return where the shortest stop ends, and its largest excursions."""
        sign = 1 if self._ends_forward(speed, acceleration) else -1
        v, b = sign * speed / self.jerk, -sign * acceleration / self.jerk
        rest = self._sum_stop(v, b) * self.jerk
        along, back = max(rest, 0.0), 0.0
        if v < 0:  # it goes back before its fading acceleration reverses it
            middle = -b - 0.5
            ticks = max(math.ceil(middle - math.sqrt(max(middle * middle + 2 * v, 0.0))) - 1, 0)
            back = -(ticks * v + -b * ticks * (ticks + 1) / 2 - ticks * (ticks + 1) * (ticks + 2) / 6) * self.jerk
        return Stop(rest, along, back) if sign > 0 else Stop(-rest, back, along)

    def _ends_forward(self, speed: float, acceleration: float) -> bool:
        """Return whether the speed of a stop is positive at its end; it may be negative at first."""
        if acceleration >= 0:
            return speed + sum_fading(acceleration, self.jerk) > 0
        return speed >= sum_fading(-acceleration, self.jerk)

    def _sum_stop(self, v: float, b: float) -> float:
        """Return the distance of a stop that ends forward; speed v and braking b in units of the jerk."""
        p = math.floor(b)
        r = b - p
        peak = math.floor(math.sqrt(max(v + p * (p + 1) / 2 + r * p + r * r, 0.0)) - r)
        m = max(min(peak, math.floor(self._most - r)), p, -1) - p
        total = m * v - b * m * (m + 1) / 2 - m * (m + 1) * (m + 2) / 6
        v -= m * b + m * (m + 1) / 2
        if v >= self._fading:
            k = math.floor((v - self._fading) / self._most) + 1
            total += k * v - self._most * k * (k + 1) / 2
            v -= k * self._most
        n = math.floor((math.sqrt(1 + 8 * max(v, 0.0)) - 1) / 2)
        r = v / (n + 1) - n / 2
        return total + (n + 1) * n * (n - 1) / 6 + r * n * (n + 1) / 2
