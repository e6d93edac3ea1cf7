"""Advantages: generalised advantage estimation over decisions, and group-relative advantages of episodes.

Shapes: T decisions of N environments; E episodes.
"""

from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-6


def make_discounts(steps: Tensor, gamma: float, per: Literal["control_step", "decision"]) -> Tensor:
    """Compute the discount on the value after each decision, float32 in the shape of `steps` (int64, executed).

    `gamma` is the discount `per` "control_step" or "decision".

    Raises:
        ValueError: `per` has another value.
    """
    if per not in ("control_step", "decision"):
        raise ValueError(f"discount per must be 'control_step' or 'decision', got {per!r}")
    exponent = steps if per == "control_step" else torch.ones_like(steps)
    return torch.pow(gamma, exponent.float())


def discount_reward(reward: Tensor, steps: Tensor, gamma: float) -> Tensor:
    """Compute Σ_j γ^j r_j over the executed steps of a chunk, [T, N]; use γ = 1 if a decision is the unit of time.

    `reward` is [T, N, H], of which entries j ≥ `steps` (int64 [T, N]) are ignored.
    """
    position = torch.arange(reward.shape[-1], device=reward.device)
    weight = torch.pow(gamma, position.to(reward.dtype))
    return torch.where(position < steps[..., None], reward * weight, 0).sum(-1)


def select_next_values(
    value: Tensor, last_value: Tensor, final_value: Tensor, terminated: Tensor, truncated: Tensor
) -> Tensor:
    """Return the value that follows each decision, [T, N].

    It is 0 after a termination, which overrides a truncation in the same chunk; the final observation's value after
    a truncation (`final_value` [T, N], ignored elsewhere); otherwise the value of the next decision, and in the end
    `last_value` [N].
    """
    following = torch.cat([value[1:], last_value[None]])
    following = torch.where(truncated, final_value, following)
    return torch.where(terminated, 0, following)


def compute_gae(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, continues: Tensor, lam: float
) -> tuple[Tensor, Tensor]:
    """Compute A_t = δ_t + discount_t λ A_{t+1}, δ_t = r_t + discount_t V'_t - V_t (Schulman et al., arXiv 1506.02438).

    All are [T, N] or [T]: `reward` is discounted within the chunk, `next_value` of `select_next_values`, `discount` of
    `make_discounts`; `continues` is bool, whether decision t + 1 belongs to the same episode; λ is per decision.

    Returns:
        advantage and return (advantage + value), of the same shape.
    """
    delta = reward + discount * next_value - value
    advantage = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = delta[t] + torch.where(continues[t], discount[t] * lam * following, 0)
        advantage[t] = following
    return advantage, advantage + value


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
