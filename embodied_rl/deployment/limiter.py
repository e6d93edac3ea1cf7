"""The limiter of one entry of a command: it follows what is wanted as fast as all limits allow, and no faster.

A command is the wanted value itself wherever that keeps the limits and still lets the robot stop inside its box.
Otherwise the limiter catches up: it moves so that a stop, begun after this tick, would end exactly on what is wanted, in
the frame that moves with it. This is the time-optimal motion. It arrives with the wanted speed, and does not overshoot.
"""

import math
from collections.abc import Callable
from enum import StrEnum

from embodied_rl.deployment.braking import Brake, find_acceleration, sum_fading
from embodied_rl.deployment.limits import EntryLimits
from embodied_rl.interfaces.errors import UserError

FREE = 1e9
"""What "no limit" means, in the units of the entry per second, and so on: a number that no robot reaches."""
MARGIN = 1e-9
"""By how much braking is planned softer than the limits, so that rounding never asks for more than they allow."""
ADMITTED = 1e-10
"""By how much a wanted motion may exceed a limit, relatively: rounding of numbers like 0.375·0.08."""


class Reason(StrEnum):
    """Why a command is not what was wanted."""

    NOT_FINITE = "not finite"
    MEASUREMENT = "not measured"
    TRIPPED = "tripped"
    BOX = "box"
    SPEED = "speed"
    ACCELERATION = "acceleration"
    JERK = "jerk"
    CATCHING_UP = "catching up"


class Limiter:
    """Limits one entry. All is per tick: for a position in q, for a speed in q/s.

    Args:
        limits: of the entry.
        period_s: of a tick.

    Attributes:
        command: the last one. speed, acceleration: its change in the last tick and the change of that; for an entry that
            is commanded a speed, `speed` is the command.

    Raises:
        UserError: numbers of double precision are too coarse for the jerk limit at this period.
    """

    def __init__(self, limits: EntryLimits, period_s: float) -> None:
        self.limits, self.period_s = limits, period_s
        self.moves_position = limits.kind == "position"
        unit = period_s if self.moves_position else 1.0
        self._speed = min(limits.speed, FREE) * unit
        if self.moves_position:
            self._speed = min(self._speed, limits.high - limits.low)
        self._acceleration = min(min(limits.acceleration, FREE) * period_s * unit, 2 * self._speed)
        self._jerk = min(min(limits.jerk, FREE) * period_s**2 * unit, 2 * self._acceleration)
        edges = [abs(edge) for edge in (limits.low, limits.high) if math.isfinite(edge)] if self.moves_position else []
        grain = 4 * math.ulp(max(edges, default=1e3 if self.moves_position else self._speed))
        if not self._jerk > 1e3 * grain:
            raise UserError(
                f"{limits.name}: jerk={limits.jerk} changes a command by {self._jerk:.3g} in a tick of {period_s} s, "
                f"and numbers have a grain of {grain:.3g} here. Give a larger jerk, or a longer period."
            )
        self._firm_jerk, self._firm_speed = self._jerk - grain, self._speed - grain
        self._firm_acceleration = self._acceleration - grain
        self._brake = Brake(self._firm_acceleration * (1 - MARGIN), self._firm_jerk * (1 - MARGIN))
        self.begin(0.0)

    def begin(self, command: float) -> None:
        """Begin at rest, with this command."""
        self.command, self.speed, self.acceleration = command, 0.0, 0.0
        self._wanted: float | None = None
        self._follows = True

    @property
    def still(self) -> bool:
        """Return whether the command is at rest."""
        return self.speed == 0 and abs(self.acceleration) <= self._jerk

    def count_ramp_ticks(self) -> int:
        """Return how many ticks a ramp to rest takes at most: from top speed, reached with the largest acceleration."""
        acceleration = min(find_acceleration(self._firm_speed, self._firm_jerk), self._firm_acceleration)
        speed, ticks = self._firm_speed - sum_fading(acceleration, self._firm_jerk), 0
        while speed != 0 or abs(acceleration) > self._jerk:
            acceleration = self._brake.choose(speed, acceleration)
            speed, ticks = speed + acceleration, ticks + 1
        return ticks

    def stop(self, measured: float) -> float:
        """Return the next command of a ramp to rest; `measured` is q, where a speed is commanded."""
        self._wanted, self._follows = None, True
        low, high = self._room(measured)
        return self._move(self._correct(self._choose_stop(), low, high), low, high)

    def follow(self, wanted: float, measured: float) -> tuple[float, Reason | None]:
        """Return the next command towards a finite `wanted`, and why it is not that.

        A speed's box is around `measured`, which is finite where there is one.
        """
        low, high = self._room(measured)
        inside = min(max(wanted, low), high) if self.moves_position else min(max(wanted, -self._speed), self._speed)
        before, self._wanted = self._wanted, inside
        reason = self._check(inside, low, high) if inside == wanted else self._name_excess()
        if reason is None and self._follows:
            return self._set(wanted), None
        speed = inside - before if before is not None else 0.0
        acceleration = self._correct(self._choose(inside, speed), low, high)
        grain = 1e-12 * self._jerk + 2 * math.ulp(inside)
        arrives = abs(self._predict(acceleration) - inside) <= grain and self._check(inside, low, high) is None
        self._follows = arrives and inside == wanted
        made = self._set(inside) if arrives else self._move(acceleration, low, high)
        return made, None if made == wanted else reason or Reason.CATCHING_UP

    def _name_excess(self) -> Reason:
        return Reason.BOX if self.moves_position else Reason.SPEED

    def _room(self, measured: float) -> tuple[float, float]:
        """Return the box: of a position; of a speed, how far one tick may go down and up from `measured`, in q/s."""
        if self.moves_position:
            return self.limits.low, self.limits.high
        below, above = (self.limits.low - measured) / self.period_s, (self.limits.high - measured) / self.period_s
        return (min(below, 0.0) if below == below else -math.inf), (max(above, 0.0) if above == above else math.inf)

    def _predict(self, acceleration: float) -> float:
        """Return the command that this acceleration makes."""
        moved = self.speed + acceleration
        return self.command + moved if self.moves_position else moved

    def _check(self, wanted: float, low: float, high: float) -> Reason | None:
        """Return the limit that the command `wanted` breaks now, or would have to break later."""
        speed = wanted - self.command if self.moves_position else wanted
        change = speed - self.speed
        most = self._speed * (1 + ADMITTED)
        if abs(speed) > most:
            return Reason.SPEED
        if abs(change) > self._acceleration * (1 + ADMITTED):
            return Reason.ACCELERATION
        if abs(change - self.acceleration) > self._jerk * (1 + ADMITTED):
            return Reason.JERK
        if abs(speed + math.copysign(sum_fading(abs(change), self._firm_jerk), change)) > most:
            return Reason.SPEED
        stop = self._brake.foresee(speed, change)
        return Reason.BOX if stop.above > high - wanted or stop.below > wanted - low else None

    def _bound(self) -> tuple[float, float]:
        """Return the least and the largest next acceleration under the limits of speed, acceleration and jerk."""
        low = max(self.acceleration - self._firm_jerk, -self._firm_acceleration)
        high = min(self.acceleration + self._firm_jerk, self._firm_acceleration)
        slower = -find_acceleration(self._firm_speed + self.speed, self._firm_jerk)
        faster = find_acceleration(self._firm_speed - self.speed, self._firm_jerk)
        low, high = min(max(low, slower), high), max(min(high, faster), low)
        return low, high

    def _choose_stop(self) -> float:
        if not self.moves_position:
            return self._reach_speed(0.0, 0.0)
        low, high = self._bound()
        return min(max(self._brake.choose(self.speed, self.acceleration), low), high)

    def _choose(self, wanted: float, speed: float) -> float:
        """Return the next acceleration towards `wanted`, which moves by `speed` in each tick."""
        if not self.moves_position:
            return self._reach_speed(wanted, speed if abs(speed) <= self._acceleration else 0.0)
        moving = speed if abs(speed) <= self._speed else 0.0
        ahead = wanted - self.command - moving

        def overshoot(acceleration: float) -> float:
            relative = self.speed - moving + acceleration
            return relative + self._brake.foresee(relative, acceleration).rest - ahead

        low, high = self._bound()
        guess = min(max(self._brake.choose(self.speed - moving, self.acceleration), low), high)
        grain = 1e-13 * self._jerk + 0.5 * math.ulp(ahead)
        return _find_root(overshoot, low, high, guess, grain)

    def _reach_speed(self, wanted: float, change: float) -> float:
        """Return the next acceleration towards a wanted speed, which changes by `change` in each tick."""
        low, high = self._bound()
        missing = wanted - change - self.speed
        reached = change + math.copysign(find_acceleration(abs(missing), self._firm_jerk), missing)
        return min(max(reached, low), high)

    def _correct(self, acceleration: float, low: float, high: float) -> float:
        """Return the acceleration, or the nearest to it after which the robot can still stop inside the box."""
        stop = self._brake.foresee(self.speed + acceleration, acceleration)
        at = self._predict(acceleration)
        if stop.above > high - at:
            return self._hold_back(acceleration, high, 1)
        if stop.below > at - low:
            return self._hold_back(acceleration, low, -1)
        return acceleration

    def _hold_back(self, acceleration: float, edge: float, sign: int) -> float:
        """Return the acceleration that lies nearest to the given one and keeps the edge above (sign 1) or below (-1)."""

        def exceed(candidate: float) -> float:
            stop = self._brake.foresee(self.speed + sign * candidate, sign * candidate)
            return (stop.above if sign > 0 else stop.below) - sign * (edge - self._predict(sign * candidate))

        low, high = sorted(sign * each for each in self._bound())
        strongest = min(max(sign * self._brake.choose(self.speed, self.acceleration), low), high)
        if exceed(low) > 0:
            return sign * min(strongest, sign * acceleration)
        grain = 1e-13 * self._jerk + 0.5 * math.ulp(edge)
        return sign * _find_root(exceed, low, sign * acceleration, strongest, grain, below=True)

    def _move(self, acceleration: float, low: float, high: float) -> float:
        made = self._predict(acceleration)
        return self._set(min(max(made, low), high) if self.moves_position else made)

    def _set(self, command: float) -> float:
        """Take a command, and what it really changes, after rounding."""
        speed = command - self.command if self.moves_position else command
        self.acceleration, self.speed, self.command = speed - self.speed, speed, command
        return command


def _find_root(
    function: Callable[[float], float], low: float, high: float, guess: float, grain: float, below: bool = False
) -> float:
    """Return where an increasing function is 0 within `grain`, or the end that is nearer to that.

    It is the method of false position, in the variant of Illinois.

    Args:
        guess: where to look first. below: return a point where the function is not positive, if there is one.
    """
    at_high = function(high)
    if at_high <= 0:
        return high
    at_low = function(low)
    if at_low >= 0:
        return low
    point = guess if low < guess < high else low + (high - low) * at_low / (at_low - at_high)
    side = 0
    for _ in range(60):
        value = function(point)
        if value <= 0 and value >= -grain or (not below and value <= grain and value > 0):
            return point
        if value > 0:
            high, at_high, at_low, side = point, value, at_low / 2 if side > 0 else at_low, 1
        else:
            low, at_low, at_high, side = point, value, at_high / 2 if side < 0 else at_high, -1
        if high - low <= 1e-15 * (abs(low) + abs(high)):
            break
        point = low + (high - low) * at_low / (at_low - at_high)
    return low
