"""The root of an increasing function."""

from collections.abc import Callable

ROUNDS = 200
"""Enough for the 53 bisections that double precision has."""


def find_root(function: Callable[[float], float], low: float, high: float, guess: float, grain: float) -> float:
    """Return where an increasing function is 0 within `grain`, between `low` and `high`, or the end nearest to that.

    It is the method of false position, in the Illinois variant; each fourth round bisects, for functions with a sharp
    bend. Where rounding keeps it from such a value, it returns the last point below.

    Args:
        guess: where to look first, between the ends.
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
