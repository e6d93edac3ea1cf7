"""Reward modes of score differences: `late` and `sync` (potentials), `rises`, `audit` and `distill`.

Potential-based shaping does not change the optimal policy.
"""

from collections.abc import Mapping

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout, Settlement
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.mathematics.objectives.advantages import make_discounts
from embodied_rl.rollout.buffer import Rollout


class Shaping:
    """Modes `late` and `sync`: scores are potentials; writes the columns `shaping` and `potential`.

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


class PositiveDelta:
    """Mode `rises`: the positive part of each score difference is the reward (`bonus`). A baseline.

    This is not potential-based: it rewards falling and rising again, so it changes the optimal policy.
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
        paid = np.maximum(settled.shaping, 0.0)  # scores are 0…1: the 0 at a termination is never a rise
        rollout.bonus.copy_(torch.from_numpy(paid).to(rollout.bonus))
        return count_settled(known, settled, self._weight, scores.age)

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load({"carried": state["carried"]})


class Audit:
    """Mode `audit`: counts the scores, and changes no reward.

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


class Distill:
    """Mode `distill` in a collector: computes no reward. The `Distiller` does so in the learner.

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
