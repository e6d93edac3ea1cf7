"""Mode `rises`: each rise of the score is a reward, and a fall costs nothing, as progress rewards are often used.

This is no potential: to fall and rise again pays, too, so that what is optimal is what the scorer pays for. It is
there to be compared with.
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
        paid = np.maximum(settled.shaping, 0.0)  # scores are 0…1: what ends in a termination's 0 is no rise
        rollout.bonus.copy_(torch.from_numpy(paid).to(rollout.bonus))
        return count_settled(known, settled, self._weight, scores.age)

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load({"carried": state["carried"]})
