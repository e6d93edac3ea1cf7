"""Predictions of a head that learns online leave the exact policy gradient as it is; other uses of them do not.

Each episode is collected in rollouts; between two of them the head learns from the labels of the first. The judge's
answers differ from decision to decision, so that what comes later changes what a head says of the same picture.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.judge.heads.labels import Labels
from embodied_rl.judge.reward.distill import Distiller
from embodied_rl.rollout.buffer import Rollout
from tests.support.distilling import hand_over, make_distiller, make_rollout, show
from tests.support.enumeration import GAMMA, HORIZON, STATES, TRUE, Path, error
from tests.support.heads import label, pack

pytestmark = pytest.mark.thorough
HEADS = ("hash", "classifier", "ranking")
CUTS = [(0, 3), (3, 6), (6, HORIZON)]
JUDGE = np.random.default_rng(3).uniform(0, 1, (HORIZON + 1, STATES))
"""What the judge says at a decision of a state: nothing true, and never the same twice."""
GREY = np.minimum(16 + 32 * np.arange(STATES), 255) / 255
BEFORE = label(GREY[:6], JUDGE[0, :6], first=1000)
"""What the head has learned before the episode: not about all states."""


def collect(path: Path, first: int, end: int, answered: Callable[[int], bool]) -> Rollout:
    """Decisions first … end of an episode; places after its end are not valid, so that sizes are always the same."""
    rollout = make_rollout(end - first)
    rollout.shaping, rollout.potential, rollout.bonus = (torch.zeros(end - first, 1).double() for _ in range(3))
    taken = len(path.actions)
    there = np.arange(first, end)
    states = np.array(path.states)[np.minimum(there, taken)]
    rollout.decision.copy_(torch.from_numpy(there)[:, None])
    rollout.valid.copy_(torch.from_numpy(there < taken)[:, None])
    rollout.terminated.copy_(torch.from_numpy(there == taken - 1)[:, None])
    show(rollout, "seen", GREY[states][:, None])
    show(rollout, "last", GREY[[path.states[min(end, taken)]]])
    told = [t for t in there if t < taken and answered(int(t))]
    labels = label(GREY[[path.states[t] for t in told]], JUDGE[told, [path.states[t] for t in told]])
    hand_over(rollout, Labels(labels.inputs, labels.value, np.zeros(len(told), np.int64), np.array(told, np.int64)))
    return rollout


def shape(
    path: Path,
    head: str,
    answered: Callable[[int], bool] = lambda t: True,
    settle: Callable[[Distiller, Rollout], None] = Distiller.settle,
    **options: Any,
) -> np.ndarray:
    """What an episode's decisions get beside the reward, by a head that learns while it runs."""
    distiller = make_distiller(head=head, gamma=GAMMA, steps=1, batch=4, **options)
    teaching = make_rollout(6)
    hand_over(teaching, BEFORE)
    distiller.settle(teaching)
    found = []
    for first, end in CUTS:
        if first < len(path.actions):
            rollout = collect(path, first, end, answered)
            settle(distiller, rollout)
            found.append((rollout.shaping + rollout.bonus)[rollout.valid].numpy())
    assert distiller.version > 1 or not answered(0)
    return np.concatenate(found)


@pytest.mark.parametrize("head", HEADS)
def test_predictions_of_a_head_that_learns_meanwhile_leave_the_gradient_as_it_is(head: str) -> None:
    assert np.abs(TRUE).max() > 0.02
    assert error(lambda path: shape(path, head)) <= 1e-12


@pytest.mark.parametrize("head", ["hash"])
def test_lost_answers_and_a_history_that_decides_about_them_do_too(head: str) -> None:
    assert error(lambda path: shape(path, head, lambda t: t > 0 and path.states[t] > path.states[t - 1])) <= 1e-12


def look_ahead(distiller: Distiller, rollout: Rollout) -> None:
    """Learn from a rollout before judging it."""
    there = rollout.extras["labelled"].clone()
    teaching = make_rollout(len(there))
    for name in ("label", "label_value", "label_episode", "label_decision", "labelled"):
        teaching.extras[name].copy_(rollout.extras[name])
    carried = distiller._ledger.carried
    distiller.settle(teaching)
    distiller._ledger.carried = carried
    distiller.settle(rollout)


def reconsider(distiller: Distiller, rollout: Rollout) -> None:
    """At the boundary of two rollouts, take what the head says now for what it said then."""
    distiller.settle(rollout)
    if rollout.valid[-1]:
        predicted = distiller._head.predict(rollout.extras["last"].numpy())
        distiller._ledger.carried = np.where(np.isnan(predicted), distiller._ledger.carried, predicted)


@pytest.mark.parametrize("settle, head", [(look_ahead, "hash"), (look_ahead, "ranking"), (reconsider, "hash")])
def test_what_comes_later_may_not_change_a_potential(settle: Any, head: str) -> None:
    """So the check can fail."""
    assert error(lambda path: shape(path, head, settle=settle)) > 1e-4


@pytest.mark.parametrize("head", ["hash", "classifier"])
def test_a_prediction_as_a_reward_changes_what_is_optimal(head: str) -> None:
    assert error(lambda path: shape(path, head, bonus=True)) > 1e-2


def test_pictures_of_states_differ() -> None:
    """Or the head could not tell them apart, and the check would say nothing."""
    distiller = make_distiller()
    keys = distiller._head._hash(pack(GREY[:8]))
    assert len(set(keys)) == 8
