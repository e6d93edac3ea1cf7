"""What algorithms learn from: the one place where the columns of a rollout's reward become one.

`reward` is the simulator's and stays as it is, in reports, curricula and the replay storage. `shaping` and `bonus` are
filled by whoever scores, before an algorithm asks. Shapes: T decisions, N environments.
"""

from torch import Tensor

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.objectives.gae import discount_reward
from embodied_rl.rollout.buffer import Rollout


def compose_reward(rollout: Rollout, discount: Discount | None) -> Tensor:
    """float32 [T, N]: the reward of each decision.

    Args:
        rollout: with its columns.
        discount: of the algorithm, which counts within a chunk where it is per control step; None counts alike.

    Returns:
        Discounted sum of the simulator's rewards over the executed steps, plus shaping, plus bonus.
    """
    within = discount.gamma if discount is not None and discount.per == "control_step" else 1.0
    return discount_reward(rollout.reward, rollout.steps, within) + rollout.shaping + rollout.bonus
