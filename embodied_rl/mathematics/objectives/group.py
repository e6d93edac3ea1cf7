"""Group-relative advantages: compare episodes with the same start, without a critic."""

import torch
from torch import Tensor

EPSILON = 1e-6


def group_advantage(returns: Tensor, group: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Compute (R - mean) / (std + 1e-6) in each group (GRPO, arXiv 2402.03300), with DAPO's filter (arXiv 2503.14476).

    Args:
        returns: [E], one return per episode, such as success 0 or 1.
        group: int64 [E] ≥ 0; episodes with the same number are compared.
        low, high: a group is kept if its mean return lies in [low, high], bounds included.

    Returns:
        advantage [E], 0 in groups with equal returns or a single episode; and kept bool [E], False in these groups and
        outside the bounds. Standard deviations are unbiased.

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
