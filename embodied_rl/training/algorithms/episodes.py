"""Updates on whole episodes, each with one advantage: what GRPO and NFT share.

Every iteration starts fresh episodes and lets each environment run one to its end, so that groups are complete.
Each entry of the loss is weighted so that every episode of a rollout counts alike, however long (length normalisation,
RLinf-VLA); several rollouts are weighted by their number of entries.

Groups whose episodes all end alike have no gradient. DAPO (arXiv:2503.14476) samples further prompts until a batch has
as many groups with a gradient as asked. Here the rollouts of further iterations add theirs (`DynamicSampling`). No step
is taken meanwhile, so all rows of a batch come from the same weights, but for stale ones. Left out: a surplus of groups
is learned from and not cut off, and no group is stopped early. `curriculum=success_rate` raises the share of groups
with a gradient.

Shapes: T decisions, N environments, E episodes, B rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import join_states, split_state
from embodied_rl.mathematics.objectives.losses import Level, reduce_log_prob
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch, as_batch, concatenate_batches
from embodied_rl.training.algorithms.minibatch_update import MinibatchUpdate


@dataclass(frozen=True)
class DynamicSampling:
    """Settings of dynamic sampling."""

    dynamic_sampling: int = at_least(0, 0)
    """groups to learn from, over all ranks, that an update waits for: an iteration with fewer keeps them for the next,
    and takes no step. 0: each iteration learns from those that it has. Kept rows take memory besides the rollout's."""
    longest_wait: int = at_least(1, 8)
    """iterations from which an update is made of the groups at hand, however few, under dynamic_sampling."""


class EpisodeUpdate(ABC):
    """One update an iteration, or one of several iterations, on episodes that `compare` gives an advantage.

    Args:
        policy: the update by minibatches.
        ranks: ranks that learn together.
        sampling: how many groups an update waits for.
    """

    def __init__(self, policy: MinibatchUpdate, ranks: Ranks, sampling: DynamicSampling) -> None:
        self.policy, self.ranks, self.sampling = policy, ranks, sampling
        self._waiting: list[Batch] = []  # rows to learn from alone, one batch for each rollout
        self._groups, self._waited = 0, 0  # groups in these on all ranks, iterations

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
        batches = (self._batch(rollout, figures) for rollout in segments)
        _, means = self.policy.run(self._gather(batches) if self.sampling.dynamic_sampling else batches, iteration)
        gathered = {"gathered_groups": float(self._groups)} if self.sampling.dynamic_sampling else {}
        return {name: fmean(each[name] for each in figures) for name in figures[0]} | gathered | means

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
        if self.sampling.dynamic_sampling:
            self._groups += sum(self.ranks.gather(len(group[kept & whole].unique())))
        figures.append({"kept_share": float(kept.float().mean()), **importance})
        return batch

    def _gather(self, batches: Iterable[Batch]) -> list[Batch]:
        """Return the rows of all groups that wait, with those of `batches`, once an update is due; else no rows."""
        if not self._waited:
            self._groups = 0
        for batch in batches:
            if batch.weight is None:  # that of rows which are not stale
                ratios = reduce_log_prob(batch.log_prob, batch.mask, self.policy.level)
                batch = replace(batch, weight=torch.ones_like(ratios))
            self._waiting.append(batch.select(batch.rows))
        self._waited += 1
        if self._groups < self.sampling.dynamic_sampling and self._waited < self.sampling.longest_wait:
            return [self._waiting[-1].select(torch.arange(0))]
        whole, self._waiting, self._waited = concatenate_batches(self._waiting), [], 0
        return [whole]

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
        """Return the tensors that an exact resume needs, with the groups that wait for an update."""
        if not self._waited:
            return self.policy.state()
        rows = concatenate_batches(self._waiting)
        plain = {f.name: getattr(rows, f.name) for f in fields(rows) if f.name != "trace"}
        counts = {"groups": torch.tensor(self._groups), "waited": torch.tensor(self._waited)}
        kept = {"counts": counts, "trace": rows.trace, "rows": {k: v for k, v in plain.items() if v is not None}}
        return self.policy.state() | join_states({f"waiting/{part}": values for part, values in kept.items()})

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.policy.load({name: value for name, value in state.items() if not name.startswith("waiting/")})
        counts = split_state(state, "waiting/counts")
        self._groups, self._waited = int(counts.get("groups", 0)), int(counts.get("waited", 0))
        plain: Mapping[str, Any] = split_state(state, "waiting/rows")
        self._waiting = [Batch(trace=split_state(state, "waiting/trace"), **plain)] if self._waited else []
