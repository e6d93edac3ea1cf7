"""What each head learns, where the right answer is known."""

from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.judge.heads.heads import compare
from embodied_rl.judge.heads.labels import Labels
from tests.support.heads import label, make, pack

HEADS = ("hash", "classifier", "ranking")
GREY = np.linspace(0, 1, 33)


def train(name: str, labels: Labels, times: int = 8, **options: Any) -> Any:
    head = make(name, batch=32, rate=3e-3, **options)
    for version in range(times):
        head.learn(labels, labels, version)
    return head


def test_a_table_tells_the_mean_of_what_it_was_told() -> None:
    """In closed form; and nothing about what it has not seen, which is not 0."""
    head = make("hash")
    head.learn(label([0.1, 0.1, 0.1, 0.9], [0.0, 1.0, 0.5, 0.25]), label([], []), 0)
    head.learn(label([0.9], [0.75]), label([], []), 1)
    assert head.predict(pack([0.1, 0.9])).tolist() == [0.5, 0.5]
    assert np.isnan(head.predict(pack([0.5]))).all()
    assert np.isnan(head.predict(pack([0.1], "go right"))).all(), "other words are another question"
    assert head.state()["counts"].tolist() == [3, 2]


def test_a_table_forgets_what_it_has_not_heard_of_for_longest() -> None:
    head = make("hash", entries=2)
    for version, grey in enumerate((0.1, 0.5, 0.1, 0.9)):
        head.learn(label([grey], [grey]), label([], []), version)
    known = ~np.isnan(head.predict(pack([0.1, 0.5, 0.9])))
    assert known.tolist() == [True, False, True]


def test_a_classifier_separates_what_can_be_separated() -> None:
    head = train("classifier", label(GREY, GREY > 0.5))
    said = head.predict(pack(GREY))
    assert ((said > 0.5) == (GREY > 0.5)).all()
    assert said[0] < 0.05 and said[-1] > 0.95


def test_a_classifier_of_what_cannot_be_told_apart_says_how_often_it_was_so() -> None:
    """The minimum of the cross entropy is the mean of the scores."""
    head = train("classifier", label(np.full(40, 0.5), np.arange(40) % 4 == 0), 12)
    assert head.predict(pack([0.5]))[0] == pytest.approx(0.25, abs=0.05)


def test_a_ranking_recovers_an_order_whatever_the_scale() -> None:
    """Of scores that are bent, and hardly differ at the upper end."""
    head = train("ranking", label(GREY, 1 - np.exp(-8 * GREY)))
    said = head.predict(pack(GREY))
    assert (np.diff(said[::4]) > 0).all()
    assert 0 < said.min() < 0.2 and 0.8 < said.max() < 1


def test_a_ranking_of_two_finds_the_odds_of_bradley_and_terry() -> None:
    """One observation wins three of four comparisons, so that u₁ - u₂ = log 3."""
    labels = label([0.0, 0.0, 1.0, 1.0], [0.2, 0.6, 0.4, 0.8])  # of the four pairs across, three are won by the bright
    head = train("ranking", labels, 12)
    dark, bright = head.evaluate(pack([0.0, 1.0]))
    assert bright - dark == pytest.approx(np.log(3), abs=0.25)


def test_equal_scores_are_a_tie() -> None:
    assert compare(np.array([0.3, 0.3, 0.2]), np.array([0.3, 0.2, 0.3])).tolist() == [0.5, 1.0, 0.0]
    head = train("ranking", label(GREY, np.full(33, 0.7)))
    assert np.ptp(head.evaluate(pack(GREY))) < 0.3


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_labels_says_nothing(name: str) -> None:
    assert np.isnan(make(name).predict(pack([0.1, 0.9]))).all()


@pytest.mark.parametrize("name", HEADS)
def test_a_state_is_everything(name: str) -> None:
    """Predictions now, and after further learning: to the bit, and without torch's random numbers."""
    labels, more = label(GREY, GREY), label(GREY[::2], GREY[::2] ** 2, first=100)
    before = torch.get_rng_state()
    head = train(name, labels, 3)
    again = make(name, batch=32, rate=3e-3)
    again.load(head.state())
    assert head.predict(pack(GREY)).tobytes() == again.predict(pack(GREY)).tobytes()
    for each in (head, again):
        each.learn(more, Labels.join([labels, more]), 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert head.predict(pack(GREY)).tobytes() == again.predict(pack(GREY)).tobytes()
    left, right = head.state(), again.state()
    assert left.keys() == right.keys()
    assert all(left[each].tobytes() == right[each].tobytes() for each in left)


@pytest.mark.parametrize("name", HEADS)
def test_predictions_are_potentials(name: str) -> None:
    said = train(name, label(GREY, GREY), 3).predict(pack(GREY))
    assert ((said >= 0) & (said <= 1)).all() and np.ptp(said) > 0.1
