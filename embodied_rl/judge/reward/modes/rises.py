"""Mode `rises`: the positive part of each score difference is the reward, as progress rewards are often used.

This is not potential-based: falling and rising again is rewarded, too, so it changes the optimal policy. It serves as
a baseline.
"""

from collections.abc import Mapping

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.ledger import PotentialLedger
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.modes.shaping import count_settled, join_known
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.rollout.buffer import Rollout


class Rises:
    """Writes into `bonus` by how much the score of what follows a decision is above the one before it.

    A missing score is held, as in shaping. After a termination nothing is scored, so that nothing is paid.

    Args:
        options: of the mode.
    """

    def __init__(self, options: ModeOptions) -> None:
        self._limit_ends, self._weight = options.limit_ends, options.reward.weight
        self._ledger = PotentialLedger(options.num_envs)
        self.asks_finals = not options.limit_ends

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        known = join_known(rollout, scores, self._weight, Discount(1.0), self._limit_ends)
        settled = self._ledger.settle(known)
        paid = np.maximum(settled.shaping, 0.0)  # scores are 0…1: the 0 at a termination is never a rise
        rollout.bonus.copy_(torch.from_numpy(paid).to(rollout.bonus))
        return count_settled(known, settled, self._weight, scores.age)

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load({"carried": state["carried"]})
