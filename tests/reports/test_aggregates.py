"""Aggregates over families and seeds against SciPy's trimmed mean, and intervals against all draws, counted."""

from itertools import product

import numpy as np
import pytest
import scipy

from embodied_rl.reports.aggregates import interquartile_mean, performance_profile
from tests.support.refusals import refuses

SCORES = [[0.1, 0.9, 0.4], [0.3, 0.7, 0.5], [0.2, 1.0, 0.0]]


def list_all_draws(scores):
    """Every table that a draw of seeds within each family can give, [R^(R F), R, F]."""
    columns = [list(product(column, repeat=len(scores))) for column in zip(*scores, strict=True)]
    return np.array(list(product(*columns))).swapaxes(1, 2)


def test_the_interquartile_mean_is_scipys_trimmed_mean():
    found = interquartile_mean(SCORES)
    assert found.value == pytest.approx(scipy.stats.trim_mean(np.array(SCORES), 0.25, axis=None), abs=1e-12)


def test_its_interval_is_that_of_all_draws_of_seeds_within_families():
    draws = [scipy.stats.trim_mean(draw, 0.25, axis=None) for draw in list_all_draws(SCORES)]
    found = interquartile_mean(SCORES)
    assert (found.low, found.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.01)


def test_a_profile_counts_scores_strictly_above_a_level():
    levels = [0.0, 0.3, 0.95]
    found = performance_profile(SCORES, levels)
    assert [each.value for each in found] == pytest.approx([8 / 9, 5 / 9, 1 / 9])
    draws = list_all_draws(SCORES)
    for level, each in zip(levels, found, strict=True):
        expected = np.quantile((draws > level).mean(axis=(1, 2)), [0.025, 0.975])
        assert (each.low, each.high) == pytest.approx(expected, abs=1e-9)


def test_one_seed_has_no_interval():
    found = interquartile_mean([[0.5, 0.7]])
    assert (found.value, found.low, found.high) == (pytest.approx(0.6), None, None)


@pytest.mark.parametrize("scores", [[], [[]], [[0.1, 0.2], [0.3]]])
def test_ragged_or_missing_scores_are_refused(scores):
    with refuses("scores-ragged"):
        interquartile_mean(scores)
