"""Scores from probabilities: by their definition, and never from an answer that says something else."""

import math

import numpy as np
import pytest

from embodied_rl.judge.prompts.answer_parser import expect_value, read_log_probabilities

DIGITS = {str(digit): digit / 9 for digit in range(10)}


def tokens(**probabilities: float) -> list[tuple[str, float]]:
    return [(token, math.log(each)) for token, each in probabilities.items()]


def test_the_value_is_the_expectation() -> None:
    score = expect_value([("3", math.log(0.5)), ("6", math.log(0.3)), ("the", math.log(0.2))], DIGITS)
    assert score.value == pytest.approx((3 / 9 * 0.5 + 6 / 9 * 0.3) / 0.8)


def test_ways_to_write_a_label_are_one() -> None:
    score = expect_value(tokens(**{"Yes": 0.2, " yes": 0.3, "YES": 0.1, "no": 0.4}), {"yes": 1.0, "no": 0.0})
    assert score.value == pytest.approx(0.6)


def test_confidence_is_one_minus_the_share_of_entropy() -> None:
    assert expect_value(tokens(**{"4": 1.0}), DIGITS).confidence == pytest.approx(1.0)
    even = expect_value([(str(digit), math.log(0.1)) for digit in range(10)], DIGITS)
    assert even.confidence == pytest.approx(0.0, abs=1e-9) and even.value == pytest.approx(0.5)
    shares = np.array([0.7, 0.3])
    two = expect_value(tokens(**{"1": 0.7, "2": 0.3}), DIGITS)
    assert two.confidence == pytest.approx(1 + (shares * np.log(shares)).sum() / np.log(10))


@pytest.mark.parametrize("said", [[], [("I", -0.01)], [("3", math.log(0.3)), ("I", math.log(0.7))], [("3", -math.inf)]])
def test_an_answer_of_something_else_is_no_score(said: list[tuple[str, float]]) -> None:
    score = expect_value(said, DIGITS)
    assert score.reason == "unsure" and math.isnan(score.value)


def test_sums_above_one_by_rounding_stay_within_the_range() -> None:
    score = expect_value([("9", 1e-9), (" 9", math.log(1e-9))], DIGITS)
    assert score.value <= 1.0


@pytest.mark.parametrize(
    "entries",
    [
        None, {}, "x", [1], [{}], [{"token": "3"}], [{"token": 3, "logprob": -1}], [{"token": "3", "logprob": "x"}],
        [{"token": "3", "logprob": True}], [{"token": "3", "logprob": math.nan}], [{"token": "3", "logprob": 2.0}],
    ],
)  # fmt: skip
def test_what_is_no_list_of_log_probabilities_is_refused(entries: object) -> None:
    with pytest.raises(ValueError, match="top_logprobs"):
        read_log_probabilities(entries)


def test_a_list_is_read() -> None:
    assert read_log_probabilities([{"token": "3", "logprob": -1, "bytes": None}]) == [("3", -1.0)]
