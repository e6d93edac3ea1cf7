"""REINFORCE (Williams, 1992) on whole episodes: one gradient step an iteration, on return minus mean return.

Left out: a critic, clipping, several epochs. `embodied_rl.training.algorithms.ppo` has them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_rl.actors.learning import sharded
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.mathematics.objectives.losses import Level, reduce_log_prob
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import as_batch


@dataclass(frozen=True)
class ReinforceConfig:
    """Settings of REINFORCE."""

    lr: float = at_least(0, 3e-4)
    """learning rate."""


class Reinforce:
    """Learns from rollouts of whole episodes."""

    Config = ReinforceConfig

    @staticmethod
    def needs(config: ReinforceConfig) -> Needs:
        """Return what the algorithm needs of a run: rollouts that hold one whole episode of each environment."""
        return Needs(fresh_episodes=True)

    def __init__(self, config: ReinforceConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.actor, self.ranks = actor, ranks
        learned = {"actor": list(actor.parameter_groups()["actor"])}
        self.optimiser = Optimiser(learned, {"actor": config.lr}, 1.0, sharded.find_sharding(actor))

    def prepare(self, iteration: int) -> None:
        """Do nothing: neither learning rate nor noise changes."""

    def update(self, segments: Iterable[Rollout], iteration: int) -> dict[str, float]:
        """Take one step on the rollout of an iteration; return metrics."""
        (rollout,) = segments
        returns = torch.where(rollout.valid, compose_reward(rollout, None), 0).sum(dim=0)  # [N], one episode each
        batch = as_batch(rollout, (returns - returns.mean()).expand_as(rollout.valid))
        batch = batch.select(batch.rows)
        self.optimiser.zero_grad()
        log_prob = reduce_log_prob(self.actor.evaluate(batch.trace).log_prob, batch.mask, Level.CHUNK)  # [B]
        loss = -(batch.advantage * log_prob).mean()
        loss.backward()
        norm = self.optimiser.step(self.ranks, weight=len(batch.rows))
        return {"loss": loss.item(), "grad_norm": norm}

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's tensors, which an exact resume needs."""
        return self.optimiser.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.optimiser.load(state)
