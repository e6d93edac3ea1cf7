"""Interface of reward modes, and their inputs.

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import RewardNode


@dataclass(frozen=True)
class ModeOptions:
    """What a mode is made with.

    Attributes:
        reward: of the configuration.
        num_envs: N.
        discount: of the algorithm; None where it has none.
        limit_ends: whether the time limit ends an episode like a termination.
    """

    reward: RewardNode
    num_envs: int
    discount: Discount | None
    limit_ends: bool


class Mode(Protocol):
    """Writes reward columns of a rollout from its scores, and remembers what the next rollout needs.

    Attributes:
        asks_finals: whether the final observations of truncated episodes matter.
    """

    asks_finals: bool

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        """Settle a rollout once and for all. Return counts; those of all collectors are added up."""
        ...

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue between two rollouts."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state that `state` returned."""
        ...
