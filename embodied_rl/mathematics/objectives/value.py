"""The loss of the critic and its explained variance."""

import torch
from torch import Tensor

from embodied_rl.mathematics.objectives.reduce import masked_mean


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None = None, huber: float | None = None
) -> Tensor:
    """Compute the elementwise half squared error.

    Args:
        value: values under the current weights.
        old_value: values recorded in the rollout.
        returns: targets.
        clip: take the larger loss of `value` and `old_value` + clamp(value - old_value, ±clip); None: no clipping.
        huber: error above which the loss grows linearly, or None.
    """
    loss = _error_loss(returns - value, huber)
    if clip is None:
        return loss
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(loss, _error_loss(returns - clipped, huber))


def explained_variance(value: Tensor, returns: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute 1 - Var(R - V) / Var(R), a scalar: 1 is perfect, 0 is like a constant; 0 if returns do not vary."""
    total = _variance(returns, mask)
    return torch.where(total > 0, 1 - _variance(returns - value, mask) / total, 0)


def _error_loss(error: Tensor, huber: float | None) -> Tensor:
    if huber is None:
        return 0.5 * error.square()
    return torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=huber)


def _variance(x: Tensor, mask: Tensor | None) -> Tensor:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)
