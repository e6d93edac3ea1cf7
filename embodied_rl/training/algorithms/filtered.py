"""Filtered cloning: run the deployed policy, clone its successful episodes, repeat (rejection fine-tuning).

It needs no critic, no likelihood and no exploration noise: the start noise of the flow explores. It is the baseline of
every method that learns from few episodes: it can only choose among what the policy already does, and memorises its few
rows. Mixing with other episodes (`replay.preload`) and an early stop by a held-out loss counter that.

Shapes: B decisions.
"""

from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.training.algorithms.replay_cloning import ReplayCloning, ReplayCloningConfig, WeightedDecisions


@dataclass(frozen=True)
class FilteredConfig(ReplayCloningConfig):
    """Settings of filtered cloning."""


class Filtered(ReplayCloning):
    """One update an iteration: clone the successful episodes of the replay."""

    Config = FilteredConfig

    @staticmethod
    def needs(config: FilteredConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(learns_from="replay", explores=False, minibatch=config.minibatch)

    def weigh(self, replay: Replay, iteration: int) -> tuple[WeightedDecisions, dict[str, float]]:
        """Return the decisions of all successful episodes, with equal weights."""
        parts, episodes, successes = list[np.ndarray](), 0, 0
        for number in range(len(replay.storages)):
            found = replay.list_episodes(number)
            good = [episode for episode in found if episode.success]
            episodes, successes = episodes + len(found), successes + len(good)
            parts.append(replay.list_decisions(number, good))
        where = np.concatenate(parts)
        figures = self.sum_figures({"episodes": episodes, "successes": successes})
        return WeightedDecisions(where, np.ones(len(where), np.float32)), figures
