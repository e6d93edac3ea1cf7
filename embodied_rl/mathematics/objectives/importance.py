"""Importance weights for decisions of an earlier policy."""

from torch import Tensor


def truncated_importance_weight(log_weight: Tensor, cap: float | None = None) -> Tensor:
    """Compute min(π_prox / π_behaviour, C), elementwise, without a gradient (decoupled PPO, AReaL, arXiv:2505.24298).

    With this weight, E_behaviour[w ρ A] = E_prox[ρ A] if nothing is truncated. Truncation bounds the variance and keeps
    every row, but adds a bias towards actions that the behaviour policy chooses more often; RLinf instead drops rows
    whose weight exceeds a threshold.

    Args:
        log_weight: log π_prox - log π_behaviour, of any shape.
        cap: C ≥ 1, or None for no truncation.

    Returns:
        Weights in the shape of `log_weight`.

    Raises:
        ValueError: `cap` is below 1, so that even rows of the current policy would count less.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"the cap of importance weights must be at least 1, got {cap}")
    weight = log_weight.detach().exp()
    return weight if cap is None else weight.clamp(max=cap)
