"""The reward that algorithms learn from; only this module combines the reward columns of a rollout.

`reward` is the simulator's and stays unchanged, in reports, curricula and the replay storage. Scorers fill `shaping`
and `bonus` before an algorithm reads them; if they replace the simulator's reward, they set `ignore_env_reward`.
Shapes: T decisions, N environments.
"""

import torch
from torch import Tensor

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.mathematics.objectives.advantages import discount_reward
from embodied_rl.rollout.buffer import Rollout


def compose_reward(rollout: Rollout, discount: Discount | None) -> Tensor:
    """Compute the reward of each decision, float32 [T, N].

    It is the discounted sum of the simulator's rewards over the executed steps (0 if `ignore_env_reward`), plus shaping
    and bonus. Within a chunk only a discount per control step counts; None means none.
    """
    within = discount.gamma if discount is not None and discount.per == "control_step" else 1.0
    own = torch.where(rollout.ignore_env_reward, 0.0, discount_reward(rollout.reward, rollout.steps, within))
    return own + rollout.shaping + rollout.bonus
