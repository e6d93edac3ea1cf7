"""The root of an increasing function."""

from collections.abc import Callable

ROUNDS = 60
"""More than any root needed; bisection would need 53."""


def find_root(
    function: Callable[[float], float], low: float, high: float, guess: float, grain: float, below: bool = False
) -> float:
    """Return where an increasing function is 0, between `low` and `high`, or the end that is nearest to that.

    It is the method of false position, in the Illinois variant.

    Args:
        guess: where to look first, between the ends.
        grain: a value that is small enough. below: return a point where the function is not above 0, if there is one.
    """
    value = function(guess)
    if -grain <= value <= (0.0 if below else grain):
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
    for _ in range(ROUNDS):
        point = low + (high - low) * (at_low / (at_low - at_high))
        if not low < point < high:
            break
        value = function(point)
        if -grain <= value <= (0.0 if below else grain):
            return point
        if value > 0:
            high, at_high, at_low, side = point, value, at_low / 2 if side > 0 else at_low, 1
        else:
            low, at_low, at_high, side = point, value, at_high / 2 if side < 0 else at_high, -1
    return low
