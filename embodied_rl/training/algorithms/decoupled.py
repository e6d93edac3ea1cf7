"""Decoupled PPO: reference policy and importance weights of stale rows, which earlier weights chose.

Decoupled PPO (AReaL, arXiv:2505.24298): the trust region lies around the policy at the start of the update, π_prox, and
an importance weight corrects for the policy that chose the actions, π_behaviour,

    L = -E[ w · min(u A, clip(u) A) ],  u = π_θ / π_prox,  w = min(π_prox / π_behaviour, C), without a gradient.

A row of the present version has w = 1, and its recorded log-probability is that of π_prox already.

Weights are taken at the `level` of the ratios. A sampler that is stochastic in all of its K steps (flow_noise, flow_sde
with all layers) makes each ratio a product over K + 1 densities or K of them, whose weights spread quickly with the
distance of the two policies; hybrid flow_sde, with one stochastic step, suits stale data better.

Shapes: B rows, S of them stale, Hx executed actions, D' scored entries of an action.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from embodied_rl.interfaces.policy import Evaluation, Trace
from embodied_rl.mathematics.objectives.losses import Level, reduce_log_prob, truncated_importance_weight
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch

Evaluate = Callable[[Trace], Evaluation]


def find_stale_rows(batch: Batch, present: int) -> Tensor:
    """Return the rows to learn from that a version before `present` chose, int64 [S]."""
    if batch.version is None:
        return batch.rows[:0]
    return batch.rows[batch.version[batch.rows] < present]


def decouple_stale(
    batch: Batch, stale: Tensor, evaluate: Evaluate, ranks: Ranks, *, level: Level, cap: float | None, at_once: int
) -> tuple[Batch, dict[str, float]]:
    """Take ratios and values of stale rows from the present policy, and weight the rows; all ranks call this together.

    Args:
        batch: not changed.
        stale: int64 [S], see `find_stale_rows`.
        evaluate: the actor's, at the start of the update.
        ranks: ranks that learn together; all evaluate equally often, and get the same figures.
        level: of the ratios.
        cap: C of the weights, or None.
        at_once: rows of one evaluation.

    Returns:
        The batch, with weights where any rank has stale rows, and then figures over the ratios that count on all ranks:
        `importance`, the mean weight, and `importance_capped`, the share of those that were truncated.
    """
    passes = max(ranks.gather(-(-len(stale) // at_once)))
    if not passes:
        return batch, {}
    log_prob, value = _evaluate_stale(batch, stale, evaluate, at_once, passes)
    log_weight = reduce_log_prob(log_prob - batch.log_prob, batch.mask, level)
    weight = truncated_importance_weight(log_weight, cap)
    return replace(batch, log_prob=log_prob, value=value, weight=weight), _figures(batch, log_weight, weight, ranks)


@torch.no_grad()
def _evaluate_stale(
    batch: Batch, stale: Tensor, evaluate: Evaluate, at_once: int, passes: int
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities and values of all rows, those of stale rows under the present weights."""
    log_prob, value = batch.log_prob.clone(), None if batch.value is None else batch.value.clone()
    for index in range(passes):  # also without rows left: all ranks of a sharded network evaluate together
        rows = stale[index * at_once : (index + 1) * at_once]
        now = evaluate({name: tensor[rows] for name, tensor in batch.trace.items()})
        log_prob[rows] = now.log_prob.to(log_prob)
        if value is not None:
            value[rows] = now.value.to(value)
    return log_prob, value


def _figures(batch: Batch, log_weight: Tensor, weight: Tensor, ranks: Ranks) -> dict[str, float]:
    counts = make_level_mask(batch.mask, weight)[batch.rows]
    weight, whole = weight[batch.rows][counts], log_weight[batch.rows][counts].exp()
    sums = torch.stack([weight.sum(), (weight < whole).sum(), counts.sum()]).double()
    ranks.sum_([sums])
    importance, capped = (sums[:2] / sums[2].clamp_min(1)).tolist()
    return {"importance": importance, "importance_capped": capped}


def make_level_mask(mask: Tensor, ratios: Tensor) -> Tensor:
    """Return which ratios count, bool of their shape, [B], [B, Hx] or [B, Hx, D']; mask is bool [B, Hx]."""
    if ratios.dim() == 1:
        return mask.any(dim=1)
    return mask if ratios.dim() == 2 else mask[..., None].expand_as(ratios)
