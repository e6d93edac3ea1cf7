"""Advantage-weighted regression (arXiv:1910.00177) of a flow policy: clone decisions weighted by exp(A / temperature).

The weighted flow matching loss has its optimum at π(a|o) ∝ p(a|o) exp(A(o, a) / temperature), with p the policies that
filled the replay. It learns from failures, too: a critic gives their good parts weight; see
`embodied_rl.training.algorithms.replay_critic`.

Left out: the ensemble of critics of verl-vla, and n-step Q functions.
"""

from dataclasses import dataclass

import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.config.freeze import at_least
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.replay_cloning import WeightedDecisions
from embodied_rl.training.algorithms.replay_critic import ReplayCritic, ReplayCriticConfig


@dataclass(frozen=True)
class AWRConfig(ReplayCriticConfig):
    """Settings of advantage-weighted regression, beyond those of cloning from replay with a critic."""

    temperature: float = at_least(1e-6, 0.2)
    """advantages are divided by it; the smaller, the more the best decisions count."""
    largest_weight: float = at_least(1, 20.0)
    """weights are truncated there, before they are divided by their mean."""


class AWR(ReplayCritic):
    """One update an iteration: critic, advantages, weighted cloning."""

    Config = AWRConfig

    def __init__(self, config: AWRConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(config, actor, ranks, seed, iterations)
        self.config = config

    def weigh(self, replay: Replay, iteration: int) -> tuple[WeightedDecisions, dict[str, float]]:
        """Fit the critic, and return the decisions of all whole episodes with weights of mean 1."""
        rated, counts = self.rate(replay, iteration)
        advantage, rows = rated.advantage, counts["rows"]
        weight = torch.exp(advantage / self.config.temperature).clamp(max=self.config.largest_weight)
        sums = {"weights": weight.sum().item(), "squares": weight.square().sum().item()}
        sums = self.sum_figures(sums | {"advantages": advantage.square().sum().item()})
        figures = {
            "episodes": counts["episodes"],
            "critic_loss": counts["critic_loss"],
            "advantage_rms": (sums["advantages"] / max(rows, 1)) ** 0.5,
            "effective_rows": sums["weights"] ** 2 / max(sums["squares"], 1e-12),
        }
        weight = weight * (rows / max(sums["weights"], 1e-12))
        return WeightedDecisions(rated.where, weight.float().numpy()), figures
