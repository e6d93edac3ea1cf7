"""A reward that comes decisions later: learned values against those of the chain, and the action that earns it."""

from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.testing.fakes import RowwiseFakeActor
from embodied_rl.training.algorithms.awr import AWR, AWRConfig
from embodied_rl.training.algorithms.dsrl import DSRL, DSRLConfig
from embodied_rl.training.algorithms.grpo import GRPO
from embodied_rl.training.algorithms.nft import NFT
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from embodied_rl.training.algorithms.recap import POSITIVE, Recap, RecapConfig
from embodied_rl.training.algorithms.replay_transitions import find_transitions
from tests.support.chain import EARLY, LENGTH, Chain, collect_chain, find_values, observe_places
from tests.support.stored_actions import BAD, GOOD, make_actor, sample_actions
from tests.support.two_modes import steer

FAR, NEAR = 0.99, 0.6
"""Discounts with which the late reward is worth more than the early one, and less: 0.95 and 0.08 against 0.3."""
DISCOUNTS = pytest.mark.parametrize("gamma", [FAR, NEAR])
ENVS, EXECUTED = 32, 2
UPDATE = {"lr": 0.05, "minibatch": 32, "warmup_updates": 0, "epochs": 2, "lr_final": 1.0}


def train(kind: Any, config: Any, late: float = 1.0, iterations: int = 20) -> RowwiseFakeActor:
    """A policy and, if need be, a critic that know nothing but the place, after chunks of two control steps."""
    chain = Chain.Config(late, tabular=True)
    simulator = Chain(chain, ENVS)
    actor, needs = RowwiseFakeActor(simulator.spec, EXECUTED), kind.needs(config)
    learner = kind(config, actor, Ranks(), 0, iterations)
    episodes = EpisodeSampler(simulator.spec, 0, group_size=needs.group_size)
    rollout = Rollout.allocate(actor, LENGTH // EXECUTED, ENVS)
    handles = [InlineHandle(lambda: simulator)]
    collector = Collector(handles, simulator.spec, ENVS, episodes, rollout, 0, fresh=needs.fresh_episodes)
    for actor.version in range(iterations):
        learner.prepare(actor.version)
        learner.update([collector.collect(actor)], actor.version)
    return actor


def first_action(actor: RowwiseFakeActor) -> float:
    """Where the deployed policy begins."""
    decision = actor.act(observe_places(np.zeros(1), tabular=True), NoiseKeys.none(1), explore=False)
    return float(decision.actions[0, 0, 0])


@DISCOUNTS
def test_ppo_learns_the_values_and_the_action_that_is_worth_more(gamma: float) -> None:
    config = PPOConfig(**UPDATE, gamma=gamma, critic_lr=0.1, critic_warmup=5, target_kl=None)
    actor = train(PPO, config)
    mean, deviation = first_action(actor), float(actor.log_std[0, 0].exp())
    assert mean > 0.3 if gamma == FAR else mean < -0.3
    places = np.array([0, 2, 4]) * (1 if gamma == FAR else -1)  # where it comes often
    found = actor.value(observe_places(places, tabular=True), NoiseKeys.none(3)).detach().numpy()
    good = 1 - NormalDist(mean, deviation).cdf(0)
    assert found == pytest.approx(find_values(places, gamma, good), abs=0.06)


@pytest.mark.parametrize(("kind", "settings"), [(GRPO, {"success_low": -9.0, "success_high": 9.0}), (NFT, {})])
@pytest.mark.parametrize("late", [1.0, 0.1])
def test_a_group_learns_the_action_of_the_larger_return(kind: Any, settings: dict[str, Any], late: float) -> None:
    """Undiscounted; the early reward where it is the larger one."""
    first = first_action(train(kind, kind.Config(**UPDATE, group_size=8, **settings), late))
    assert first > 0.3 if late > EARLY else first < -0.3


@cache
def stored() -> Replay:
    """Episodes that begin with either mode, about equally often, with their start noise."""
    actor = steer("privileged")
    actor.explore_with({"plain_start": 1.0})
    return Replay(collect_chain(actor, 64, ["start_noise"]))


def list_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the decisions are, in which place, and whether their first action was the good one."""
    replay = stored()
    where = replay.list_decisions(0, replay.list_episodes(0))
    places = replay.read_field("privileged", where)[:, 0].round().astype(int)
    chosen = replay.read_field("executed", where)[:, 0, 0] > 0
    assert len(where) == 64 * LENGTH and 24 < chosen[places == 0].sum() < 40
    return where, places, chosen


CRITIC: dict[str, Any] = {"critic_lr": 1e-2, "minibatch": 64, "critic_steps": 150}


@DISCOUNTS
@pytest.mark.parametrize("lam", [0.7, 1.0])
def test_awr_weighs_decisions_by_what_they_lead_to(gamma: float, lam: float) -> None:
    """The critic comes to the values of the data; only the first action has an advantage."""
    learner = AWR(AWRConfig(gamma=gamma, lam=lam, temperature=0.5, **CRITIC), make_actor("privileged"), Ranks(), 0, 1)
    where, places, chosen = list_rows()
    for iteration in range(8):
        weighted, _ = learner.weigh(stored(), iteration)
    assert np.array_equal(weighted.where, where)
    values = find_values(places, gamma, chosen[places == 0].mean())
    assert learner._values(stored(), where).numpy() == pytest.approx(values, abs=0.08)
    worth = np.where(chosen, gamma ** (LENGTH - 1), EARLY)
    expected = np.exp(np.where(places == 0, worth - values, 0) / 0.5)
    assert weighted.weight == pytest.approx(expected / expected.mean(), rel=0.25)


@DISCOUNTS
def test_recap_labels_decisions_by_what_they_lead_to(gamma: float) -> None:
    """As many positive ones as there are first actions of the better side."""
    _, places, chosen = list_rows()
    best = (places == 0) & (chosen == (gamma == FAR))
    settings = CRITIC | {"gamma": gamma, "positive_share": best.mean()}
    learner = Recap(RecapConfig(**settings), make_actor("privileged"), Ranks(), 0, 1)
    for iteration in range(3):
        weighted, _ = learner.weigh(stored(), iteration)
    assert ((weighted.condition == POSITIVE) == best).all()


@pytest.mark.thorough
def test_the_policy_of_awr_has_the_odds_of_the_exponential() -> None:
    """With λ = 1, so that the weights are those of returns, whatever the critic says of later places."""
    settings = CRITIC | {"gamma": FAR, "lam": 1.0, "steps": 1500, "lr": 3e-3, "temperature": 0.5}
    learner = AWR(AWRConfig(**settings), make_actor("privileged"), Ranks(), 0, 1)
    _, places, chosen = list_rows()
    learner.update(stored(), 0)
    learner.actor.sampler.denoise_steps = 50
    before = chosen[places == 0].mean()
    odds = before / (1 - before) * np.exp((FAR ** (LENGTH - 1) - EARLY) / 0.5)
    assert float((sample_actions(learner.actor) > 0).mean()) == pytest.approx(odds / (1 + odds), abs=0.06)


@pytest.mark.thorough
@DISCOUNTS
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("variant", ["noise_aliased", "sac"])
def test_dsrl_learns_the_values_and_the_mode_that_is_worth_more(variant: Any, n: int, gamma: float) -> None:
    """Almost without entropy; what comes after the first action does not depend on the policy."""
    config = DSRLConfig(
        variant=variant, n_step=n, gamma=gamma, updates=400, minibatch=64, hidden=16, lr=1e-2, critic_lr=1e-2, tau=0.1,
        temperature=1e-4, temperature_lr=0.0,
    )  # fmt: skip
    learner = DSRL(config, steer("privileged"), Ranks(), 0, 1)
    learner.update(stored(), 0)
    assert (sample_actions(learner.actor) == (GOOD if gamma == FAR else BAD)).all()
    where, places, chosen = list_rows()
    seen = learner._make_look(stored(), find_transitions(stored(), 1, gamma, n))(where)
    judged = stored().read_field("executed", where)[:, 0] if variant == "noise_aliased" else None
    judged = stored().read_field("trace/start_noise", where) if judged is None else judged
    with torch.no_grad():
        found = learner.critics(seen.features, torch.from_numpy(judged)).amin(0).numpy()
    worth = np.where(places == 0, np.where(chosen, gamma ** (LENGTH - 1), EARLY), find_values(places, gamma, 0))
    assert np.sqrt(np.mean((found - worth) ** 2)) < 0.08 and np.abs(found - worth).max() < 0.3
