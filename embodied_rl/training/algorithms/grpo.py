"""Group relative policy optimisation (arXiv:2402.03300), for flow policies as in pi_RL (arXiv:2510.25889).

Episodes of one group start from the same state. An episode's advantage is its return relative to its group, the same
for all of its decisions. It has no critic. Groups that nearly always fail or succeed carry no signal and are left out.

Shapes: E episodes.
"""

from dataclasses import dataclass

from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.mathematics.objectives.advantages import group_advantage
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate
from embodied_rl.training.algorithms.episodes import DynamicSampling, EpisodeUpdate


@dataclass(frozen=True)
class GRPOConfig(DynamicSampling, ClippedConfig):
    """Settings of GRPO, beyond those of the clipped update."""

    group_size: int = at_least(2, 8)
    """episodes that start alike; it divides the environments of every rank."""
    success_low: float = 0.1
    """groups whose mean return is below are left out."""
    success_high: float = 0.9
    """groups whose mean return is above are left out."""


class GRPO(EpisodeUpdate):
    """One update an iteration: group advantages, policy."""

    Config = GRPOConfig

    @staticmethod
    def needs(config: GRPOConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(
            group_size=config.group_size, fresh_episodes=True, epochs=config.epochs, minibatch=config.minibatch
        )

    def __init__(self, config: GRPOConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(ClippedUpdate(config, actor, ranks, seed, iterations), ranks, config)
        self.config = config

    def compare(self, returns: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        """Return group-relative advantages, and which groups differ in their returns; see `EpisodeUpdate`."""
        return group_advantage(returns, group, self.config.success_low, self.config.success_high)
