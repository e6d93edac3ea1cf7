"""Aggregate success over families and seeds with bootstrap intervals (Agarwal et al., arXiv:2108.13264, rliable).

Shapes: `R` seeds, `F` families.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.errors import UserError

_REPETITIONS = 10_000


@dataclass(frozen=True)
class Interval:
    """An aggregate and its 95 % interval: low = high = None where a single seed shows no variation."""

    value: float
    low: float | None
    high: float | None


def interquartile_mean(scores: Sequence[Sequence[float]]) -> Interval:
    """Compute the interquartile mean of all scores, with an interval over seeds.

    The lowest and the highest quarter, rounded down to whole scores, are left out, so that neither one solved nor one
    hopeless family decides.

    Args:
        scores: [R, F], one row for each seed.

    Raises:
        UserError: there is no score, or the rows are not equally long.
    """
    return _with_interval(scores, lambda resampled: _trimmed_mean(resampled)[:, None])[0]


def performance_profile(scores: Sequence[Sequence[float]], levels: Sequence[float]) -> list[Interval]:
    """Compute for each level the share of all scores above it, with a pointwise interval over seeds.

    Args:
        scores: [R, F], one row for each seed.
        levels: of the scores.

    Raises:
        UserError: there is no score, or the rows are not equally long.
    """
    above = np.asarray(levels)[:, None]
    return _with_interval(scores, lambda resampled: (resampled.reshape(len(resampled), 1, -1) > above).mean(axis=2))


def _trimmed_mean(resampled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the mean of the middle half of scores [K, R, F] for each k."""
    ordered = np.sort(resampled.reshape(len(resampled), -1), axis=1)
    cut = ordered.shape[1] // 4
    return ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)


def _with_interval(
    scores: Sequence[Sequence[float]], aggregate: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> list[Interval]:
    """Return aggregates with percentile intervals of a bootstrap that draws seeds within each family (stratified).

    Args:
        scores: [R, F].
        aggregate: scores [K, R, F] → aggregates [K, N].
    """
    if len({len(row) for row in scores}) != 1 or not scores[0]:
        message = f"scores must have equally many families in each seed, at least one: {[len(row) for row in scores]}."
        raise UserError(message, code="scores-ragged")
    known = np.asarray(scores, dtype=np.float64)
    values = aggregate(known[None])[0]
    if len(known) == 1:
        return [Interval(float(value), None, None) for value in values]
    seeds = np.random.default_rng(0).integers(len(known), size=(_REPETITIONS, *known.shape))
    drawn = aggregate(np.take_along_axis(known[None], seeds, axis=1))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return [Interval(*map(float, each)) for each in zip(values, low, high, strict=True)]
