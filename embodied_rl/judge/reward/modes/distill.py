"""Mode `distill` in the collectors, which compute no potentials.

Collectors only write the columns that the run's head needs (`label_writer`); `distiller` computes the potentials in the
learner.
"""

from collections.abc import Mapping

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.rollout.buffer import Rollout


class Distill:
    """Settles nothing.

    Args:
        options: of the mode.
    """

    def __init__(self, options: ModeOptions) -> None:
        self.asks_finals = not options.limit_ends

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        return {}

    def state(self) -> dict[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        """Nothing is remembered."""
