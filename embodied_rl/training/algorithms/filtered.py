"""Filtered cloning: run the policy, clone its successful episodes, repeat (rejection fine-tuning).

It needs no critic, no likelihood and no exploration noise: the start noise of the flow explores, or samples of the
tokens or numbers that the policy predicts. It is the baseline of every method that learns from few episodes: it can
only choose among what the policy already does, and memorises its few rows. Mixing with other episodes
(`replay.preload`) and an early stop by a held-out loss counter that.

Where a human helped, the success is also that of the human: of such an episode only decisions in which the human acted,
and those after the last of them, are cloned, but none that the human had to correct (in the manner of Sirius,
arXiv:2211.08416, which gives no weight to what precedes an intervention).

Shapes: B decisions.
"""

from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.sim import Array
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
        return Needs(learns_from="replay", explores=False, minibatch=config.minibatch, success=True)

    def weigh(self, replay: Replay, iteration: int) -> tuple[WeightedDecisions, dict[str, float]]:
        """Return the decisions of all successful episodes, see `find_uncorrected`, with equal weights."""
        parts, episodes, successes = list[Array](), 0, 0
        for number in range(len(replay.storages)):
            found = replay.list_episodes(number)
            good = [episode for episode in found if episode.success]
            episodes, successes = episodes + len(found), successes + len(good)
            where = replay.list_decisions(number, good)
            lengths = np.array([len(episode.slots) for episode in good], np.int64)
            parts.append(where[find_uncorrected(replay.find_human(where), lengths)])
        where = np.concatenate(parts)
        figures = self.sum_figures({"episodes": episodes, "successes": successes})
        return WeightedDecisions(where, np.ones(len(where), np.float32)), figures


def find_uncorrected(human: Array, lengths: Array) -> Array:
    """Return which decisions of episodes no human had to correct, bool [B]: with the human's own, those to clone.

    Args:
        human: bool [B], whether a human acted in a decision; whole episodes, one after the other.
        lengths: int64, their numbers of decisions.
    """
    found = human.astype(bool)
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        (helped,) = np.nonzero(human[end - length : end])
        found[end - length + (helped[-1] if len(helped) else 0) : end] = True
    return found
