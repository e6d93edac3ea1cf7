"""Filtered cloning: what it learns from, on a task whose optimum is known and on episodes of known content."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.sim import Episode, Source, StepResult
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage, StoredEpisode
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.filtered import Filtered, FilteredConfig, find_uncorrected
from embodied_rl.training.algorithms.replay_cloning import WeightedDecisions, count_shares
from tests.support.pointing import Pointing
from tests.support.stored_actions import BAD, GOOD, SPEC, make_actor, make_storage, observe
from tests.support.using_checkpoints import assert_same_tensors


def learn(replay: Replay, **settings: Any) -> tuple[FlowActor, dict[str, float]]:
    """The actor after one update, and the figures."""
    actor = make_actor()
    config = FilteredConfig(**({"steps": 8, "minibatch": 16, "held_out": 0.0} | settings))
    return actor, Filtered(config, actor, Ranks(), 0, 1).update(replay, 0)


@pytest.mark.thorough
def test_failures_change_no_bit() -> None:
    """As if they had never been stored: the draws are over the rows that are learned."""
    mixed, _ = learn(Replay(make_storage([GOOD, BAD, GOOD, BAD], [True, False, True, False])))
    alone, _ = learn(Replay(make_storage([GOOD, BAD, GOOD], [True, False, True])))
    other, _ = learn(Replay(make_storage([GOOD, BAD, GOOD], [True, True, True])))
    assert_same_tensors(mixed.state_dict(), alone.state_dict())
    with pytest.raises(AssertionError):
        assert_same_tensors(mixed.state_dict(), other.state_dict())


def test_without_a_success_nothing_changes() -> None:
    actor, figures = learn(Replay(make_storage([GOOD, BAD], [False, False])))
    assert_same_tensors(actor.state_dict(), make_actor().state_dict())
    assert (figures["steps"], figures["episodes"], figures["successes"]) == (0, 2, 0)


def test_what_the_safety_filter_did_is_not_learned_and_what_a_human_did_is() -> None:
    """A chunk of one step: where its source does not count, its loss is 0."""
    for source, counts in {Source.HUMAN: True, Source.REPLAY: True, Source.SAFETY: False, Source.HOLD: False}.items():
        _, figures = learn(Replay(make_storage([GOOD], [True], [source])))
        assert (figures["loss"] > 0) == counts, source


def test_what_a_human_corrected_is_not_cloned() -> None:
    """An episode that a human helped twice, one without help, one of a human alone, and one that begins with help."""
    human = np.array([0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0], bool)
    expected = np.array([0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1], bool)
    assert find_uncorrected(human, np.array([6, 2, 2, 2])).tolist() == expected.tolist()
    assert find_uncorrected(np.zeros(0, bool), np.zeros(0, np.int64)).tolist() == []


def test_decisions_before_a_takeover_are_not_among_those_to_clone() -> None:
    """An episode of three chunks: the policy's, one in which a human takes over, and the policy's again."""
    storage, seen = ReplayStorage(ReplayFormat.of_simulator(SPEC, 1, 8, 2)), observe(3)
    played = np.full((3, 2, 1), GOOD, np.float32)
    result = StepResult(
        reward=np.array([[0, 0], [0, 0], [0, 1]], np.float32),
        success=np.array([[False, False], [False, False], [False, True]]),
        steps=np.full(3, 2),
        executed=played,
        source=np.array([[Source.POLICY] * 2, [Source.POLICY, Source.HUMAN], [Source.POLICY] * 2], np.uint8),
        terminated=np.array([False, False, True]),
        truncated=np.zeros(3, bool),
        observation=seen,
    )
    storage.write_episode(0, Episode(0, 0, seed=0), seen, played, result)
    chosen, _ = Filtered(FilteredConfig(), make_actor(), Ranks(), 0, 1).weigh(Replay(storage), 0)
    assert storage.read_field("decision", chosen.where[:, 1], chosen.where[:, 2]).tolist() == [1, 2]


@pytest.mark.thorough
def test_an_update_ends_when_the_held_out_loss_does_not_fall() -> None:
    """Held-out episodes that contradict the others: their loss rises from the first steps on."""
    successes = [True] * 40
    storage = make_storage([GOOD] * 40, successes)
    learner = Filtered(FilteredConfig(held_out=0.2), make_actor(), Ranks(), 0, 1)
    held = [learner._is_held_out(episode) for episode in storage.list_episodes()]
    assert 2 <= sum(held) <= 15
    opposed = make_storage([BAD if each else GOOD for each in held], successes)
    settings = {"held_out": 0.2, "steps": 400, "check_every": 5, "patience": 2, "lr": 1e-2}
    _, agreeing = learn(Replay(storage), **settings)
    _, opposing = learn(Replay(opposed), **settings)
    assert opposing["steps"] < agreeing["steps"]
    assert agreeing["held_out_loss"] < agreeing["held_out_loss_before"]
    assert agreeing["rows"] == 40 - sum(held)


def test_the_held_out_loss_is_a_mean_over_rows_with_the_same_draws() -> None:
    """However they are divided; nothing is learned, so that it stays to the bit, and is near the other rows' loss."""
    replay = Replay(make_storage([GOOD] * 40, [True] * 40))
    _, figures = learn(replay, held_out=0.4, lr=0.0, minibatch=7, check_every=2, patience=9)
    assert figures["held_out_loss"] == figures["held_out_loss_before"]
    assert 0.5 < figures["held_out_loss"] / figures["loss"] < 2


def test_the_learning_rate_rises_and_falls_and_each_iteration_draws_anew() -> None:
    learner = Filtered(FilteredConfig(steps=100, minibatch=2), make_actor(), Ranks(), 0, 3)
    rates, losses = list[float](), list[float]()
    learner.optimiser.step = lambda ranks, rate: rates.append(rate)  # type: ignore[method-assign,assignment]
    for iteration in range(2):
        losses.append(learner.update(Replay(make_storage([GOOD] * 4, [True] * 4)), iteration)["loss"])
    assert rates[:3] == pytest.approx([0.02, 0.04 * (1 - 0.009), 0.06 * (1 - 0.018)]) and rates[:100] == rates[100:]
    assert rates[99] == pytest.approx(1 - 0.9 * 0.99) and max(rates) < 0.6
    assert losses[0] != losses[1]


def test_a_rank_counts_its_rows_by_their_shares() -> None:
    """It has 4 own decisions of 6, and none of the 3 offline ones, so that a quarter of its minibatch stays empty."""
    learner = Filtered(FilteredConfig(minibatch=32), make_actor(), Rank(0, 2, [[[6, 3]]]), 0, 1)
    replay = Replay(make_storage([GOOD] * 4, [True] * 4))
    chosen = WeightedDecisions(replay.list_decisions(0, replay.list_episodes(0)), np.full(4, 0.5, np.float32))
    seen = list[WeightedDecisions]()
    zero = 0 * next(learner.actor.parameters()).sum()
    learner._loss = lambda replay, drawn, generator: (seen.append(drawn), zero + float(drawn.weight.mean()))[1]  # type: ignore[method-assign]
    learner.optimiser.step = lambda ranks, rate: None  # type: ignore[method-assign,assignment]
    shares, draws = learner._count_shares(chosen), np.random.default_rng(0)
    loss = learner._step(replay, chosen, shares, draws, torch.Generator(), 0)
    assert len(seen[0]) == 12 and loss == pytest.approx(0.5 * (4 * 2 / 6) * 12 / 16)


def test_offline_decisions_alone_fill_every_minibatch() -> None:
    where = np.array([[1, 0, row] for row in range(5)])
    shares, share = count_shares(where, 0.25, Ranks())
    assert share == 1 and shares.tolist() == [0, 1]


@pytest.mark.thorough
def test_a_share_of_each_minibatch_is_offline() -> None:
    """All of it: then what the run itself did changes nothing."""
    offline = make_storage([GOOD] * 6, [True] * 6)
    one, _ = learn(Replay(make_storage([BAD] * 3, [True] * 3), (offline,)), offline_share=1.0)
    two, _ = learn(Replay(make_storage([GOOD] * 3, [True] * 3), (offline,)), offline_share=1.0)
    half, _ = learn(Replay(make_storage([BAD] * 3, [True] * 3), (offline,)), offline_share=0.5)
    assert_same_tensors(one.state_dict(), two.state_dict())
    with pytest.raises(AssertionError):
        assert_same_tensors(one.state_dict(), half.state_dict())


class Rank(Ranks):
    """One of several ranks, whose sums are those of all: given beforehand, in the order in which they are asked for."""

    def __init__(self, rank: int, size: int, sums: list[list[float]]) -> None:
        super().__init__()
        self.rank, self.size, self._sums = rank, size, sums

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, total in zip(tensors, self._sums.pop(0), strict=True):
            tensor.copy_(torch.tensor(total).reshape(tensor.shape))


@pytest.mark.parametrize("offline", [0, 10])
def test_ranks_weigh_their_decisions_as_one_process_would(offline: int) -> None:
    """Of 30 and 10 own decisions, and of 10 offline ones that are 4 and 6: what each decision counts in expectation."""
    own, others = [30, 10], [4, 6] if offline else [0, 0]
    counted = []
    for rank in range(2):
        where = np.array([[0, 0, row] for row in range(own[rank])] + [[1, 0, row] for row in range(others[rank])])
        learner = Filtered(
            FilteredConfig(offline_share=0.25), make_actor(), Rank(rank, 2, [[[sum(own), sum(others)]]]), 0, 1
        )
        shares = learner._count_shares(WeightedDecisions(where, np.ones(len(where), np.float32)))
        # a minibatch holds (1 - share) own rows of `own[rank]`, each with shares[0]; the mean is over two ranks
        counted.append(
            (
                (1 - learner._share) * shares[0] / own[rank] / 2,
                learner._share * shares[1] / max(others[rank], 1) / 2,
            )
        )
    share = 0.25 if offline else 0.0
    assert counted[0] == pytest.approx(counted[1])
    assert counted[0] == pytest.approx((((1 - share) / 40), share / 10))


@pytest.mark.thorough
def test_a_small_minibatch_has_its_offline_share_in_the_mean() -> None:
    """One decision a step, a quarter of them offline."""
    offline = make_storage([GOOD] * 6, [True] * 6)
    learner = Filtered(FilteredConfig(minibatch=1, steps=400, lr=0.0), make_actor(), Ranks(), 0, 1)
    seen = list[int]()
    loss = learner._loss
    learner._loss = lambda replay, chosen, generator: (  # type: ignore[method-assign]
        seen.extend(chosen.where[:, 0].tolist()),
        loss(replay, chosen, generator),
    )[1]
    learner.update(Replay(make_storage([BAD] * 3, [True] * 3), (offline,)), 0)
    assert len(seen) == 400 and sum(seen) / 400 == pytest.approx(0.25, abs=0.08)


@pytest.mark.thorough
def test_a_restored_learner_goes_on_with_the_same_bits() -> None:
    replay, config = Replay(make_storage([GOOD] * 4, [True] * 4)), FilteredConfig(steps=5, minibatch=8)
    first = Filtered(config, make_actor(), Ranks(), 0, 3)
    first.update(replay, 0)
    second = Filtered(config, deepcopy(first.actor), Ranks(), 0, 3)
    second.load(first.state())
    for learner in (first, second):
        learner.update(replay, 1)
    assert_same_tensors(first.actor.state_dict(), second.actor.state_dict())


@pytest.mark.thorough
@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_the_deployed_policy_learns_to_succeed(sign: int) -> None:
    """It points to a side with success or with failure as the filter: with the latter it must get worse."""
    actor, envs = make_actor(), 64
    handle: Any = InlineHandle(lambda: Pointing(Pointing.Config(), envs))  # type: ignore[arg-type,return-value]
    storage = ReplayStorage(ReplayFormat.of_simulator(SPEC, envs, 20, 1))
    rollout = Rollout.allocate(actor, 4, envs)
    collector = Collector([handle], SPEC, envs, EpisodeSampler(SPEC, 0), rollout, 0, writers=[storage], explore=False)
    learner = Filtered(FilteredConfig(lr=3e-3, steps=150, held_out=0.0), actor, Ranks(), 0, 8)
    if sign < 0:
        storage.__class__ = Reversed
    shares = []
    for iteration in range(8):
        collector.collect(actor)
        shares.append(float(rollout.success.float().mean()))
        learner.update(Replay(storage), iteration)
    assert (rollout.source == int(Source.POLICY)).all() and not rollout.log_prob.any()
    assert shares[-1] > 0.9 if sign > 0 else shares[-1] < shares[0]


class Reversed(ReplayStorage):
    """Exchanges success and failure."""

    def list_episodes(self) -> list[StoredEpisode]:
        return [replace(episode, success=not episode.success) for episode in super().list_episodes()]
