"""Losses of policy and critic, importance weights, their diagnostics, and reductions over valid entries."""

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
    """Sum log-probabilities [B, Hx, D'] over the executed elements of each unit: [B, Hx, D'], [B, Hx] or [B].

    `steps_mask` is bool [B, Hx], see `step_mask`. 0 where nothing was executed, for any `log_prob` there.
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


def clipped_policy_loss(
    log_ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Compute `-min(ρ A, clip(ρ, 1 - low, 1 + high) A)` (PPO, arXiv 1707.06347; unequal bounds: arXiv 2503.14476).

    Args:
        log_ratio: log ρ, [B, …]; the loss has its shape.
        advantage: [B] or the shape of `log_ratio`; broadcasts over the trailing axes.
        low, high: clip bounds, both positive.
        dual: c > 1, which bounds the loss by `c |A|` where A < 0 (arXiv 1912.09729), or None.

    Raises:
        ValueError: `dual` is not above 1.
    """
    if dual is not None and dual <= 1:
        raise ValueError(f"dual clip must be above 1, got {dual}")
    ratio = log_ratio.exp()
    advantage = align_axes(advantage, log_ratio)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)


def clip_fraction(log_ratio: Tensor, low: float, high: float, mask: Tensor | None = None) -> Tensor:
    """Compute the fraction of ratios outside [1 - low, 1 + high], for any sign of the advantage; a scalar."""
    ratio = log_ratio.detach().exp()
    return masked_mean(((ratio < 1 - low) | (ratio > 1 + high)).float(), mask)


def approximate_kl(log_ratio: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Estimate KL(old ‖ new) as k1 = E[-log ρ] and k3 = E[ρ - 1 - log ρ] ≥ 0 with less variance; two scalars.

    http://joschu.net/blog/kl-approx.html
    """
    log_ratio = log_ratio.detach()
    return masked_mean(-log_ratio, mask), masked_mean(log_ratio.expm1() - log_ratio, mask)


def truncated_importance_weight(log_weight: Tensor, cap: float | None = None) -> Tensor:
    """Compute min(π_prox / π_behaviour, C), elementwise, without a gradient (decoupled PPO, AReaL, arXiv:2505.24298).

    With this weight, E_behaviour[w ρ A] = E_prox[ρ A] if nothing is truncated. Truncation bounds the variance and keeps
    every row, but adds a bias towards actions that the behaviour policy chooses more often; RLinf instead drops rows
    with a weight above a threshold. `cap`: C ≥ 1, or None for no truncation.

    Raises:
        ValueError: `cap` is below 1, so that even rows of the current policy would count less.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"the cap of importance weights must be at least 1, got {cap}")
    weight = log_weight.detach().exp()
    return weight if cap is None else weight.clamp(max=cap)


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None = None, huber: float | None = None
) -> Tensor:
    """Compute the elementwise half squared error of values and returns.

    Args:
        value, old_value: under the current weights, and as recorded in the rollout.
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
