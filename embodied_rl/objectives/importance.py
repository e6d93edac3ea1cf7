"""How much a decision of an earlier policy counts for a later one."""

from torch import Tensor


def truncated_importance_weight(log_weight: Tensor, cap: float | None = None) -> Tensor:
    """min(π_prox / π_behaviour, C), elementwise, without a gradient (decoupled PPO, AReaL, arXiv:2505.24298).

    With it E_behaviour[w ρ A] = E_prox[ρ A] as long as nothing is truncated. Truncation bounds the variance and keeps
    every row, at the price of a bias towards what the behaviour policy does more often; RLinf drops rows instead whose
    weight exceeds a threshold.

    Args:
        log_weight: log π_prox - log π_behaviour, of any shape.
        cap: C ≥ 1, or None for no truncation.

    Returns:
        Weights of the shape of `log_weight`.

    Raises:
        ValueError: `cap` is below 1, so that even rows of the present policy would count less.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"the cap of importance weights must be at least 1, got {cap}")
    weight = log_weight.detach().exp()
    return weight if cap is None else weight.clamp(max=cap)
