"""The clipped policy objective and its diagnostics."""

import torch
from torch import Tensor

from embodied_rl.mathematics.objectives.reduce import align_axes, masked_mean


def clipped_policy_loss(
    log_ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Compute -min(ρ A, clip(ρ, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347; unequal bounds: arXiv 2503.14476).

    Args:
        log_ratio: log ρ, [B, …].
        advantage: [B] or the shape of `log_ratio`; broadcasts over the trailing axes.
        low, high: clip bounds, both positive.
        dual: c > 1, which bounds the loss by c |A| where A < 0 (arXiv 1912.09729), or None.

    Returns:
        Elementwise loss in the shape of `log_ratio`.

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
