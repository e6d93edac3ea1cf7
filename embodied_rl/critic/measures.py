"""Measures of a scorer: pure functions of its scores and the truth.

Intervals resample whole episodes, because frames of one episode are not independent. A resample is a row of weights:
how often each episode was drawn. Measures are computed with weights.

Shapes: n episodes, r resamples, t frames of an episode, m samples of any number of episodes.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.reports.statistics import wilson_interval

RESAMPLES = 1000
LEAST_FRAMES = 3
"""Minimum number of frames of a rank correlation."""
BINS = 10


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95 % interval.

    Attributes:
        value: None where nothing could be measured.
        low, high: None where the value is, or where a single episode gives no interval.
        count: of how many sequences, episodes or frames it is made.
        constant: number of sequences with equal scores, which have no order and count as 0.
        left_out: sequences without a correlation: fewer than three valid scores, or a truth that never changes.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    constant: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class ReliabilityBin:
    """What the truth was where scores were within `low` … `high`; means are None in an empty bin."""

    low: float
    high: float
    count: int
    said: float | None
    true: float | None


def correlate_ranks(first: Array, second: Array) -> float:
    """Compute Spearman's rank correlation, with ties (Spearman, 1904); NaN where either is constant.

    Args:
        first, second: float [m], finite.
    """
    from scipy.stats import rankdata

    a, b = (ranks - ranks.mean() for ranks in (rankdata(first), rankdata(second)))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def measure_precision(scores: Array, truth: Array, weights: Array | None = None) -> float:
    """Compute average precision: Σₖ (Rₖ - Rₖ₋₁) Pₖ over thresholds, equal scores together; NaN without a true case.

    Scores are float [m], truth bool [m]; weights, [m], are 1 each by default.
    """
    drawn = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(-scores, kind="stable")
    right, all_ = np.cumsum((drawn * truth)[order]), np.cumsum(drawn[order])
    if not len(scores) or right[-1] == 0:
        return math.nan
    last = np.append(np.diff(scores[order]) != 0, True) & (all_ > 0)
    precision, recall = right[last] / all_[last], right[last] / right[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def sort_into_bins(scores: Array, truth: Array, bins: int = BINS) -> list[ReliabilityBin]:
    """Compare scores with the truth, float [m] in 0…1, in equal bins of 0…1, the last with its upper end."""
    place = _find_bins(scores, bins)
    found: list[ReliabilityBin] = []
    for number in range(bins):
        inside = place == number
        count = int(inside.sum())
        score, true = (float(np.mean(each[inside])) if count else None for each in (scores, truth))
        found.append(ReliabilityBin(number / bins, (number + 1) / bins, count, score, true))
    return found


def estimate_calibration(episodes: Array, scores: Array, truth: Array, seed: int, bins: int = BINS) -> Estimate:
    """Estimate the expected calibration error: Σ over bins of their share × |mean score - mean truth| (Naeini, 2015).

    `episodes` are int [m], scores and truth float [m] in 0…1.
    """
    if not len(scores):
        return Estimate(None)
    _, whose = np.unique(episodes, return_inverse=True)
    sums = np.zeros((int(whose.max()) + 1, bins))
    np.add.at(sums, (whose, _find_bins(scores, bins)), scores - truth)
    sizes = np.bincount(whose, minlength=len(sums)).astype(np.float64)
    value = float(np.abs(sums.sum(axis=0)).sum() / len(scores))
    weights = draw_resamples(len(sums), seed)
    low, high = _find_interval(np.abs(weights @ sums).sum(axis=1) / (weights @ sizes))
    return Estimate(value, low, high, len(scores))


def _find_bins(scores: Array, bins: int) -> Array:
    return np.clip((np.asarray(scores) * bins).astype(np.int64), 0, bins - 1)


def draw_resamples(episodes: int, seed: int, resamples: int = RESAMPLES) -> Array:
    """Draw n of n episodes with repetition (Efron, 1979); return how often each was drawn, float64 [r, n].

    A single episode gives no resamples, [0, 1].
    """
    if episodes < 2:
        return np.zeros((0, episodes))
    drawn = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), size=resamples)
    return drawn.astype(np.float64)


def _find_interval(values: Array) -> tuple[float | None, float | None]:
    known = values[np.isfinite(values)]
    if not len(known):
        return None, None
    return float(np.quantile(known, 0.025)), float(np.quantile(known, 0.975))


def estimate_share(hits: int, cases: int) -> Estimate:
    """Estimate a share, with Wilson's interval."""
    if cases == 0:
        return Estimate(None)
    low, high = wilson_interval(hits, cases)
    return Estimate(hits / cases, low, high, cases)


def estimate_tau(scores: Array, quality: Array, seed: int) -> Estimate:
    """Estimate Kendall's τ-a of n episodes, float [n] each: concordant minus discordant pairs over all (Kendall, 1938).

    Pairs of one episode with itself do not count in resamples.
    """
    n = len(scores)
    if n < 2:
        return Estimate(None, count=n)
    signs = np.sign(np.subtract.outer(scores, scores)) * np.sign(np.subtract.outer(quality, quality))
    weights = draw_resamples(n, seed)
    pairs = weights.sum(axis=1) ** 2 - np.einsum("rn,rn->r", weights, weights)
    low, high = _find_interval(np.einsum("rn,rn->r", weights @ signs, weights) / np.where(pairs > 0, pairs, np.nan))
    return Estimate(float(signs.sum()) / (n * (n - 1)), low, high, n)


def estimate_precision(scores: Array, truth: Array, seed: int) -> Estimate:
    """Estimate average precision over n episodes: scores float [n], truth bool [n]."""
    value = measure_precision(scores, truth)
    if math.isnan(value):
        return Estimate(None, count=len(scores))
    drawn = np.array([measure_precision(scores, truth, weights) for weights in draw_resamples(len(scores), seed)])
    return Estimate(value, *_find_interval(drawn), len(scores))


@dataclass
class Tally:
    """Values of episodes, of which the mean is estimated; an episode may have several, or none."""

    values: list[float] = field(default_factory=list[float])
    episodes: list[int] = field(default_factory=list[int])
    constant: int = 0
    left_out: int = 0

    def add(self, episode: int, value: float) -> None:
        """Add a value; a missing one, NaN, is counted as left out."""
        if math.isnan(value):
            self.left_out += 1
            return
        self.values.append(value)
        self.episodes.append(episode)

    def add_correlation(self, episode: int, scores: Array, truth: Array) -> None:
        """Add the rank correlation of an episode's scores with the truth, float [t] each; NaN where a score is missing.

        Scores that never change count as 0: they put nothing in order. Episodes with constant truth are left
        out.
        """
        valid = np.isfinite(scores)
        score, true = np.asarray(scores)[valid], np.asarray(truth)[valid]
        if len(score) < LEAST_FRAMES or np.ptp(true) == 0:
            self.left_out += 1
        elif np.ptp(score) == 0:
            self.constant += 1
            self.add(episode, 0.0)
        else:
            self.add(episode, correlate_ranks(score, true))

    def estimate(self, seed: int) -> Estimate:
        """Estimate the mean over all values, with an interval over episodes."""
        if not self.values:
            return Estimate(None, left_out=self.left_out)
        names, whose = np.unique(self.episodes, return_inverse=True)
        sums, sizes = np.bincount(whose, self.values), np.bincount(whose).astype(np.float64)
        weights = draw_resamples(len(names), seed)
        low, high = _find_interval((weights @ sums) / (weights @ sizes))
        return Estimate(float(np.mean(self.values)), low, high, len(self.values), self.constant, self.left_out)


def add_up_gains(gains: Array) -> Array:
    """Add up gains, float [t - 1] in -1…1, to progress, float64 [t], from 0 on and within 0…1.

    p ← p + (1 - p) g for a gain g ≥ 0, p ← p + p g for a loss; a missing one, NaN, leaves what follows unknown.
    """
    progress = [0.0]
    for gain in np.asarray(gains, np.float64):
        now = progress[-1]
        progress.append(now + ((1 - now) * gain if gain >= 0 else now * gain))
    return np.array(progress)
