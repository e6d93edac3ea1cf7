"""Mode `audit`: scores are logged and counted, and change nothing."""

from collections.abc import Mapping

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.ledger import PotentialLedger
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.modes.shaping import count_settled, join_known
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.rollout.buffer import Rollout


class Audit:
    """Settles potentials as the mode `late` does, for their counts alone.

    Args:
        options: of the mode.
    """

    asks_finals = True

    def __init__(self, options: ModeOptions) -> None:
        self._limit_ends, self._ledger = options.limit_ends, PotentialLedger(options.num_envs)

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        known = join_known(rollout, scores, 1.0, Discount(1.0), self._limit_ends)
        return count_settled(known, self._ledger.settle(known), 1.0, scores.age)

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load({"carried": state["carried"]})
