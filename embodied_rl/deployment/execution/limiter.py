"""Limiter of one entry of a command: follows the target as fast as all limits allow.

The command is the target itself if that keeps the limits and a stop from there stays inside the box. Otherwise the
limiter catches up: it moves so that a stop that began after this tick would end exactly on the target, in the frame
that moves with the target. This is the motion of least time; it arrives with the target's speed, without overshoot.
"""

import math
from collections.abc import Callable
from enum import StrEnum

from embodied_rl.deployment.execution.braking import StopPlanner, find_acceleration, sum_fading
from embodied_rl.deployment.execution.limits import EntryLimits
from embodied_rl.interfaces.errors import UserError

FREE = 1e9
"""Limit of an entry without a limit, in its units: more than a robot reaches."""
MARGIN = 1e-9
"""Relative margin of planned stops to the limits, larger than rounding errors."""
ADMITTED = 1e-10
"""Relative excess of a target over a limit that is accepted: the rounding of numbers such as 0.375·0.08."""
ROUNDS = 200
"""Largest number of evaluations of `find_root`, more than the 53 bisections of double precision."""


class Correction(StrEnum):
    """Why a command differs from its target."""

    SHAPE = "not one number per entry"
    NOT_FINITE = "not a finite number"
    MEASUREMENT = "not measured"
    BOX = "box"
    SPEED = "speed"
    ACCELERATION = "acceleration"
    JERK = "jerk"
    CATCHING_UP = "catching up"


class Limiter:
    """Limiter of one entry.

    Attributes:
        command: the last one.
        speed: of the command: its change in the last tick, in q; or, where a speed is commanded, the command itself.
        acceleration: the change of `speed` in the last tick.
        drift: the dead-reckoned q minus the measured one; the box of a speed holds for both. Set before each tick.

    Raises:
        UserError: double precision is too coarse for the jerk limit at this period.
    """

    def __init__(self, limits: EntryLimits, period_s: float) -> None:
        self.limits, self.moves_position = limits, limits.kind == "position"
        self._period = period_s
        unit = period_s if self.moves_position else 1.0
        # A limit that the one below makes idle is lowered to it: all are finite then, and jerk ≤ 2·acceleration.
        width = limits.high - limits.low if self.moves_position else math.inf
        self._speed = min(min(limits.speed, FREE) * unit, width)
        self._acceleration = min(min(limits.acceleration, FREE) * unit * period_s, 2 * self._speed)
        self._jerk = min(min(limits.jerk, FREE) * unit * period_s**2, 2 * self._acceleration)
        edges = [abs(each) for each in (limits.low, limits.high) if math.isfinite(each)]
        largest = max(edges, default=1e3) if self.moves_position else self._speed
        grain = 4 * math.ulp(largest)  # the largest rounding error of a second difference of commands
        if self._jerk < 1e3 * grain:
            raise UserError(
                f"{limits.name}: jerk={limits.jerk:g} changes a command by {self._jerk:.2g} within a period of "
                f"{period_s:g} s, and numbers near {largest:g} are too coarse for that. Give a larger jerk, or a "
                "longer period.",
                code="jerk-too-small",
            )
        self._firm_speed, self._firm_acceleration = self._speed - grain, self._acceleration - grain
        self._firm_jerk = self._jerk - grain
        self._planner = StopPlanner(self._firm_acceleration * (1 - MARGIN), self._firm_jerk * (1 - MARGIN))
        self.begin(0.0)

    def begin(self, command: float) -> None:
        """Start at rest, with this command."""
        self.command, self.speed, self.acceleration, self.drift = command, 0.0, 0.0, 0.0
        self._wanted: float | None = None
        self._follows = True

    @property
    def still(self) -> bool:
        """Return whether the command is at rest, and may stay so."""
        return self.speed == 0 and abs(self.acceleration) <= self._jerk

    def count_ramp_ticks(self) -> int:
        """Return the largest number of ticks of a ramp to rest: from top speed, with the largest acceleration.

        This state is reached by reversing from top speed in the other direction; one tick is added for slower ramps.
        """
        acceleration = min(find_acceleration(2 * self._firm_speed, self._firm_jerk), self._firm_acceleration)
        speed, ticks = self._firm_speed - sum_fading(acceleration, self._firm_jerk), 1
        while speed != 0 or abs(acceleration) > self._jerk:
            acceleration = self._planner.next_acceleration(speed, acceleration)
            speed, ticks = speed + acceleration, ticks + 1
        return ticks

    def stop(self, measured: float) -> float:
        """Return the next command of a ramp to rest; `measured` as in `follow`."""
        self._wanted, self._follows = None, True
        low, high = self._find_bounds(measured)
        least, most = self._bound()
        if self.moves_position:
            chosen = self._planner.next_acceleration(self.speed, self.acceleration)
        else:
            chosen = self._reach_speed(0.0, 0.0)
        return self._move(self._limit_for_stop(min(max(chosen, least), most), low, high), low, high)

    def follow(self, wanted: float, measured: float) -> tuple[float, Correction | None]:
        """Return the next command towards a finite target, and why it differs from it.

        `measured` is q, for the box of a speed; NaN: there is no box. It is not used for a position.
        """
        low, high = self._find_bounds(measured)
        inside = min(max(wanted, low), high) if self.moves_position else min(max(wanted, -self._speed), self._speed)
        before, self._wanted = self._wanted, inside
        reason = self._check(inside, low, high)
        if reason is None and self._follows and inside == wanted:
            return self._take(wanted), None
        chosen = self._track(inside, 0.0 if before is None else inside - before)
        acceleration = self._limit_for_stop(chosen, low, high)
        reason = reason if acceleration == chosen else Correction.BOX
        near = abs(self._predict(acceleration) - inside) <= 1e-12 * self._jerk + 2 * math.ulp(inside)
        self._follows = near and reason is None
        made = self._take(inside) if self._follows else self._move(acceleration, low, high)
        if made == wanted:
            return made, None
        if inside != wanted:
            reason = Correction.BOX if self.moves_position else Correction.SPEED
        return made, reason or Correction.CATCHING_UP

    def _find_bounds(self, measured: float) -> tuple[float, float]:
        """Return the box of a position, or the speeds that reach the edges of the box within one tick."""
        if self.moves_position:
            return self.limits.low, self.limits.high
        if math.isnan(measured):
            return -math.inf, math.inf
        below = self.limits.low - min(measured, measured + self.drift)
        above = self.limits.high - max(measured, measured + self.drift)
        return min(below, 0.0) / self._period, max(above, 0.0) / self._period

    def _predict(self, acceleration: float) -> float:
        """Return the command that follows from an acceleration."""
        speed = self.speed + acceleration
        return self.command + speed if self.moves_position else speed

    def _check(self, wanted: float, low: float, high: float) -> Correction | None:
        """Return the limit that the command `wanted` violates now, or must violate later."""
        speed = wanted - self.command if self.moves_position else wanted
        acceleration = speed - self.speed
        if abs(speed) > self._speed * (1 + ADMITTED):
            return Correction.SPEED
        if abs(acceleration) > self._acceleration * (1 + ADMITTED):
            return Correction.ACCELERATION
        if abs(acceleration - self.acceleration) > self._jerk * (1 + ADMITTED):
            return Correction.JERK
        growth = math.copysign(sum_fading(abs(acceleration), self._firm_jerk), acceleration)
        if abs(speed + growth) > self._speed * (1 + ADMITTED):
            return Correction.SPEED
        stop = self._planner.stopping_points(speed, acceleration)
        return Correction.BOX if stop.above > high - wanted or stop.below > wanted - low else None

    def _bound(self) -> tuple[float, float]:
        """Return the smallest and the largest next acceleration under the limits of jerk, acceleration and speed."""
        low = max(self.acceleration - self._firm_jerk, -self._firm_acceleration)
        high = min(self.acceleration + self._firm_jerk, self._firm_acceleration)
        slower = -find_acceleration(self._firm_speed + self.speed, self._firm_jerk)
        faster = find_acceleration(self._firm_speed - self.speed, self._firm_jerk)
        return min(max(low, slower), high), max(min(high, faster), low)

    def _track(self, wanted: float, motion: float) -> float:
        """Return the next acceleration towards a target that moved by `motion` in this tick."""
        if not self.moves_position:
            return self._reach_speed(wanted, motion if abs(motion) <= self._acceleration else 0.0)
        motion = motion if abs(motion) <= self._speed else 0.0
        ahead = wanted - self.command - motion

        def overshoot(acceleration: float) -> float:
            speed = self.speed - motion + acceleration
            return speed + self._planner.stopping_points(speed, acceleration).rest - ahead

        low, high = self._bound()
        guess = min(max(self._planner.next_acceleration(self.speed - motion, self.acceleration), low), high)
        return find_root(overshoot, low, high, guess, 1e-13 * self._jerk + 0.5 * math.ulp(ahead))

    def _reach_speed(self, wanted: float, motion: float) -> float:
        """Return the next acceleration towards a target speed that changed by `motion` in this tick."""
        low, high = self._bound()
        missing = wanted - motion - self.speed
        chosen = motion + math.copysign(find_acceleration(abs(missing), self._firm_jerk), missing)
        return min(max(chosen, low), high)

    def _limit_for_stop(self, acceleration: float, low: float, high: float) -> float:
        """Return the nearest acceleration after which a stop stays inside the box."""
        at = self._predict(acceleration)
        stop = self._planner.stopping_points(self.speed + acceleration, acceleration)
        if stop.above > high - at:
            return self._clip_to_bound(acceleration, high, 1)
        return self._clip_to_bound(acceleration, low, -1) if stop.below > at - low else acceleration

    def _clip_to_bound(self, acceleration: float, edge: float, sign: int) -> float:
        """Return the nearest acceleration after which a stop stays below the edge; above it for sign -1."""
        grain = 1e-13 * self._jerk + 2 * math.ulp(edge)

        def exceed(candidate: float) -> float:
            stop = self._planner.stopping_points(self.speed + sign * candidate, sign * candidate)
            reach = stop.above if sign > 0 else stop.below
            return reach - sign * (edge - self._predict(sign * candidate)) + grain

        low, high = sorted(sign * each for each in self._bound())
        shortest = min(max(sign * self._planner.next_acceleration(self.speed, self.acceleration), low), high)
        guess = min(shortest, sign * acceleration)
        if exceed(low) > 0:  # a measurement jumped: the edge cannot be kept, so the shortest stop is taken
            return sign * guess
        return sign * find_root(exceed, low, sign * acceleration, guess, grain)

    def _move(self, acceleration: float, low: float, high: float) -> float:
        """Set the command of an acceleration; the box of a position removes a rounding error."""
        made = self._predict(acceleration)
        return self._take(min(max(made, low), high) if self.moves_position else made)

    def _take(self, command: float) -> float:
        """Set the command; speed and acceleration are its true differences, with rounding."""
        speed = command - self.command if self.moves_position else command
        self.acceleration, self.speed, self.command = speed - self.speed, speed, command
        return command


def find_root(function: Callable[[float], float], low: float, high: float, guess: float, grain: float) -> float:
    """Return where an increasing function is 0 within `grain`, between `low` and `high`, or the end nearest to that.

    Uses false position in the Illinois variant, from `guess`; each fourth round bisects, for functions with a sharp
    bend. If rounding prevents such a value, returns the last point below.
    """
    value = function(guess)
    if abs(value) <= grain:
        return guess
    if value > 0:
        high, at_high, at_low = guess, value, function(low)
        if at_low >= 0:
            return low
    else:
        low, at_low, at_high = guess, value, function(high)
        if at_high <= 0:
            return high
    side = 0
    for number in range(ROUNDS):
        point = low + (high - low) * (at_low / (at_low - at_high))
        if number % 4 == 3 or not low < point < high:
            point = (low + high) / 2
        if not low < point < high:
            break
        value = function(point)
        if abs(value) <= grain:
            return point
        if value > 0:
            high, at_high, at_low, side = point, value, at_low / 2 if side > 0 else at_low, 1
        else:
            low, at_low, at_high, side = point, value, at_high / 2 if side < 0 else at_high, -1
    return low
