"""Reduce elementwise log-probabilities to tokens, actions or chunks, and compute means over valid entries."""

from enum import StrEnum

import torch
from torch import Tensor


class Level(StrEnum):
    """The unit that has one probability ratio. Sums are exact joint log-probabilities, so a given clip bound is tighter
    for a coarser unit."""

    TOKEN = "token"
    ACTION = "action"
    CHUNK = "chunk"


def step_mask(steps: Tensor, executed: int) -> Tensor:
    """Return bool [..., Hx]: whether each of the Hx actions was executed, from `steps` int64 [...]."""
    return torch.arange(executed, device=steps.device) < steps[..., None]


def reduce_log_prob(log_prob: Tensor, steps_mask: Tensor, level: Level) -> Tensor:
    """Sum log-probabilities over the executed elements of each unit.

    Args:
        log_prob: [B, Hx, D'].
        steps_mask: bool [B, Hx], see `step_mask`.
        level: the unit.

    Returns:
        [B, Hx, D'], [B, Hx] or [B]; 0 where nothing was executed, for any `log_prob` there.
    """
    executed = torch.where(steps_mask[..., None], log_prob, 0)
    match Level(level):
        case Level.TOKEN:
            return executed
        case Level.ACTION:
            return executed.sum(-1)
        case Level.CHUNK:
            return executed.sum((-2, -1))


def align_axes(x: Tensor, like: Tensor) -> Tensor:
    """Append axes of size 1 to x [B, …], so that it broadcasts against `like` [B, …, …]."""
    return x.reshape(*x.shape, *[1] * (like.dim() - x.dim()))


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the mean over the valid entries, a scalar; 0 (not NaN) if no entry is valid.

    Args:
        x: [B, …]; invalid entries may hold any value.
        mask: bool, or weights ≥ 0; has the leading axes of `x`, broadcasts over the others. None: all valid.
    """
    if mask is None:
        return x.mean()
    weight = align_axes(mask, x).to(x.dtype).expand_as(x)
    total = weight.sum()
    return torch.where(weight > 0, x * weight, 0).sum() / torch.where(total > 0, total, 1)
