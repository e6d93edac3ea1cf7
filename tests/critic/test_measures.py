"""Measures of a judge, against SciPy, brute force, and what must hold for any scores."""

import itertools
import math

import numpy as np
import pytest
import scipy  # which imports its parts when they are used
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_rl.critic import measures
from embodied_rl.critic.measures import Tally

COARSE = st.integers(-4, 4).map(lambda number: number / 4)  # few values, so that there are ties


def pairs(least: int = 2) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    return st.integers(least, 25).flatmap(
        lambda size: st.tuples(arrays(np.float64, size, elements=COARSE), arrays(np.float64, size, elements=COARSE))
    )


@pytest.mark.thorough
@given(pairs())
def test_spearman_is_scipys(both: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = both
    found = measures.correlate_ranks(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=1e-9)


@pytest.mark.thorough
@given(pairs())
def test_tau_counts_pairs(both: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = both
    listed = list(itertools.combinations(range(len(first)), 2))
    agreeing = sum(np.sign(first[a] - first[b]) * np.sign(second[a] - second[b]) for a, b in listed)
    assert measures.estimate_tau(first, second, seed=0).value == pytest.approx(agreeing / len(listed))


@pytest.mark.thorough
@given(pairs(), st.randoms(use_true_random=False))
def test_weights_are_repetitions(both: tuple[np.ndarray, np.ndarray], random) -> None:
    scores, truth = both[0], both[1] > 0
    weights = np.array([random.randrange(4) for _ in scores])
    again = np.repeat(np.arange(len(scores)), weights)
    once, repeated = measures.measure_precision(scores, truth, weights), measures.measure_precision(
        scores[again], truth[again]
    )  # fmt: skip
    assert once == pytest.approx(repeated, nan_ok=True)


@pytest.mark.thorough
@given(pairs())
def test_average_precision_by_thresholds(both: tuple[np.ndarray, np.ndarray]) -> None:
    scores, truth = both[0], both[1] > 0
    area, reached = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        said = scores >= threshold
        recall = (said & truth).sum() / max(1, truth.sum())
        area, reached = area + (recall - reached) * (said & truth).sum() / said.sum(), recall
    assert measures.measure_precision(scores, truth) == pytest.approx(area if truth.any() else math.nan, nan_ok=True)


def test_calibration_error_by_hand() -> None:
    """Two frames of .15 where .35 is true, six of .8 where .8 is true."""
    scores, truth = np.array([0.15] * 2 + [0.8] * 6), np.array([0.35] * 2 + [0.8] * 6)
    found = measures.estimate_calibration(np.arange(8) // 2, scores, truth, seed=0)
    assert found.value == pytest.approx(0.2 * 2 / 8) and found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high


def test_bins_hold_every_score_once() -> None:
    scores = np.array([0.0, 0.05, 0.1, 0.95, 1.0])
    bins = measures.sort_into_bins(scores, np.array([0.0, 0.2, 1.0, 1.0, 0.0]))
    assert [each.count for each in bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert bins[0].said == pytest.approx(0.025) and bins[0].true == pytest.approx(0.1) and bins[3].said is None


def test_constant_scores_count_as_nothing_in_order() -> None:
    tally = Tally()
    tally.add_correlation(0, np.arange(5.0), np.arange(5))
    tally.add_correlation(1, np.full(5, 0.3), np.arange(5))
    tally.add_correlation(2, np.array([0.0, math.nan, 0.2, 0.3]), np.array([0, 9, 1, 2]))  # a missing score
    found = tally.estimate(seed=0)
    assert (found.value, found.count, found.constant, found.left_out) == (pytest.approx(2 / 3), 3, 1, 0)


@pytest.mark.parametrize(
    ("scores", "truth"),
    [([0.1, 0.2], [0, 1]), ([0.1, math.nan, 0.2, math.nan], [0, 1, 2, 3]), ([0.1, 0.2, 0.3], [1, 1, 1])],
    ids=["short", "missing", "the truth never changes"],
)
def test_what_has_no_correlation_is_left_out_and_counted(scores: list[float], truth: list[float]) -> None:
    tally = Tally()
    tally.add_correlation(0, np.array(scores), np.array(truth))
    assert tally.estimate(seed=0) == measures.Estimate(None, left_out=1)


def test_interval_of_a_mean_is_over_episodes() -> None:
    """An episode with a hundred values is one episode: the interval is as wide as that of three, and seeded."""
    tally = Tally()
    for episode, value in ((0, 0.0), (1, 1.0), *[(2, 0.5)] * 100):
        tally.add(episode, value)
    found = tally.estimate(seed=3)
    assert found == tally.estimate(seed=3) and found.count == 102
    assert found.low is not None and found.high is not None and found.low < 0.1 and found.high > 0.9


def test_one_episode_has_no_interval() -> None:
    tally = Tally()
    tally.add(0, 0.7)
    assert tally.estimate(seed=0) == measures.Estimate(0.7, None, None, 1)
    assert measures.estimate_share(0, 0).value is None


@given(arrays(np.float64, st.integers(0, 30), elements=st.floats(-1, 1)))
def test_gains_add_up_within_bounds(gains: np.ndarray) -> None:
    progress = measures.add_up_gains(gains)
    assert len(progress) == len(gains) + 1 and np.all((progress >= 0) & (progress <= 1))
    assert np.all(np.diff(progress)[gains >= 0] >= 0) and np.all(np.diff(progress)[gains < 0] <= 0)


def test_a_missing_gain_leaves_the_rest_unknown() -> None:
    assert np.isnan(measures.add_up_gains(np.array([0.5, math.nan, 0.5]))).tolist() == [False, False, True, True]


@pytest.mark.thorough
@given(pairs(3))
def test_tau_of_resamples_covers_its_value(both: tuple[np.ndarray, np.ndarray]) -> None:
    found = measures.estimate_tau(*both, seed=0)
    assert found.value is not None and found.low is not None and found.high is not None
    assert -1 <= found.low <= found.high <= 1
