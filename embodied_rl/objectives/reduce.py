"""From elementwise log-probabilities to those of tokens, actions or chunks, and means that know what is valid."""

from enum import StrEnum

import torch
from torch import Tensor


class Level(StrEnum):
    """The unit that has one probability ratio. The sums are exact joint log-probabilities, so the coarser the unit, the
    tighter a given clip bound."""

    TOKEN = "token"
    ACTION = "action"
    CHUNK = "chunk"


def step_mask(steps: Tensor, executed: int) -> Tensor:
    """bool [..., Hx]: which of the Hx actions were executed, from `steps` int64 [...]."""
    return torch.arange(executed, device=steps.device) < steps[..., None]


def reduce_log_prob(log_prob: Tensor, steps_mask: Tensor, level: Level) -> Tensor:
    """Sum over the elements of each unit that were executed.

    Args:
        log_prob: [B, Hx, D'].
        steps_mask: bool [B, Hx], see `step_mask`.
        level: the unit.

    Returns:
        [B, Hx, D'], [B, Hx] or [B]; 0 where nothing was executed, whatever `log_prob` holds there.
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
    """[B, …] with trailing axes of size 1, so that it broadcasts against `like` [B, …, …]."""
    return x.reshape(*x.shape, *[1] * (like.dim() - x.dim()))


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the valid entries, a scalar; 0 (not NaN) where nothing is valid.

    Args:
        x: [B, …]; invalid entries may hold anything.
        mask: bool, or weights ≥ 0; leading axes of `x`, broadcasts over the others. None: all valid.
    """
    if mask is None:
        return x.mean()
    weight = align_axes(mask, x).to(x.dtype).expand_as(x)
    total = weight.sum()
    return torch.where(weight > 0, x * weight, 0).sum() / torch.where(total > 0, total, 1)
