"""The critic's loss and its quality."""

import torch
from torch import Tensor

from embodied_rl.objectives.reduce import masked_mean


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None = None, huber: float | None = None
) -> Tensor:
    """Half squared error, elementwise.

    Args:
        value: under the present weights.
        old_value: recorded in the rollout.
        returns: targets.
        clip: the worse of the losses of `value` and of `old_value` + clamp(value - old_value, ±clip), or None.
        huber: the error above which the loss grows linearly, or None.
    """
    loss = _error_loss(returns - value, huber)
    if clip is None:
        return loss
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(loss, _error_loss(returns - clipped, huber))


def explained_variance(value: Tensor, returns: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - Var(R - V) / Var(R), a scalar: 1 is perfect, 0 no better than a constant; 0 where returns do not vary."""
    total = _variance(returns, mask)
    return torch.where(total > 0, 1 - _variance(returns - value, mask) / total, 0)


def _error_loss(error: Tensor, huber: float | None) -> Tensor:
    if huber is None:
        return 0.5 * error.square()
    return torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=huber)


def _variance(x: Tensor, mask: Tensor | None) -> Tensor:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)
