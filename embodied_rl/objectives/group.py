"""Group-relative advantages: episodes that start alike are compared with one another, without a critic."""

import torch
from torch import Tensor

EPSILON = 1e-6


def group_advantage(returns: Tensor, group: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """(R - mean) / (std + 1e-6) within each group (GRPO, arXiv 2402.03300), with DAPO's filter (arXiv 2503.14476).

    Args:
        returns: [E], one of each episode, such as success 0 or 1.
        group: int64 [E] ≥ 0; episodes with the same number are compared.
        low, high: a group is kept where its mean return lies in [low, high], bounds included.

    Returns:
        advantage [E], 0 where a group is all alike or of one episode, and kept bool [E], False there and outside the
        bounds. Standard deviations are unbiased.

    Raises:
        ValueError: an episode belongs to no group.
    """
    if (group < 0).any():
        raise ValueError("group-relative advantages need every episode in a group; sample episodes in groups of G ≥ 2")
    _, member = group.unique(return_inverse=True)
    zeros = returns.new_zeros(int(member.max()) + 1 if len(member) else 0)
    count = zeros.index_add(0, member, torch.ones_like(returns))
    mean = zeros.index_add(0, member, returns) / count
    centred = returns - mean[member]
    std = (zeros.index_add(0, member, centred.square()) / (count - 1).clamp(min=1)).sqrt()
    highest, lowest = (zeros.scatter_reduce(0, member, returns, how, include_self=False) for how in ("amax", "amin"))
    spread = highest > lowest
    kept = spread & (mean >= low) & (mean <= high)
    advantage = torch.where(spread[member], centred / (std[member] + EPSILON), 0)
    return advantage, kept[member]
