"""RECAP: its labels, its distributions in closed form, its beginning, and an exact restart."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.assembly.networks import fit_conditions
from embodied_rl.interfaces.sim import Episode, Observation, Source, StepResult
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.recap import NEGATIVE, POSITIVE, Recap, RecapConfig
from tests.support.stored_actions import BAD, GOOD, SPEC, make_actor, make_storage, observe, sample_actions
from tests.support.using_checkpoints import assert_same_tensors

SETTINGS = {"steps": 8, "minibatch": 16, "critic_steps": 20, "critic_lr": 1e-2}


def make_learner(ranks: Ranks | None = None, **settings: Any) -> Recap:
    config = RecapConfig(**(SETTINGS | settings))
    return Recap(config, make_reader(), ranks or Ranks(), 0, 1)


def make_reader() -> FlowActor:
    """An actor that can read the labels."""
    actor = make_actor("privileged")
    actor.embodiment = fit_conditions(actor.backbone, actor.embodiment, (POSITIVE, NEGATIVE), 1)
    return actor


def find_positive(learner: Recap, replay: Replay) -> list[bool]:
    """Which decisions are labelled positive; every other one must be labelled negative."""
    chosen, figures = learner.weigh(replay, 0)
    assert chosen.condition is not None and set(chosen.condition.tolist()) <= {POSITIVE, NEGATIVE}
    assert (chosen.weight == 1).all()
    positive = chosen.condition == POSITIVE
    if learner.ranks.size == 1:
        assert figures["positive"] == pytest.approx(positive.mean())
    return positive.tolist()


@pytest.mark.thorough
def test_conditioned_plain_and_guided_policies_are_those_in_closed_form() -> None:
    """Of two actions, equally often, GOOD succeeds in three of four episodes and BAD in one: the labels are successes.

    p(positive|GOOD) / p(positive|BAD) = 3, so that guidance w gives odds of 3^w.
    """
    actions, successes = [GOOD] * 4 + [BAD] * 4, [True, True, True, False, True, False, False, False]
    replay = Replay(make_storage(actions * 50, successes * 50))
    learner = make_learner(steps=1500, minibatch=128, lr=3e-3, critic_steps=50, positive_share=0.5)
    learner.update(replay, 0)
    actor = learner.actor
    actor.sampler.denoise_steps = 50
    for weight in (0.0, 0.5, 1.0, 2.0, 3.0):
        actor.embodiment = replace(actor.embodiment, guidance=weight)
        share = float((sample_actions(actor) > 0).mean())
        assert share == pytest.approx(3**weight / (1 + 3**weight), abs=0.05), weight
    actor.embodiment = replace(actor.embodiment, condition=NEGATIVE, guidance=1.0)
    assert float((sample_actions(actor) > 0).mean()) == pytest.approx(1 / 4, abs=0.05)


@pytest.mark.slow
def test_with_labels_that_are_certain_only_good_actions_remain() -> None:
    """GOOD always succeeds; without the label the policy keeps the odds of the data."""
    replay = Replay(make_storage([GOOD, BAD, BAD, BAD] * 50, [True, False, False, False] * 50))
    learner = make_learner(steps=1500, minibatch=128, lr=3e-3, critic_steps=50, positive_share=0.25)
    learner.update(replay, 0)
    actor = learner.actor
    actor.sampler.denoise_steps = 50
    acted = sample_actions(actor)
    assert (acted > 0).mean() > 0.97 and np.median(acted) == pytest.approx(GOOD, abs=0.1)
    actor.embodiment = replace(actor.embodiment, guidance=0.0)
    assert float((sample_actions(actor) > 0).mean()) == pytest.approx(1 / 4, abs=0.05)


@pytest.mark.parametrize(("share", "positive"), [(0.3, 2), (0.5, 3), (1.0, 6)])
def test_the_best_of_an_instruction_are_positive(share: float, positive: int) -> None:
    """By their advantage, not by their reward; equal ones together, so that there are always some."""
    learner = make_learner(positive_share=share)
    advantage, six = torch.tensor([3.0, -1.0, 2.0, 0.5, 0.0, -2.0]).double(), ["left"] * 6
    best = learner._is_best(six, advantage)
    assert best.sum() == positive and best[np.argsort(-advantage.numpy())[:positive]].all()
    assert learner._is_best(six, torch.zeros(6).double()).all()
    assert learner._is_best([], torch.zeros(0).double()).tolist() == []


def test_each_instruction_has_its_own_threshold() -> None:
    """The best of a hard task are worse than the worst of an easy one."""
    advantage = torch.tensor([5.0, 6.0, 7.0, 8.0, -5.0, -6.0, -7.0, -8.0]).double()
    mixed = [0, 4, 1, 5, 2, 6, 3, 7]
    texts = np.array(["left"] * 4 + ["right"] * 4)
    best = make_learner(positive_share=0.25)._is_best(texts[mixed].tolist(), advantage[mixed])
    assert sorted(np.array(mixed)[best].tolist()) == [3, 4]


class Gathered(Ranks):
    """A rank that gets what the others would send."""

    def __init__(self, others: Sequence[Any]) -> None:
        super().__init__()
        self.size, self._others = 1 + len(others), others

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        return [value, *self._others]


def test_ranks_label_as_one_would() -> None:
    """Whichever instructions they hold."""
    generator = np.random.default_rng(0)
    texts, advantage = generator.choice(["left", "right"], 30), generator.normal(size=30).round(1)
    alone = make_learner()._is_best(texts.tolist(), torch.from_numpy(advantage))
    cuts = [np.arange(0, 9), np.arange(9, 30), np.zeros(0, np.int64)]
    parts = [{str(text): advantage[cut][texts[cut] == text] for text in set(texts[cut])} for cut in cuts]
    for rank, cut in enumerate(cuts):
        others = [part for number, part in enumerate(parts) if number != rank]
        mine = make_learner(Gathered(others))._is_best(texts[cut].tolist(), torch.from_numpy(advantage[cut]))
        assert mine.tolist() == alone[cut].tolist()


def test_labels_follow_advantages_and_humans() -> None:
    """Whatever a human's correction led to; a chunk of one step."""
    sources = [Source.POLICY] * 4 + [Source.HUMAN, Source.REPLAY]
    replay = Replay(make_storage([GOOD, GOOD, BAD, BAD, BAD, BAD], [True, True] + [False] * 4, sources))
    assert find_positive(make_learner(), replay) == [True, True, False, False, True, False]


def test_a_chunk_in_which_a_human_acted_is_positive() -> None:
    """Whichever step it was; four episodes of a chunk, of which the last succeeds, and is the best; two of a step."""
    storage = ReplayStorage(ReplayFormat.of_simulator(SPEC, 1, 9, 2))
    both = [[Source.POLICY] * 2, [Source.POLICY, Source.HUMAN], [Source.HUMAN, Source.POLICY], [Source.POLICY] * 2]
    played = np.full((1, 2, 1), GOOD, np.float32)
    for index, sources in enumerate(both):
        reward = np.array([[0, index == 3]])
        result = StepResult(
            reward.astype(np.float32), reward > 0, np.full(1, 2), played, np.array([sources], np.uint8),
            terminated=np.ones(1, bool), truncated=np.zeros(1, bool), observation=observe(1),
        )  # fmt: skip
        storage.write_episode(0, Episode(index, 0, seed=index), observe(1), played, result)
    replay = Replay(storage, (make_storage([BAD, BAD], [False, False], [Source.POLICY, Source.HUMAN]),))
    learner = make_learner(positive_share=0.0, critic_steps=0)
    assert find_positive(learner, replay) == [False, True, True, True, False, True]


def test_labels_of_offline_episodes_are_those_of_their_own_instructions() -> None:
    """Which have the same number there as other ones here."""
    own = make_storage([GOOD, BAD, BAD], [True, False, False])
    offline = make_storage([BAD, GOOD], [False, True], instruction="right")
    replay = Replay(own, (offline,))
    where = np.concatenate([replay.list_decisions(number, replay.list_episodes(number)) for number in range(2)])
    assert replay.read_instructions(where) == ["left"] * 3 + ["right"] * 2
    assert find_positive(make_learner(positive_share=0.4), replay) == [True, False, False, False, True]


def read_conditions(learner: Recap, replay: Replay) -> list[str]:
    """The conditions under which an update learns, or computes the held-out loss of, each row."""
    seen, read = list[str](), learner.actor.observation_inputs

    def note(observation: Observation, condition: Any = None) -> Any:
        if torch.is_grad_enabled():
            seen.extend(condition)
        elif condition is not None:
            held.extend(condition)
        return read(observation, condition)

    held = list[str]()
    learner.actor.observation_inputs = note
    learner.update(replay, 0)
    assert "" not in held
    return seen


@pytest.mark.thorough
def test_a_share_of_the_draws_has_no_label() -> None:
    """Of each decision anew; the held-out loss is always that under labels."""
    replay = Replay(make_storage([GOOD, BAD] * 10, [True, False] * 10))
    drawn = read_conditions(make_learner(steps=60, lr=0.0, positive_share=0.5, held_out=0.2, patience=100), replay)
    assert len(drawn) == 60 * 16
    shares = [drawn.count(text) / len(drawn) for text in ("", POSITIVE, NEGATIVE)]
    assert shares[0] == pytest.approx(0.3, abs=0.06) and min(shares[1:]) > 0.2
    assert sum(0 < drawn[16 * step : 16 * step + 16].count("") < 16 for step in range(60)) > 50
    assert "" not in read_conditions(make_learner(dropout=0.0), replay)
    assert set(read_conditions(make_learner(dropout=1.0), replay)) == {""}


def test_until_the_first_update_the_policy_acts_as_it_did() -> None:
    """To the bit, and then under the condition, with the configured guidance."""
    expected = sample_actions(make_reader(), 50)
    learner = make_learner(guidance=1.5)
    assert np.array_equal(sample_actions(learner.actor, 50), expected)
    empty = learner.update(Replay(make_storage([], [])), 0)
    assert empty["steps"] == empty["positive"] == 0
    assert np.array_equal(sample_actions(learner.actor, 50), expected)
    learner.update(Replay(make_storage([GOOD, BAD], [True, False])), 1)
    body = learner.actor.embodiment
    assert (body.condition, body.guidance) == (POSITIVE, 1.5)
    assert not np.array_equal(sample_actions(learner.actor, 50), expected)


def test_a_policy_that_has_learned_labels_is_asked_for_positive_ones_from_the_start() -> None:
    first = make_learner(guidance=1.5)
    first.update(Replay(make_storage([GOOD, BAD], [True, False])), 0)
    later = Recap(RecapConfig(guidance=1.0), deepcopy(first.actor), Ranks(), 0, 1)
    assert later.actor.embodiment == replace(first.actor.embodiment, guidance=1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("updates", [1, 2])
def test_a_restored_learner_goes_on_with_the_same_bits(updates: int) -> None:
    """Also where no episode had ended before, so that the policy still acts without a label."""
    replay = Replay(make_storage([GOOD, BAD] * 3, [True, False] * 3))
    first = make_learner(guidance=2.0)
    first.update(replay if updates > 1 else Replay(make_storage([], [])), 0)
    second = Recap(first.config, deepcopy(first.actor), Ranks(), 0, 1)
    second.load(first.state())
    assert second.actor.embodiment == first.actor.embodiment
    for learner in (first, second):
        learner.update(replay, 1)
    assert_same_tensors(first.actor.state_dict(), second.actor.state_dict())
    assert np.array_equal(sample_actions(first.actor, 20), sample_actions(second.actor, 20))
