"""The contract of algorithms: every method of the platform passes, broken ones are caught with a fitting message."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.assembly.networks import fit_conditions
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec, Source
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.mathematics.objectives.losses import Level, reduce_log_prob
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.testing.contract import check_algorithm
from embodied_rl.training.algorithms.awr import AWR, AWRConfig
from embodied_rl.training.algorithms.batch import Batch, as_batch
from embodied_rl.training.algorithms.dsrl import DSRL, DSRLConfig
from embodied_rl.training.algorithms.filtered import Filtered, FilteredConfig
from embodied_rl.training.algorithms.grpo import GRPO, GRPOConfig
from embodied_rl.training.algorithms.nft import NFT, NFTConfig
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from embodied_rl.training.algorithms.recap import Recap, RecapConfig
from embodied_rl_policies.pocket import Pocket

NETWORK = Pocket.Config(width=16, layers=1, heads=2, horizon=3, keypoints=4, stem_channels=8)
LENGTH, WORDS = 2, 2
POLICY, HUMAN, SAFETY = Source.POLICY, Source.HUMAN, Source.SAFETY


def make_flow(sampler: Callable[[], Sampler], needs: Needs, critic: str) -> Callable[[SimulatorSpec], Actor]:
    """A function that returns a small flow actor for an algorithm's needs.

    It executes two of three actions; for cloning from replay one of one, as a chunk is seen as a whole.
    """
    alone = needs.learns_from == "replay" and not needs.start_noise

    def build(spec: SimulatorSpec) -> Actor:
        torch.manual_seed(0)
        embodiment = Embodiment.of_simulator(spec, 1 if alone else 2, token_length=LENGTH)
        backbone = Pocket(
            replace(NETWORK, horizon=1 if alone else 3), 2, 3, ("top",), (16, 16), len(embodiment.vocabulary), LENGTH
        )
        sizes: dict[str, Any] = {"privileged_dim": 3, "context_dim": NETWORK.width, "feature_dim": NETWORK.width}
        head = make_critic(critic if needs.critic else "none", hidden=(16,), **sizes)
        actor = FlowActor(backbone, sampler(), head, embodiment, privileged_names=spec.privileged_names)
        if needs.conditions:
            actor.embodiment = fit_conditions(actor.backbone, actor.embodiment, needs.conditions, WORDS)
        if needs.start_noise:
            backbone.requires_grad_(False)
            actor.start_noise = StartNoise(needs.start_noise, actor.network.spec)
        return actor

    return build


def make_noise() -> Sampler:
    return FlowNoise(3, 0.05, 0.3, NETWORK.width, 2)


def make_sde() -> Sampler:
    return FlowSDE(3, 0.7)


PPO_SETTINGS = {"critic_steps": 2, "minibatch": 16, "critic_warmup": 1, "target_kl": None, "epochs": 2}
CLONING = {"steps": 3, "minibatch": 8}
RATED = CLONING | {"critic_steps": 2}
STEERING: dict[str, Any] = {"updates": 2, "minibatch": 8, "hidden": 8}
GROUPED = {"minibatch": 16, "group_size": 4, "target_kl": None, "epochs": 2}
METHODS: dict[str, tuple[Any, Any, Callable[[], Sampler], str, tuple[Source, ...]]] = {
    "ppo/flow_sde": (PPO, PPOConfig(**PPO_SETTINGS), make_sde, "privileged", (POLICY,)),
    "ppo/flow_noise": (PPO, PPOConfig(**PPO_SETTINGS, entropy=0.01), make_noise, "prefix", (POLICY,)),
    "grpo": (GRPO, GRPOConfig(**GROUPED), make_sde, "none", (POLICY,)),
    "grpo/waiting": (GRPO, GRPOConfig(**GROUPED, dynamic_sampling=3), make_sde, "none", (POLICY,)),
    "nft": (NFT, NFTConfig(**GROUPED), make_sde, "none", (POLICY,)),
    "nft/alone": (NFT, NFTConfig(**GROUPED | {"group_size": 1}), make_sde, "none", (POLICY,)),
    "filtered": (Filtered, FilteredConfig(**CLONING, held_out=0.2), make_sde, "none", (POLICY, HUMAN)),
    "awr": (AWR, AWRConfig(**RATED), make_sde, "privileged", (POLICY, HUMAN)),
    "recap": (Recap, RecapConfig(**RATED), make_sde, "prefix", (POLICY, HUMAN)),
    "dsrl/noise_aliased": (DSRL, DSRLConfig(**STEERING), make_sde, "privileged", (POLICY, HUMAN, SAFETY)),
    "dsrl/sac": (DSRL, DSRLConfig(**STEERING, variant="sac"), make_sde, "privileged", (POLICY,)),
    "dsrl/ratio": (
        DSRL,
        DSRLConfig(**STEERING, variant="sac", updates_per_decision=0.08),
        make_sde,
        "privileged",
        (POLICY,),
    ),
}


def list_methods() -> list[Any]:
    """Names of methods; most are thorough."""
    quick = ("ppo/flow_noise", "filtered", "dsrl/noise_aliased")
    return [name if name in quick else pytest.param(name, marks=pytest.mark.thorough) for name in METHODS]


@pytest.mark.parametrize("name", list_methods())
def test_every_method_keeps_the_contract(name: str) -> None:
    kind, config, sampler, critic, learns = METHODS[name]
    check_algorithm(kind, config, make_flow(sampler, kind.needs(config), critic), learns=learns)


def test_without_an_actor_a_fake_one_learns() -> None:
    check_algorithm(PPO, PPOConfig(**PPO_SETTINGS))


@dataclass(frozen=True)
class Settings:
    """Of `Plain`: none."""


class Plain:
    """REINFORCE on the rewards of decisions, with the contract kept."""

    Config = Settings

    @staticmethod
    def needs(config: Settings) -> Needs:
        return Needs()

    def __init__(self, config: Settings, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.actor, self.ranks, self.rate = actor, ranks, 1.0
        self.optimiser = Optimiser({"actor": list(actor.parameter_groups()["actor"])}, {"actor": 0.01}, 1.0)

    def prepare(self, iteration: int) -> None: ...

    def make_batch(self, rollout: Rollout) -> Batch:
        batch = as_batch(rollout, compose_reward(rollout, None) - 0.5)
        return batch.select(batch.rows)

    def update(self, segments: Iterable[Rollout], iteration: int) -> dict[str, float]:
        (rollout,) = segments
        return {"grad_norm": self.learn(self.make_batch(rollout))}

    def learn(self, batch: Batch) -> float:
        self.optimiser.zero_grad()
        log_prob = reduce_log_prob(self.actor.evaluate(batch.trace).log_prob, batch.mask, Level.CHUNK)
        (-batch.advantage * log_prob).sum().backward()
        return self.optimiser.step(self.ranks, self.rate)

    def state(self) -> dict[str, Tensor]:
        return self.optimiser.state()

    def load(self, state: dict[str, Tensor]) -> None:
        self.optimiser.load(state)


class Infinite(Plain):
    def update(self, segments, iteration):
        return super().update(segments, iteration) | {"ratio": 1 / 0.0 if iteration > 5 else float("nan")}


class Random(Plain):
    def make_batch(self, rollout):
        batch = super().make_batch(rollout)
        return batch.select(torch.randperm(len(batch.rows))[:10])


class Forgetful(Plain):
    def state(self):
        return {}

    def load(self, state):
        pass


class Stateful(Plain):
    """Has a learning rate that no state holds."""

    def update(self, segments, iteration):
        self.rate *= 0.5
        return super().update(segments, iteration)


class Impatient(Plain):
    @staticmethod
    def needs(config):
        return Needs(warmup=1)


class Uncritical(Plain):
    """Trains a critic that it has not asked for."""

    def learn(self, batch):
        with torch.no_grad():
            for parameter in self.actor.parameter_groups()["critic"] if len(batch.rows) else ():
                parameter.mul_(0.9)
        return super().learn(batch)


class Idle(Plain):
    def learn(self, batch):
        return 0.0


class InPlace(Plain):
    def update(self, segments, iteration):
        (rollout,) = segments
        rollout.reward.mul_(0.5)
        return super().update([rollout], iteration)


class Repeating(Plain):
    def learn(self, batch):
        super().learn(batch)
        return super().learn(batch)


class Decaying(Plain):
    """Its weights fall without a reason."""

    def learn(self, batch):
        with torch.no_grad():
            for parameter in self.actor.parameter_groups()["actor"]:
                parameter.mul_(0.99)
        return super().learn(batch)


class Mean(Plain):
    """Takes a mean of no rows."""

    def update(self, segments, iteration):
        (rollout,) = segments
        return super().update([rollout], iteration) | {"reward": float(rollout.reward[rollout.valid].mean())}


class Valuing(Plain):
    def make_batch(self, rollout):
        batch = as_batch(rollout, compose_reward(rollout, None) - rollout.value)
        return batch.select(batch.rows)


class Grouping(Plain):
    def make_batch(self, rollout):
        batch = as_batch(rollout, compose_reward(rollout, None) - 0.1 * rollout.group)
        return batch.select(batch.rows)


class Averaging(Plain):
    """Compares with a mean in which lost rows count."""

    def make_batch(self, rollout):
        batch = as_batch(rollout, compose_reward(rollout, None) - rollout.reward.mean())
        return batch.select(batch.rows)


class Imitating(Plain):
    """Takes the likelihood of what a human or a safety filter did for the policy's."""

    def make_batch(self, rollout):
        executed = torch.arange(rollout.executed) < rollout.steps[..., None]
        batch = replace(as_batch(rollout, compose_reward(rollout, None) - 0.5), mask=executed.flatten(0, 1))
        return batch.select(batch.rows)


class Overrunning(Plain):
    """Learns actions that an episode's end cut off."""

    def make_batch(self, rollout):
        batch = as_batch(rollout, compose_reward(rollout, None) - 0.5)
        return replace(batch, mask=torch.ones_like(batch.mask)).select(batch.rows)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Infinite, "figures of iteration 0 are not finite"),
        (Random, "equal seeds give different"),
        (Forgetful, "a restored state continues with other bits"),
        (Stateful, "a restored state continues with other bits"),
        (Impatient, "change in the 1 iterations of needs.warmup"),
        (Uncritical, "the critic changes, although needs.critic is false"),
        (Idle, "no parameter of the policy changes"),
        (InPlace, "an update changes the rollout: reward"),
        (Repeating, "rows are evaluated, more than the 32 of needs.epochs=1"),
        (Decaying, "parameters change, although there is no row to learn from"),
        (Mean, "with no row to learn from, figures are not finite"),
        (Valuing, "values, groups or lost rows are read"),
        (Grouping, "values, groups or lost rows are read"),
        (Averaging, "values, groups or lost rows are read"),
        (Imitating, "steps of HUMAN, SAFETY count, but `learns` says that they do not"),
        (Overrunning, "a step counts that was not executed"),
    ],
)
def test_broken_algorithms_are_caught(kind: type[Plain], message: str) -> None:
    check_algorithm(Plain, Settings())
    with pytest.raises(AssertionError, match=message):
        check_algorithm(kind, Settings())


class Moving(DSRL):
    """Changes the network that it says is frozen."""

    def update(self, replay, iteration):
        with torch.no_grad():
            next(iter(self.actor.network.parameters())).add_(0.5)
        return super().update(replay, iteration)


class Writing(Filtered):
    def update(self, replay, iteration):
        replay.own._arrays["reward"][:] = 0
        return super().update(replay, iteration)


class Failing(Filtered):
    """Clones failures, too."""

    def weigh(self, replay, iteration):
        chosen, figures = super().weigh(replay, iteration)
        where = replay.list_decisions(0, replay.list_episodes(0))
        return replace(chosen, where=where, weight=np.ones(len(where), np.float32)), figures


@pytest.mark.parametrize(
    ("kind", "config", "learns", "message"),
    [
        (Moving, DSRLConfig(**STEERING), METHODS["dsrl/noise_aliased"][4], "parameters change that are in no group"),
        (Writing, FilteredConfig(**CLONING), (POLICY, HUMAN), "an update changes the replay storage"),
        (Failing, FilteredConfig(**CLONING), (POLICY, HUMAN), "although there is no successful episode"),
        (Filtered, FilteredConfig(**CLONING), (POLICY,), "actions of HUMAN count, but `learns` says that they do not"),
        (
            DSRL, DSRLConfig(**STEERING, variant="sac"), (POLICY, HUMAN),
            "actions of HUMAN do not count, but `learns` says that they do",
        ),
    ],
)  # fmt: skip
def test_broken_replay_algorithms_are_caught(kind: Any, config: Any, learns: tuple[Source, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(kind, config, make_flow(make_sde, kind.needs(config), "prefix"), learns=learns)
