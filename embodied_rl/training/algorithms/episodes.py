"""Updates on whole episodes, each with one advantage: what GRPO and NFT share.

Every iteration starts fresh episodes and lets each environment run one to its end, so that groups are complete.
Each entry of the loss is weighted so that every episode of a rollout counts alike, however long (length normalisation,
RLinf-VLA); several rollouts are weighted by their number of entries.

Shapes: T decisions, N environments, E episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from statistics import fmean

import torch
from torch import Tensor

from embodied_rl.mathematics.objectives.losses import Level
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch, as_batch
from embodied_rl.training.algorithms.minibatch_update import MinibatchUpdate


class EpisodeUpdate(ABC):
    """One update an iteration, on episodes that `compare` gives an advantage."""

    def __init__(self, policy: MinibatchUpdate, ranks: Ranks) -> None:
        self.policy, self.ranks = policy, ranks

    @abstractmethod
    def compare(self, returns: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        """Return the advantages of episodes, float32 [E], and which of them to learn from, bool [E].

        Args:
            returns: float32 [E].
            group: int64 [E]; episodes with the same number started alike. An episode that was cut has its own.
        """

    def weigh(self, batch: Batch, weight: Tensor) -> None:
        """Multiply the loss of rows by `weight` float32 [B], here by their advantages."""
        batch.advantage = batch.advantage * weight

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
        returns = torch.where(rollout.valid, compose_reward(rollout, None), 0).sum(dim=0)  # [N], one episode each
        whole = (rollout.terminated | rollout.truncated).any(dim=0) & rollout.valid[0]
        alone = rollout.group.max() + 1 + torch.arange(len(whole))  # a broken episode gets its own group
        group = torch.where(whole, rollout.group[0], alone)
        advantage, kept = self.compare(returns, group)
        batch = as_batch(rollout, advantage.expand_as(rollout.valid), rollout.valid & kept & whole)
        self.weigh(batch, self._length_weights(batch, len(whole)))
        batch, importance = self.policy.proximal(batch)
        figures.append({"kept_share": float(kept.float().mean()), **importance})
        return batch

    def _length_weights(self, batch: Batch, episodes: int) -> Tensor:
        """Compute weights float32 [B] that give each episode the total weight of a mean episode, over all ranks."""
        ratios = batch.mask.any(dim=1) if self.policy.level == Level.CHUNK else batch.mask.sum(dim=1)
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
