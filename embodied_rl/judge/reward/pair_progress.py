"""Progress from judgements of change: how much nearer a task has come since the frame before.

A change h > 0 is a share of what was left, h < 0 of what had been reached: p ← p + (1 - p) h, or p ← p + p h. So
progress stays within 0…1 whatever a model says, and a potential made of it is one of the episode's history. (The
recursion is that of Robo-Dopamine, arXiv:2512.23703. Sums of raw changes, as rewards, change what is optimal.)

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.score_table import RolloutScores


def advance(progress: Array, change: Array) -> Array:
    """Return progress after a change: both float64 of one shape, within 0…1 and -1…1; NaN changes nothing."""
    known = np.where(np.isnan(change), 0.0, change)
    return progress + np.where(known >= 0, 1 - progress, progress) * known


class PairProgress:
    """Turns the changes of consecutive rollouts of the same environments into progress.

    An episode begins at 0. Where the answer about a pair is missing, its change is lost for good: progress stays what
    it was, and its score stays missing, so that the ledger holds the potential. What was settled at the end of a
    rollout is where the next one goes on, even if the answer has come in between.

    Args:
        num_envs: N.

    Attributes:
        carried: float64 [N], progress after the last decision.
    """

    def __init__(self, num_envs: int) -> None:
        self.carried = np.zeros(num_envs)

    def join(self, changes: RolloutScores, decision: Array) -> RolloutScores:
        """Return scores of progress in place of those of changes.

        Args:
            changes: of the rollout.
            decision: int64 [T, N], number of earlier decisions in the same episode.
        """
        progress = np.zeros(decision.shape)
        before = self.carried
        for t, number in enumerate(decision):
            change = changes.rows.value[t] if t else np.zeros(len(number))  # what goes on was settled before
            progress[t] = before = np.where(number == 0, 0.0, advance(before, change))
        last, final = advance(before, changes.lasts.value), advance(progress, changes.finals.value)
        self.carried = last
        begins = decision == 0
        return RolloutScores(
            rows=replace(changes.rows, value=np.where(begins, 0.0, _known(changes.rows.value, progress))),
            finals=replace(changes.finals, value=_known(changes.finals.value, final)),
            lasts=replace(changes.lasts, value=_known(changes.lasts.value, last)),
        )

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue exactly."""
        return {"pair/carried": self.carried.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self.carried = np.asarray(state["pair/carried"], np.float64).copy()


def _known(change: Array, progress: Array) -> Array:
    return np.where(np.isnan(change), np.nan, progress)
