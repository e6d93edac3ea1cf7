"""Advantage-weighted regression: its optimum in closed form, its advantages, and an exact restart."""

from copy import deepcopy
from math import exp
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.awr import AWR, AWRConfig
from tests.support.replaying import Script, layout
from tests.support.stored_actions import BAD, GOOD, make_actor, make_storage, sample_actions
from tests.support.using_checkpoints import assert_same_tensors


def make_learner(critic: str = "privileged", **settings: Any) -> AWR:
    config = AWRConfig(**({"steps": 8, "minibatch": 16, "critic_steps": 20, "critic_lr": 1e-2} | settings))
    return AWR(config, make_actor(critic), Ranks(), 0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_the_policy_becomes_that_of_the_data_times_the_exponential_of_the_advantage(temperature: float) -> None:
    """Two actions, equally often, of return 1 and 0: their odds become exp(1 / temperature)."""
    replay = Replay(make_storage([GOOD, BAD] * 200, [True, False] * 200))
    learner = make_learner(temperature=temperature, steps=1500, minibatch=128, lr=3e-3, largest_weight=100.0)
    learner.update(replay, 0)
    learner.actor.sampler.denoise_steps = 50  # with 4, the flow itself leaves too little for the rarer action
    share, odds = float((sample_actions(learner.actor) > 0).mean()), exp(1 / temperature)
    assert share == pytest.approx(odds / (1 + odds), abs=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert"])
def test_weights_are_exponentials_of_advantages(critic: str) -> None:
    """In one-step episodes each kind of critic becomes the mean return."""
    replay = Replay(make_storage([GOOD, BAD, BAD, BAD], [True, False, False, False]))
    learner = make_learner(critic, temperature=0.5, critic_steps=200)
    chosen, figures = learner.weigh(replay, 0)
    expected = np.exp(np.array([0.75, -0.25, -0.25, -0.25]) / 0.5)
    assert chosen.weight == pytest.approx(expected * 4 / expected.sum(), rel=0.02)
    assert figures["effective_rows"] == pytest.approx(expected.sum() ** 2 / (expected**2).sum(), rel=0.02)
    assert figures["episodes"] == 4


def test_a_weight_is_truncated() -> None:
    learner = make_learner(temperature=0.01, largest_weight=3.0, critic_steps=0)
    chosen, _ = learner.weigh(Replay(make_storage([GOOD, BAD], [True, False])), 0)
    value = learner.actor.critic_value(torch.zeros(1, 1)).item()
    raw = np.array([3.0, min(3.0, exp(-value / 0.01))])
    assert chosen.weight == pytest.approx(raw * 2 / raw.sum(), rel=1e-3)


class Invented(AWR):
    """Its critic says something else of every row."""

    def _values(self, replay: Replay, where: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(0.5 + 0.1 * where[:, 2])


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_advantages_are_sums_of_temporal_differences(bootstrap: bool, lam: float) -> None:
    """Of invented episodes of either end, with partial chunks, one decision after the other."""
    storage, rng = ReplayStorage(layout(60, tracks=2)), np.random.default_rng(0)
    script = Script(storage)
    for _ in range(25):
        script.step(rng)
    gamma, rows = 0.9, script.expected()
    learner = Invented(AWRConfig(gamma=gamma, lam=lam), make_actor("privileged"), Ranks(), 0, 1)
    replay = Replay(storage, ends_at_time_limit=not bootstrap)
    ends = set()
    for episode in storage.list_episodes():
        found, returns = learner._estimate(replay, [replay.list_decisions(0, [episode])])
        following, expected, values = 0.0, [], []
        for number in reversed(range(len(episode.slots))):
            row = rows[episode.episode, number]
            last, steps = number == len(episode.slots) - 1, int(row["steps"])
            ends.add((last, bool(row["truncated"])))
            slot = int(episode.slots[number])
            value, after = (0.5 + 0.1 * (each % storage.format.slots) for each in (slot, slot + 1))
            after = after if not last or (row["truncated"] and bootstrap) else 0.0
            reward = sum(gamma**j * float(row["reward"][j]) for j in range(steps))
            following = reward + gamma**steps * after - value + gamma**steps * lam * following
            expected.append(following)
            values.append(value)
        assert found.tolist() == pytest.approx(expected[::-1], rel=1e-6)
        total = [each + value for each, value in zip(expected, values, strict=True)]
        assert returns.tolist() == pytest.approx(total[::-1], rel=1e-6)
    assert {(True, True), (True, False), (False, False)} == ends


@pytest.mark.thorough
def test_a_restored_learner_goes_on_with_the_same_bits() -> None:
    replay = Replay(make_storage([GOOD, BAD] * 3, [True, False] * 3))
    first = make_learner(steps=5)
    first.update(replay, 0)
    second = AWR(first.config, deepcopy(first.actor), Ranks(), 0, 1)
    second.load(first.state())
    for learner in (first, second):
        learner.update(replay, 1)
    assert_same_tensors(first.actor.state_dict(), second.actor.state_dict())


def test_an_empty_replay_changes_nothing() -> None:
    learner = make_learner()
    before = deepcopy(learner.actor.state_dict())
    figures = learner.update(Replay(make_storage([], [])), 0)
    assert_same_tensors(learner.actor.state_dict(), before)
    assert figures["steps"] == figures["rows"] == figures["critic_loss"] == 0


def test_what_the_safety_filter_did_is_not_learned() -> None:
    figures = make_learner().update(Replay(make_storage([GOOD], [True], [Source.SAFETY])), 0)
    assert figures["loss"] == 0
