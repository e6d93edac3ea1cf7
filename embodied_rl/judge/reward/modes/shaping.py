"""Modes `late` and `sync`: scores are potentials, and shape the simulator's reward without changing what is optimal."""

from collections.abc import Mapping

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.ledger import PotentialLedger, ScoredRollout, Settlement
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.mathematics.objectives.advantages import make_discounts
from embodied_rl.rollout.buffer import Rollout


class Shaping:
    """Writes the columns `shaping` and `potential`.

    Args:
        options: with a discount.
    """

    def __init__(self, options: ModeOptions) -> None:
        assert options.discount is not None
        self._options, self._weight, self._discount = options, options.reward.weight, options.discount
        self._ledger = PotentialLedger(options.num_envs)
        self.asks_finals = not options.limit_ends

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        known = join_known(rollout, scores, self._weight, self._discount, self._options.limit_ends)
        settled = self._ledger.settle(known)
        rollout.shaping.copy_(torch.from_numpy(settled.shaping).to(rollout.shaping))
        rollout.potential.copy_(torch.from_numpy(settled.potential).to(rollout.potential))
        return count_settled(known, settled, self._weight, scores.age)

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load({"carried": state["carried"]})


def join_known(
    rollout: Rollout, scores: RolloutScores, weight: float, discount: Discount, limit_ends: bool
) -> ScoredRollout:
    """Return what the ledger needs of a rollout and its scores."""
    truncated, terminated = rollout.truncated.cpu().numpy(), rollout.terminated.cpu().numpy()
    if limit_ends:
        truncated, terminated = np.zeros_like(truncated), terminated | truncated
    return ScoredRollout(
        score=weight * scores.rows.value,
        last=weight * scores.lasts.value,
        final=weight * scores.finals.value,
        decision=rollout.decision.cpu().numpy(),
        discount=make_discounts(rollout.steps.cpu(), discount.gamma, discount.per).double().numpy(),
        terminated=terminated,
        truncated=truncated,
        valid=rollout.valid.cpu().numpy(),
    )


def count_settled(
    known: ScoredRollout, settled: Settlement, weight: float, age: Array | None = None
) -> dict[str, float]:
    """Count settled and held potentials, and sum the last ones of the finished episodes.

    If scores have an age, a potential with age > 0 counts as held.
    """
    ended = known.valid & (known.terminated | known.truncated)
    last = np.where(known.truncated, settled.following, settled.potential)[ended]
    counts = {"held": float(settled.held.sum()), "settled": float(known.valid.sum())}
    if age is not None:
        scored = age[known.valid & ~np.isnan(age)]
        counts |= {"held": counts["settled"] - float((scored == 0).sum())}
        counts |= {"age": float(scored.sum()), "scored": float(len(scored))}
    if weight:
        counts |= {"returned": float(last.sum() / weight), "ended": float(ended.sum())}
    return counts
