"""How far a head agrees with a judge."""

import math

import numpy as np
import pytest

from embodied_rl.judge.heads.agreement import measure_agreement

EPISODE = np.repeat(np.arange(20), 5)
SCORE = np.tile(np.linspace(0, 1, 5), 20)


def test_the_same_order_is_full_agreement_and_the_opposite_is_none() -> None:
    found = measure_agreement(SCORE**3, SCORE, EPISODE, 0)
    assert (found.share, found.low, found.high) == (1.0, 1.0, 1.0)
    assert (found.labels, found.episodes) == (100, 20)
    assert found.error == pytest.approx(np.abs(SCORE**3 - SCORE).mean())
    assert measure_agreement(-SCORE, SCORE, EPISODE, 0).share == 0.0


def test_chance_is_one_half() -> None:
    assert measure_agreement(np.zeros(100), SCORE, EPISODE, 0).share == 0.5
    random = np.random.default_rng(0).random(100)
    found = measure_agreement(random, SCORE, EPISODE, 0)
    assert found.low < 0.5 < found.high and found.high - found.low > 0.05


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Episodes have a bias of their own, so that labels of one are no independent ones."""
    random = np.random.default_rng(1)

    def draw(episodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        number = np.repeat(np.arange(episodes), 5)
        score = random.random(5 * episodes)
        return score + 0.5 * random.standard_normal(episodes)[number], score, number

    truth = measure_agreement(*draw(400), 0).share
    found = [measure_agreement(*draw(30), trial) for trial in range(60)]
    assert sum(each.low <= truth <= each.high for each in found) >= 50


def test_what_cannot_be_told_is_not_told() -> None:
    nothing = measure_agreement(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), 0)
    assert math.isnan(nothing.share) and math.isnan(nothing.low) and math.isnan(nothing.error)
    few = measure_agreement(SCORE[:10], SCORE[:10], EPISODE[:10], 0)
    assert few.share == 1.0 and math.isnan(few.low)
    unknown = measure_agreement(np.where(EPISODE < 10, np.nan, SCORE), SCORE, EPISODE, 0)
    assert unknown.labels == 50
