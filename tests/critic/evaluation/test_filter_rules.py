"""What speaks against a demonstration, on curves whose figures can be computed by hand."""

import numpy as np
import pytest

from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.evaluation.demonstration_filter import (
    ProgressCurve,
    choose_frames,
    judge_curve,
    measure_curve,
    measure_falls,
)
from embodied_rl.schema import FilterNode

NONE = np.zeros(0)


def curve(progress: list[float], every: int = 2, gains: list[float] | None = None) -> ProgressCurve:
    return ProgressCurve(
        np.arange(len(progress)) * every, np.array(progress), NONE if gains is None else np.array(gains)
    )


@pytest.mark.parametrize(
    ("progress", "figures"),
    [
        ([0.0, 0.3, 0.6, 1.0], {"voc": 1.0, "losses": 0.0, "end": 1.0, "drop": 0.0}),
        ([1.0, 0.6, 0.3, 0.0], {"voc": -1.0, "losses": 1.0, "end": 0.0, "drop": 0.7}),
        ([0.2, 0.2, 0.2, 0.2], {"voc": 0.0, "losses": 0.0, "end": 0.2, "drop": 0.0}),
        ([0.0, 0.6, 0.595, 0.7], {"voc": 0.8, "losses": 0.0, "end": 0.7, "drop": -0.0}),
        ([0.0, 0.8, 0.4, 0.5], {"voc": 0.4, "losses": 1 / 3, "end": 0.5, "drop": 0.3}),
    ],
)
def test_figures_are_those_computed_by_hand(progress: list[float], figures: dict[str, float]) -> None:
    assert measure_curve(curve(progress), 4) == pytest.approx(figures, abs=1e-4)


def test_a_pair_scorer_s_own_gains_count() -> None:
    found = measure_curve(curve([0, 0.5, 0.25, 0.4], gains=[0.5, -0.5, 0.2]), 4)
    assert found["losses"] == pytest.approx(1 / 3, abs=1e-4)
    assert measure_curve(curve([0, 0.5, 0.49, 0.6], gains=[0.5, -0.005, 0.2]), 4)["losses"] == 0


def test_missing_scores_are_left_out_and_too_few_say_nothing() -> None:
    whole, gap = curve([0, 0.2, 0.4, 0.6]), curve([0, np.nan, 0.4, 0.6])
    assert measure_curve(gap, 4) == measure_curve(whole, 4)
    silent = judge_curve(curve([0, np.nan, np.nan, 0.6]), FilterNode(voc=1.0, end=1.0), 4, whole=True)
    assert silent.figures == {} and silent.faults == ()


def test_each_rule_speaks_for_itself_and_an_unset_one_never() -> None:
    bad = curve([0.5, 0.9, 0.2, 0.1])
    rules = {"voc": 0.5, "losses": 0.5, "end": 0.5, "drop": 0.5}
    for name, threshold in rules.items():
        assert judge_curve(bad, freeze_config(FilterNode, {name: threshold}), 4, whole=True).faults == (name,)
    assert judge_curve(bad, freeze_config(FilterNode, rules), 4, whole=True).faults == tuple(rules)
    assert judge_curve(bad, freeze_config(FilterNode, rules), 4, whole=False).faults == ("voc", "losses", "end")
    assert judge_curve(bad, FilterNode(), 4, whole=True).faults == ()
    assert judge_curve(curve([0, 0.5, 1]), FilterNode(voc=1.0, losses=0.0, end=1.0, drop=0.0), 4, True).faults == ()


def test_a_row_s_fall_is_over_its_own_chunk() -> None:
    falls = measure_falls(curve([0.0, 0.8, 0.2, 0.6]), np.arange(7), 2)
    np.testing.assert_allclose(falls, [-0.8, -0.1, 0.6, 0.1, -0.4, -0.2, 0], atol=1e-12)


def test_frames_are_apart_and_the_ends_are_among_them() -> None:
    assert choose_frames(np.arange(8), 3).tolist() == [0, 3, 6, 7]
    assert choose_frames(np.array([2, 3, 9, 10, 11]), 2).tolist() == [0, 2, 4]
    assert choose_frames(np.array([5]), 2).tolist() == [0]
