"""Batches of rows that an algorithm learns from, their importance weights, and the gradients of several batches.

Decoupled PPO (AReaL, arXiv:2505.24298) learns from stale rows, which earlier weights chose: the trust region lies
around the policy at the start of the update, π_prox, and an importance weight corrects for the policy that chose the
actions, π_behaviour,

    L = -E[ w · min(u A, clip(u) A) ],  u = π_θ / π_prox,  w = min(π_prox / π_behaviour, C), without a gradient.

A row of the present version has w = 1, and its recorded log-probability is that of π_prox already. Weights are taken at
the `level` of the ratios. A sampler that is stochastic in all of its K steps (flow_noise, flow_sde with all layers)
makes each ratio a product over K + 1 densities or K of them, whose weights spread quickly with the distance of the two
policies; hybrid flow_sde, with one stochastic step, suits stale data better.

Shapes: T decisions, N environments, B = T·N rows, S of them stale, Hx executed actions, D' scored entries of an action.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from embodied_rl.interfaces.policy import Evaluation, Trace
from embodied_rl.interfaces.sim import Source
from embodied_rl.mathematics.objectives.losses import Level, reduce_log_prob, step_mask, truncated_importance_weight
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks

_OPTIONAL = ("value", "returns", "version", "weight", "mean")


@dataclass
class Batch:
    """Rows of a rollout.

    Attributes:
        trace: [B, ...], what the actor recorded.
        log_prob: float32 [B, Hx, D'] under the reference policy of the ratios: the rollout's weights, or those at the
            start of the update where `weight` is set.
        mask: bool [B, Hx], the executed actions that the policy chose itself.
        advantage: float32 [B].
        value, returns: float32 [B], for a critic that learns with the policy; None for none.
        rows: int64 [R], the rows that may be learned from.
        version: int64 [B], version of the weights that chose the action; None where all are the present ones.
        weight: factor on the loss of each ratio, float32 of the shape of the ratios, [B], [B, Hx] or [B, Hx, D'];
            None for 1.
        mean: float32 [B, Hx, D'], of the normal distributions behind `log_prob`; None where they are not needed.
    """

    trace: Trace
    log_prob: Tensor
    mask: Tensor
    advantage: Tensor
    rows: Tensor
    value: Tensor | None = None
    returns: Tensor | None = None
    version: Tensor | None = None
    weight: Tensor | None = None
    mean: Tensor | None = None

    def select(self, rows: Tensor) -> "Batch":
        """Return a batch of the given rows; all of them count as valid."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        return replace(
            self,
            trace={name: tensor[rows] for name, tensor in self.trace.items()},
            log_prob=self.log_prob[rows],
            mask=self.mask[rows],
            advantage=self.advantage[rows],
            rows=torch.arange(len(rows)),
            **{name: None if tensor is None else tensor[rows] for name, tensor in optional.items()},
        )


def concatenate_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate the rows of batches that have the same tensors, in order; return a single batch unchanged.

    Traces that follow each other in memory, as those of a rollout's segments do, are not copied.
    """
    if len(parts) == 1:
        return parts[0]
    offsets = accumulate((len(part.advantage) for part in parts[:-1]), initial=0)
    names = ("log_prob", "mask", "advantage", *_OPTIONAL)
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return replace(
        parts[0],
        trace={name: _concat_views([part.trace[name] for part in parts]) for name in parts[0].trace},
        rows=torch.cat([part.rows + offset for part, offset in zip(parts, offsets, strict=True)]),
        **{name: None if column[0] is None else torch.cat(column) for name, column in columns.items()},
    )


def _concat_views(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors [n, ...]; return a view if they are adjacent in memory."""
    first, storages = parts[0], {part.untyped_storage().data_ptr() for part in parts}
    apart = any(after.data_ptr() != before.data_ptr() + before.nbytes for before, after in pairwise(parts))
    if apart or len(storages) > 1 or not all(part.is_contiguous() for part in parts):
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())


def find_scored(rollout: Rollout) -> Tensor:
    """Return which of a rollout's chosen actions were executed as chosen, bool [T, N, Hx].

    Under a delay of d, action j of a row is executed in control step d + j after its observation: the last d of them
    during the next row, if the episode goes on so far. What follows the last row is unknown, and counts as executed.
    """
    executed = step_mask(rollout.steps, rollout.executed) & (rollout.source == int(Source.POLICY))
    if not rollout.delay:
        return executed
    goes_on = ~(rollout.terminated | rollout.truncated)
    following = torch.cat([executed[1:], torch.ones_like(executed[:1])]) & goes_on[..., None]
    return torch.cat([executed, following], dim=-1)[..., rollout.delay : rollout.delay + rollout.executed]


def as_batch(
    rollout: Rollout,
    advantage: Tensor,
    learnable: Tensor | None = None,
    *,
    value: Tensor | None = None,
    returns: Tensor | None = None,
) -> Batch:
    """Convert a rollout's tensors [T, N, ...] to rows.

    Args:
        rollout: collected data; not changed.
        advantage: float32 [T, N].
        learnable: bool [T, N], the rows to learn from; by default all valid rows.
        value, returns: float32 [T, N], for a critic that learns with the policy.
    """
    learnable = rollout.valid if learnable is None else learnable
    return Batch(
        trace={name: tensor.flatten(0, 1) for name, tensor in rollout.trace.items()},
        log_prob=rollout.log_prob.flatten(0, 1),
        mask=find_scored(rollout).flatten(0, 1),
        advantage=advantage.flatten(),
        rows=learnable.flatten().nonzero().squeeze(1),
        value=None if value is None else value.flatten(),
        returns=None if returns is None else returns.flatten(),
        version=rollout.version.flatten(),
    )


def find_stale_rows(batch: Batch, present: int) -> Tensor:
    """Return the rows to learn from that a version before `present` chose, int64 [S]."""
    if batch.version is None:
        return batch.rows[:0]
    return batch.rows[batch.version[batch.rows] < present]


def decouple_stale(
    batch: Batch,
    stale: Tensor,
    evaluate: Callable[[Trace], Evaluation],
    ranks: Ranks,
    *,
    level: Level,
    cap: float | None,
    at_once: int,
) -> tuple[Batch, dict[str, float]]:
    """Take ratios and values of stale rows from the present policy, and weight the rows; all ranks call this together.

    Args:
        batch: not changed.
        stale: int64 [S], see `find_stale_rows`.
        evaluate: the actor's, at the start of the update.
        ranks: ranks that learn together; all evaluate equally often, and get the same figures.
        cap: C of the weights, or None.
        at_once: rows of one evaluation.

    Returns:
        The batch, with weights where any rank has stale rows, and then figures over the ratios that count on all ranks:
        `importance`, the mean weight, and `importance_capped`, the share of those that were truncated.
    """
    passes = max(ranks.gather(-(-len(stale) // at_once)))
    if not passes:
        return batch, {}
    log_prob, value = batch.log_prob.clone(), None if batch.value is None else batch.value.clone()
    with torch.no_grad():
        for index in range(passes):  # also without rows left: all ranks of a sharded network evaluate together
            rows = stale[index * at_once : (index + 1) * at_once]
            now = evaluate({name: tensor[rows] for name, tensor in batch.trace.items()})
            log_prob[rows] = now.log_prob.to(log_prob)
            if value is not None:
                value[rows] = now.value.to(value)
    log_weight = reduce_log_prob(log_prob - batch.log_prob, batch.mask, level)
    weight = truncated_importance_weight(log_weight, cap)
    counts = make_level_mask(batch.mask, weight)[batch.rows]
    used, whole = weight[batch.rows][counts], log_weight[batch.rows][counts].exp()
    sums = torch.stack([used.sum(), (used < whole).sum(), counts.sum()]).double()
    ranks.sum_([sums])
    importance, capped = (sums[:2] / sums[2].clamp_min(1)).tolist()
    figures = {"importance": importance, "importance_capped": capped}
    return replace(batch, log_prob=log_prob, value=value, weight=weight), figures


def make_level_mask(mask: Tensor, ratios: Tensor) -> Tensor:
    """Return which ratios count, bool of their shape, [B], [B, Hx] or [B, Hx, D']; mask is bool [B, Hx]."""
    if ratios.dim() == 1:
        return mask.any(dim=1)
    return mask if ratios.dim() == 2 else mask[..., None].expand_as(ratios)


Counts = dict[str, float]
"""Numbers of "chunks" and "actions" with a choice of the policy, and of "rows"."""

FIGURES = ("policy_loss", "value_loss", "kl", "clip_share", "entropy", "worst_ratio", "grad_norm")


def count_entries(batch: Batch) -> Counts:
    """Count the entries of a batch that means are taken over."""
    chunks, actions = batch.mask.any(dim=1).sum(), batch.mask.sum()
    return {"chunks": float(chunks), "actions": float(actions), "rows": float(len(batch.advantage))}


def sum_counts(counts: Counts, ranks: Ranks) -> Counts:
    """Return the sums of counts over ranks."""
    total = torch.tensor([*counts.values()], dtype=torch.float64)
    ranks.sum_([total])
    return dict(zip(counts, total.tolist(), strict=True))


class PendingGradient:
    """The gradient of the next step, of a loss whose terms are means over different entries: chunks, actions or rows.

    The parts that a step learns from (ranks, segments of a rollout, micro-batches) have different numbers of these, so
    a mean of their means is not the mean over all entries. A term is first divided by its count in the first part, and
    by its count in all parts in `merge`. Until then the gradients of terms are kept separate, unless there is one part.
    Ranks average their gradients, so a count is the mean over ranks.

    Args:
        counts: of the first part, summed over ranks.
        ranks: number of ranks.
        several: whether other parts follow.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], counts: Counts, ranks: int = 1, several: bool = False
    ) -> None:
        self.unit = {name: count / ranks or 1.0 for name, count in counts.items()}
        self._ranks, self._several = ranks, several
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._total = dict.fromkeys(counts, 0.0)
        self._main = ""
        self._others: dict[str, list[Tensor | None]] = {}

    def count(self, counts: Counts) -> None:
        """Add the counts of a part, summed over ranks."""
        self._total = {name: total + counts[name] / self._ranks for name, total in self._total.items()}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the gradients of terms, named after their entries in `Counts`, and each divided by its `unit`."""
        if not self._several:
            sum(terms.values(), torch.zeros(())).backward()
            return
        self._main, *others = terms
        for name in others:
            if terms[name].requires_grad:
                found = torch.autograd.grad(terms[name], self._parameters, retain_graph=True, allow_unused=True)
                known = self._others.get(name, [None] * len(found))
                self._others[name] = [_add(*pair) for pair in zip(known, found, strict=True)]
        terms[self._main].backward()

    def merge(self) -> None:
        """Divide terms by their counts in all parts, and add them up as the gradients of the parameters."""
        if not self._several:
            return
        factors = {name: self.unit[name] / total if total else 1.0 for name, total in self._total.items()}
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factors[self._main])
        for name, gradients in self._others.items():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = _add(parameter.grad, gradient * factors[name])


def _add(known: Tensor | None, found: Tensor | None) -> Tensor | None:
    return found if known is None else known if found is None else known + found


@dataclass
class EpochSums:
    """The sums over one epoch.

    Attributes:
        figures: float64 [F], sums over this rank's entries of all but the last of `FIGURES`.
        counts: numbers of those entries.
        norm: sum of the gradient's norm over `steps` optimiser steps.
    """

    figures: Tensor = field(default_factory=lambda: torch.zeros(len(FIGURES) - 1, dtype=torch.float64))
    counts: Counts = field(default_factory=lambda: {"chunks": 0.0, "actions": 0.0, "rows": 0.0})
    norm: float = 0.0
    steps: int = 0

    def add(self, figures: Tensor, counts: Counts) -> None:
        """Add sums over the entries of a part."""
        self.figures += figures
        self.counts = {name: count + counts[name] for name, count in self.counts.items()}

    def means(self, ranks: Ranks, ratios: str) -> dict[str, float]:
        """Compute the means over the entries of all ranks; `ratios` is what has one ratio, "chunks" or "actions"."""
        sums, counts = self.figures.clone(), sum_counts(self.counts, ranks)
        ranks.sum_([sums])
        kinds = (ratios, "rows", "chunks", ratios, "actions", ratios)
        means = [total / max(counts[kind], 1.0) for total, kind in zip(sums.tolist(), kinds, strict=True)]
        return dict(zip(FIGURES, [*means, self.norm / max(self.steps, 1)], strict=True))
