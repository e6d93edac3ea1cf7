"""Group relative policy optimisation (arXiv:2402.03300), for flow policies as in pi_RL (arXiv:2510.25889).

Episodes of one group start from the same state. An episode's advantage is its return relative to its group, the same
for all of its decisions. It has no critic. Groups that nearly always fail or succeed carry no signal and are left out.

Every iteration starts fresh episodes and lets each environment run one to its end, so that groups are complete.
Ratios are weighted so that every episode of a rollout counts alike, however long (length normalisation, RLinf-VLA);
several rollouts are weighted by their number of ratios.

Shapes: T decisions, N environments, E episodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.mathematics.objectives.advantages import group_advantage
from embodied_rl.mathematics.objectives.losses import Level
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch, as_batch
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate


@dataclass(frozen=True)
class GRPOConfig(ClippedConfig):
    """Settings of GRPO, beyond those of the clipped update."""

    group_size: int = at_least(2, 8)
    """episodes that start alike; it divides the environments of every rank."""
    success_low: float = 0.1
    """groups whose mean return is below are left out."""
    success_high: float = 0.9
    """groups whose mean return is above are left out."""


class GRPO:
    """One update an iteration: group advantages, policy."""

    Config = GRPOConfig

    @staticmethod
    def needs(config: GRPOConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(
            group_size=config.group_size, fresh_episodes=True, epochs=config.epochs, minibatch=config.minibatch
        )

    def __init__(self, config: GRPOConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.config, self.ranks = config, ranks
        self.policy = ClippedUpdate(config, actor, ranks, seed, iterations)

    def prepare(self, iteration: int) -> None:
        """Set the learning rates and the noise level of an iteration before its rollout is collected."""
        self.policy.anneal(iteration)

    def update(self, segments: Iterable[Rollout], iteration: int) -> dict[str, float]:
        """Learn from rollouts of whole episodes as they arrive, usually a single one; return figures for the log."""
        figures: list[dict[str, float]] = []
        _, means = self.policy.run((self._batch(rollout, figures) for rollout in segments), iteration)
        return {name: fmean(each[name] for each in figures) for name in figures[0]} | means

    def _batch(self, rollout: Rollout, figures: list[dict[str, float]]) -> Batch:
        """Return the rows of a rollout to learn from; append their metrics to `figures`."""
        rewards = compose_reward(rollout, self.needs(self.config).discount)
        returns = torch.where(rollout.valid, rewards, 0).sum(dim=0)  # [N], one episode each
        whole = (rollout.terminated | rollout.truncated).any(dim=0) & rollout.valid[0]
        alone = rollout.group.max() + 1 + torch.arange(len(whole))  # a broken episode gets its own group
        group = torch.where(whole, rollout.group[0], alone)
        advantage, kept = group_advantage(returns, group, self.config.success_low, self.config.success_high)
        batch = as_batch(rollout, advantage.expand_as(rollout.valid), rollout.valid & kept & whole)
        batch.advantage = batch.advantage * self._length_weights(batch, len(whole))
        batch, importance = self.policy.proximal(batch)
        figures.append({"kept_share": float(kept.float().mean()), **importance})
        return batch

    def _length_weights(self, batch: Batch, episodes: int) -> Tensor:
        """Compute weights float32 [B] that give each episode the total weight of a mean episode, over all ranks."""
        ratios = batch.mask.any(dim=1) if self.config.level == Level.CHUNK else batch.mask.sum(dim=1)
        learned = torch.zeros_like(ratios)
        learned[batch.rows] = ratios[batch.rows]
        length = learned.view(-1, episodes).sum(dim=0).float()
        sums = torch.stack([length.sum(), (length > 0).sum()])
        self.ranks.sum_([sums])
        mean = sums[0] / sums[1].clamp_min(1)
        return (mean / length.clamp_min(1)).repeat(len(ratios) // episodes)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        return self.policy.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.policy.load(state)
