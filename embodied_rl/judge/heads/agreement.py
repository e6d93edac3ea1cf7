"""Agreement of a head with the judge on held-out episodes.

Agreement is Harrell's concordance: the share of pairs of observations in the same order, of the pairs with different
scores of the judge; equal predictions count one half. Chance level is one half, for any scales.

Shapes: n observations, E episodes.
"""

import math
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array

DRAWS = 200
"""Resamplings of the interval."""
APART = 0.1
"""Minimum difference of distinct scores."""
FEW = 5
"""Minimum number of episodes for an interval."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a head with the judge; NaN where it is undefined.

    Attributes:
        share: of pairs in the same order.
        low, high: its 95 % interval, from resampling whole episodes.
        error: mean absolute difference between predictions and scores.
    """

    share: float
    low: float
    high: float
    error: float


def measure_agreement(predicted: Array, score: Array, episode: Array, seed: int) -> Agreement:
    """Compare predictions with scores of episodes (int64), [n] each; predictions that are NaN are left out."""
    known = ~np.isnan(predicted)
    predicted, score, episode = predicted[known], score[known], episode[known]
    numbers, place = np.unique(episode, return_inverse=True)
    episodes = len(numbers)
    said = score[:, None] - score
    apart = np.abs(said) > APART
    same = 0.5 + 0.5 * np.sign(predicted[:, None] - predicted) * np.sign(said)
    belongs = np.zeros((len(place), episodes))
    belongs[np.arange(len(place)), place] = 1
    alike = belongs.T @ (same * apart) @ belongs  # pairs in the same order by their two episodes, [E, E]
    pairs = belongs.T @ apart.astype(np.float64) @ belongs
    low = high = math.nan
    if episodes >= FEW:
        weights = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), DRAWS)
        drawn = [_divide(each @ alike @ each, each @ pairs @ each) for each in weights]
        if drawn := [each for each in drawn if not math.isnan(each)]:
            low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    error = float(np.abs(predicted - score).mean()) if len(score) else math.nan
    return Agreement(_divide(alike.sum(), pairs.sum()), low, high, error)


def _divide(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan
