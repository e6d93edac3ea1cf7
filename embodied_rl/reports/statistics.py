"""Intervals and tests for success rates. SciPy is imported only where it is used."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from embodied_rl.interfaces.errors import UserError

Z95 = NormalDist().inv_cdf(0.975)


def wilson_interval(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Compute Wilson's score interval for a proportion (Wilson, 1927): all p with |p̂ - p| ≤ z √(p (1 - p) / n).

    No trials give (0, 1). By default z is that of 95 %.
    """
    assert 0 <= successes <= n, f"{successes} successes of {n}"
    if n == 0:
        return 0.0, 1.0
    rate, weight = successes / n, z * z / n
    centre = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / n + weight / (4 * n))
    # For 0 or n successes the interval must end exactly at 0 or 1; rounding may miss that.
    return (0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == n else min(1.0, centre + half))


def is_as_good(rate: float, best: float, n: int) -> bool:
    """Return whether a rate is at most one standard error below the best of several rates, each from n trials.

    The highest of many noisy rates is mostly luck. If candidates improve with time, the newest candidate that passes is
    the better choice (the one-standard-error rule: Breiman, Friedman, Olshen, Stone, "CART", 1984).
    """
    return rate >= wilson_interval(round(best * n), n, z=1.0)[0]


@dataclass(frozen=True)
class PairedTest:
    """The exact McNemar test of two policies on the same episodes, with the episodes that only one of them solved."""

    episodes: int
    only_first: int
    only_second: int
    p_value: float


def mcnemar_test(first: Sequence[bool], second: Sequence[bool]) -> PairedTest:
    """Run the exact, two-sided McNemar test: for equal policies each discordant pair is a fair coin (McNemar, 1947).

    Args:
        first, second: success of the two policies, per episode, in the same order.
    """
    pairs = list(zip(first, second, strict=True))
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    discordant, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(discordant, k) for k in range(fewer + 1))
    p_value = min(1.0, 2 * tail / 2**discordant)  # integers until the division, which floats would overflow
    return PairedTest(len(pairs), only_first, only_second, p_value)


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests, so that the chance of one false find among all is bounded (Holm, 1979).

    Returns:
        For each p-value the least level at which its test, among all of them, is rejected; in the order given.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its 95 % interval; a single seed has no interval (low = high = None)."""

    mean: float
    low: float | None
    high: float | None
    count: int


def mean_interval(values: Sequence[float]) -> Mean:
    """Compute a mean with Student's 95 % interval, mean ± t s / √n, which is valid for the usual three to five seeds.

    Raises:
        UserError: `values` is empty.
    """
    if not values:
        raise UserError("A mean needs at least one value.", code="mean-without-values")
    count, mean = len(values), fmean(values)
    if count == 1:
        return Mean(mean, None, None, 1)
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, 0.975)) * stdev(values) / math.sqrt(count)
    return Mean(mean, mean - half, mean + half, count)


def find_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Compute the difference of two means with its 95 % interval (Welch, 1947): difference, low, high.

    Each side has two values at least. Both sides without variance give an interval of no width.
    """
    from scipy import stats

    difference = fmean(first) - fmean(second)
    if len({*first}) == len({*second}) == 1:
        return difference, difference, difference
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # one side without variance is exact
        interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return difference, float(interval.low), float(interval.high)
