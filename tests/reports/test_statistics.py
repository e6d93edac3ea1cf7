"""Intervals and tests against closed forms and SciPy."""

import math

import pytest
import scipy  # which imports its parts when they are used

from embodied_rl.reports.statistics import adjust_by_holm, is_as_good, mcnemar_test, mean_interval, wilson_interval
from tests.support.refusals import refuses


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 256), (256, 256), (65, 256), (1, 3), (990, 1000)])
def test_wilson_is_scipys(successes, n):
    expected = scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson_interval(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_bounds_are_the_roots_of_the_score_equation():
    successes, n, z = 37, 120, 1.3
    for bound in wilson_interval(successes, n, z):
        assert abs(successes / n - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / n))
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_first", "only_second", "both", "neither"), [(0, 0, 5, 3), (5, 0, 1, 1), (30, 12, 200, 9)]
)
def test_mcnemar_is_the_binomial_test_on_discordant_pairs(only_first, only_second, both, neither):
    first = [True] * only_first + [False] * only_second + [True] * both + [False] * neither
    second = [False] * only_first + [True] * only_second + [True] * both + [False] * neither
    found = mcnemar_test(first, second)
    discordant = only_first + only_second
    expected = scipy.stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert (found.only_first, found.only_second, found.episodes) == (only_first, only_second, len(first))
    assert found.p_value == pytest.approx(expected)
    assert mcnemar_test(second, first).p_value == found.p_value


def test_mcnemar_of_thousands_of_pairs_does_not_overflow():
    first = [True] * 1500 + [False] * 1300
    assert mcnemar_test(first, [not value for value in first]).p_value == pytest.approx(
        scipy.stats.binomtest(1500, 2800).pvalue
    )


def test_mcnemar_needs_pairs():
    with pytest.raises(ValueError):
        mcnemar_test([True], [True, False])


@pytest.mark.parametrize(
    ("values", "half"),
    [([0.0, 2.0], math.tan(0.475 * math.pi)), ([0.0, 1.0, 2.0], 0.95 / math.sqrt(2 * 0.975 * 0.025) / math.sqrt(3))],
)
def test_student_quantiles_are_the_closed_forms_of_one_and_two_degrees_of_freedom(values, half):
    found = mean_interval(values)
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half), rel=1e-12)


def test_one_seed_has_no_interval():
    found = mean_interval([0.5])
    assert (found.mean, found.low, found.high) == (0.5, None, None)
    with refuses("mean-without-values"):
        mean_interval([])


def test_as_good_allows_one_standard_error_below_the_best():
    """For large n that is √(p (1 - p) / n): 0.9 ± 0.003 of 10,000."""
    assert is_as_good(0.9, 0.9, 10_000) and is_as_good(0.898, 0.9, 10_000)
    assert not is_as_good(0.896, 0.9, 10_000)
    assert is_as_good(1.0, 1.0, 50)
    assert not is_as_good(0.96, 1.0, 50), "two misses in fifty"


def test_holms_adjustment() -> None:
    """Worked by hand: the least times 4, the next times 3, never below the one before, never above 1."""
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_by_holm([0.6, 0.9]) == [1.0, 1.0] and adjust_by_holm([]) == []
