"""Policy updates by minibatches: order of rows, gradients over micro-batches and ranks, learning rates, epochs.

PPO, GRPO and NFT share it; each has its own loss of the policy.

Shapes: B rows, Hx executed actions, D' scored entries of an action.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.actors.learning import memory_budget, sharded
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Evaluation
from embodied_rl.mathematics.objectives.losses import Level, approximate_kl, masked_mean, reduce_log_prob
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import (
    Batch,
    Counts,
    EpochSums,
    PendingGradient,
    concatenate_batches,
    count_entries,
    make_level_mask,
    sum_counts,
)


@dataclass(frozen=True)
class UpdateConfig:
    """Settings of a policy update by minibatches."""

    lr: float = at_least(0, 2e-4)
    """learning rate of the policy."""
    perception_lr: float = at_least(0, 1e-4)
    """learning rate of the policy's perception."""
    lr_final: float = at_least(0, 0.3)
    """share of the learning rates that is left at the end; linear in between."""
    warmup_updates: int = at_least(0, 20)
    """optimiser steps over which the policy's learning rates rise."""
    epochs: int = at_least(1, 3)
    """passes over a rollout."""
    minibatch: int = at_least(1, 512)
    """rows of a minibatch that may be learned from, over all ranks."""
    micro_batch: int | Literal["auto"] | None = None
    """rows of a minibatch whose gradients are computed at once, on each rank. "auto": as many as memory allows, counted
    before a run starts on a GPU, else measured once; null: auto on a GPU, and all on the CPU. Fewer change nothing but
    the last digits."""
    target_kl: float | None = at_least(0, 0.3)
    """an epoch whose mean KL of a chunk exceeds it is the last; null for no limit."""
    auxiliary: float = at_least(0, 0.0)
    """weight of the backbone's auxiliary loss, such as localisation."""
    grad_clip: float = at_least(0, 1.0)
    """largest gradient norm."""
    noise_final: float = at_least(0, 1.0, at_most=1)
    """share of the sampler's noise level that is left at the end; 1 keeps it."""
    noise_decay_from: float = at_least(0, 0.5)
    """share of the run after which the noise level falls, linearly."""

    def __post_init__(self) -> None:
        """Raise `UserError` if `micro_batch` is below 1 or above `minibatch`."""
        if isinstance(self.micro_batch, int) and self.micro_batch < 1:
            message = f"algo.micro_batch={self.micro_batch} must be at least 1, auto, or null."
            raise UserError(message, code="micro-batch-out-of-range")
        if isinstance(self.micro_batch, int) and self.micro_batch > self.minibatch:
            raise UserError(
                f"algo.micro_batch={self.micro_batch} is more than algo.minibatch={self.minibatch}; "
                "algo.micro_batch=null computes all its rows at once.",
                code="micro-batch-out-of-range",
            )


class MinibatchUpdate(ABC):
    """Runs epochs of minibatch steps on the loss of a policy, in the same way on every rank.

    Args:
        actor: the actor to train.
        ranks: ranks that learn together.
        seed: of the run; keys the order of rows.
        iterations: of the run; the learning rates fall over them.
        value_loss: batch with returns, values [B] → scalar, for a critic that learns with the policy.
        level: what has one ratio of probabilities.
        entropy: weight of an entropy bonus.
    """

    def __init__(
        self,
        config: UpdateConfig,
        actor: Actor,
        ranks: Ranks,
        seed: int,
        iterations: int,
        value_loss: Callable[[Batch, Tensor], Tensor] | None = None,
        level: Level = Level.ACTION,
        entropy: float = 0.0,
    ) -> None:
        self.config, self.actor, self.ranks, self.seed, self.iterations = config, actor, ranks, seed, iterations
        self.value_loss, self.level, self._entropy = value_loss, level, entropy
        groups = dict(actor.parameter_groups())
        rates = {"actor": config.lr, "perception": config.perception_lr}
        learned = {name: groups[name] for name in rates if name in groups}
        self.optimiser = Optimiser(learned, rates, config.grad_clip, sharded.find_sharding(actor))
        self.updates = 0
        self.rate = 1.0
        self._ratios = "chunks" if level == Level.CHUNK else "actions"  # entries of `Counts` with one ratio
        self._pending: PendingGradient | None = None
        self._micro_batch: int | None = config.micro_batch if isinstance(config.micro_batch, int) else None
        self._noise_level = actor.exploration().get("noise_level")

    def anneal(self, iteration: int) -> None:
        """Set the learning rates and the noise level of an iteration; they depend on the iteration alone."""
        done = iteration / max(self.iterations, 1)
        self.rate = 1 - (1 - self.config.lr_final) * done
        if self._noise_level is not None and self.config.noise_final < 1:
            late = max(0.0, (done - self.config.noise_decay_from) / max(1 - self.config.noise_decay_from, 1e-9))
            self.actor.explore_with({"noise_level": self._noise_level * (1 - (1 - self.config.noise_final) * late)})

    @abstractmethod
    def proximal(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Return the batch to learn from, with what it takes from the policy at the start of the update; and figures.

        All ranks call this together.
        """

    @abstractmethod
    def policy_loss(self, batch: Batch, now: Evaluation, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of each ratio, and the share of ratios beyond the trust region, a scalar.

        Args:
            batch: rows of a minibatch.
            now: the same rows under the present weights.
            log_ratio: logarithms of the ratios, [B], [B, Hx] or [B, Hx, D'], see `Level`.
            mask: bool, the ratios that count.
        """

    def run(
        self, segments: Iterable[Batch], iteration: int, critic: Optimiser | None = None
    ) -> tuple[Batch, dict[str, float]]:
        """Run all epochs: the first on each segment as it arrives, the others on all segments together.

        In the first epoch a segment makes as many minibatches as its number of rows allows. A segment with too few rows
        adds its gradient to that of the next one; as between ranks, each term of the loss is the mean over all entries
        that it has in a step, such as ratios or rows. A remainder at the end makes a step that is scaled by its share
        of a minibatch. A single segment is the whole batch; without rows to learn from, nothing changes.

        Returns:
            All rows, and means of the last epoch over all ranks.
        """
        seen: list[Batch] = []
        totals = self._first_epoch(segments, seen, iteration, critic)
        figures = self._epoch_means(totals, critic) | {"epochs": float(totals.steps > 0)}
        whole = concatenate_batches(seen)
        if not totals.steps:
            return whole, figures
        parts = self.parts(whole.rows)
        for epoch in range(1, self.config.epochs):
            if self.config.target_kl is not None and figures["kl"] > self.config.target_kl:
                break
            totals = EpochSums()
            for rows in self.minibatches(whole.rows, parts, iteration, epoch):
                self._accumulate(whole.select(rows), totals, critic)
                self._step(totals, critic)
            figures = self._epoch_means(totals, critic) | {"epochs": epoch + 1.0}
        return whole, figures

    def _first_epoch(
        self, segments: Iterable[Batch], seen: list[Batch], iteration: int, critic: Optimiser | None
    ) -> EpochSums:
        """Run the first epoch and return its sums; append the segments to `seen` as they arrive."""
        totals, carried = EpochSums(), 0.0
        for segment in segments:
            seen.append(segment)
            rows = self._count_rows(segment.rows)
            if not rows:
                continue
            carried += rows
            enough = carried >= self.config.minibatch - rows / 2  # one more would overshoot by more than is missing
            steps = max(1, round(carried / self.config.minibatch)) if enough else 0
            for rows in self.minibatches(segment.rows, max(1, steps), iteration, 0):
                self._accumulate(segment.select(rows), totals, critic, several=not steps)
                if steps:
                    self._step(totals, critic)
            carried = 0.0 if steps else carried
        if self._pending is not None:
            self._step(totals, critic, min(1.0, carried / self.config.minibatch) if totals.steps else 1.0)
        return totals

    def _epoch_means(self, totals: EpochSums, critic: Optimiser | None) -> dict[str, float]:
        """Compute the means of an epoch over all ranks."""
        figures = totals.means(self.ranks, self._ratios)
        if critic is None:
            figures.pop("value_loss", None)
        return figures

    def parts(self, rows: Tensor) -> int:
        """Return the number of minibatches that the rows of all ranks make."""
        return max(1, round(self._count_rows(rows) / self.config.minibatch))

    def _count_rows(self, rows: Tensor) -> float:
        """Return the number of rows on all ranks."""
        total = torch.tensor(float(len(rows)))
        self.ranks.sum_([total])
        return float(total)

    def minibatches(self, rows: Tensor, parts: int, iteration: int, epoch: int) -> Iterator[Tensor]:
        """Yield every valid row once, in `parts` minibatches on every rank, in an order of (seed, iteration, epoch)."""
        mixed = ((self.seed * 1_000_003 + iteration) * 1_009 + epoch) * 257 + self.ranks.rank
        generator = torch.Generator().manual_seed(mixed % 2**63)
        order = rows[torch.randperm(len(rows), generator=generator)]
        yield from order.tensor_split(parts)

    def _accumulate(self, batch: Batch, totals: EpochSums, critic: Optimiser | None, several: bool = False) -> None:
        """Add a minibatch's gradient to that of the next step, before which `several` minibatches may follow."""
        self._measure_micro_batch(batch)
        counts = count_entries(batch)
        everywhere = sum_counts(counts, self.ranks)
        if self._pending is None:
            for optimiser in [self.optimiser] if critic is None else [self.optimiser, critic]:
                optimiser.zero_grad()
            self._pending = PendingGradient(self.actor.parameters(), everywhere, self.ranks.size, several)
        self._pending.count(everywhere)
        everything, found = torch.arange(len(batch.advantage)), []
        for rows in everything.split(self._micro_batch or max(len(everything), 1)):
            part = batch if len(rows) == len(everything) else batch.select(rows)
            terms, figures = self._loss(part, self.actor.evaluate(part.trace), self._pending.unit)
            self._pending.add(terms)
            found.append(torch.stack(figures).double())
        worst = torch.stack(found)[:, -1:].amax(dim=0) * counts[self._ratios]
        totals.add(torch.cat([torch.stack(found)[:, :-1].sum(dim=0), worst]), counts)

    def _step(self, totals: EpochSums, critic: Optimiser | None, length: float = 1.0) -> None:
        """Take an optimiser step with the pending gradients; `length` scales the learning rates."""
        assert self._pending is not None, "a step follows a gradient"
        self._pending.merge()
        self._pending = None
        self.updates += 1
        rise = min(1.0, self.updates / max(self.config.warmup_updates, 1))
        totals.norm += self.optimiser.step(self.ranks, self.rate * rise * length)
        totals.steps += 1
        if critic is not None:
            critic.step(self.ranks, self.rate * length)

    def _measure_micro_batch(self, batch: Batch) -> None:
        """Measure how many rows' gradients fit into memory, if `micro_batch` is "auto" and this is not known yet."""
        if self.config.micro_batch != "auto" or self._micro_batch is not None or not len(batch.advantage):
            return

        def work(rows: int) -> None:
            part = batch.select(torch.arange(rows))
            terms, _ = self._loss(part, self.actor.evaluate(part.trace), count_entries(part))
            PendingGradient(self.actor.parameters(), count_entries(part)).add(terms)

        device = next(iter(self.optimiser.parameters)).device
        free = memory_budget.find_free_bytes(device, self.ranks.size)
        self._micro_batch = memory_budget.find_affordable_rows(work, len(batch.advantage), free)
        self.actor.zero_grad()  # drops the gradients of the measurement

    def _loss(self, batch: Batch, now: Evaluation, unit: Counts) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Compute the terms of the loss, named after their entries in `Counts`, as sums over `unit`; and `FIGURES`.

        Figures, all but the norm, are sums over entries, but for the largest distance of a ratio from 1.
        """
        config, counts = self.config, count_entries(batch)
        shares = {name: count / max(unit[name], 1e-12) for name, count in counts.items()}
        log_ratio = reduce_log_prob(now.log_prob - batch.log_prob, batch.mask, self.level)
        mask = make_level_mask(batch.mask, log_ratio)
        policy, beyond = self.policy_loss(batch, now, log_ratio, mask)
        policy = masked_mean(policy, mask)
        terms = {self._ratios: policy * shares[self._ratios]}
        if self._entropy:
            bonus = self._entropy * masked_mean(now.entropy, batch.mask) * shares["actions"]
            terms["actions"] = terms.get("actions", 0.0) - bonus
        rows = list[Tensor]()
        if config.auxiliary and now.auxiliary is not None and now.auxiliary_target is not None and len(now.value):
            rows.append(config.auxiliary * F.smooth_l1_loss(now.auxiliary, now.auxiliary_target, beta=0.1))
        error = torch.zeros(())
        if self.value_loss is not None and batch.returns is not None:
            rows.append(error := self.value_loss(batch, now.value))
        if rows:
            terms["rows"] = sum(rows, torch.zeros(())) * shares["rows"]
        with torch.no_grad():
            chunk = reduce_log_prob(now.log_prob - batch.log_prob, batch.mask, Level.CHUNK)
            figures = [
                policy.detach() * counts[self._ratios],
                error.detach() * counts["rows"],
                approximate_kl(chunk, batch.mask.any(dim=1))[1] * counts["chunks"],
                beyond * counts[self._ratios],
                masked_mean(now.entropy, batch.mask) * counts["actions"],
                (log_ratio.exp() - 1).abs().mul(mask).max() if mask.any() else torch.zeros(()),
            ]
        return terms, figures

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        return self.optimiser.state() | {"updates": torch.tensor(self.updates)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.updates = int(state["updates"])
        self.optimiser.load({name: value for name, value in state.items() if name != "updates"})
