"""Reward modes of score differences: `late` and `sync` (potentials), `rises`, `audit` and `distill`.

Potential-based shaping does not change the optimal policy.

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout, Settlement
from embodied_rl.judge.reward.score_table import RolloutScores
from embodied_rl.mathematics.objectives.advantages import make_discounts
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import RewardNode


class Mode:
    """Mode `distill`, and the base of the others: computes no reward, and remembers nothing. (The learner does so.)

    Args:
        reward, discount: of the configuration; no discount where the algorithm has none.
        num_envs: N.
        limit_ends: whether the time limit ends an episode like a termination.

    Attributes:
        asks_finals: whether the final observations of truncated episodes matter.
    """

    def __init__(self, reward: RewardNode, num_envs: int, discount: Discount | None, limit_ends: bool) -> None:
        self._limit_ends, self.asks_finals = limit_ends, not limit_ends

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        """Write the reward columns of a rollout from its scores. Return counts; those of all collectors are summed."""
        return {}

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue between two rollouts."""
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""


class Audit(Mode):
    """Mode `audit`: counts the scores, and changes no reward."""

    def __init__(self, reward: RewardNode, num_envs: int, discount: Discount | None, limit_ends: bool) -> None:
        super().__init__(reward, num_envs, discount, limit_ends)
        self._ledger = PotentialLedger(num_envs)
        self._weight, self._discount, self.asks_finals = 1.0, Discount(1.0), True

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        known = join_known(rollout, scores, self._weight, self._discount, self._limit_ends)
        settled = self._ledger.settle(known)
        self._write(rollout, settled)
        return count_settled(known, settled, self._weight, scores.age)

    def _write(self, rollout: Rollout, settled: Settlement) -> None:
        """Write the columns of a mode that changes rewards."""

    def state(self) -> dict[str, Array]:
        return self._ledger.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._ledger.load(state)


class Shaping(Audit):
    """Modes `late` and `sync`: scores are potentials; writes the columns `shaping` and `potential`."""

    def __init__(self, reward: RewardNode, num_envs: int, discount: Discount | None, limit_ends: bool) -> None:
        super().__init__(reward, num_envs, discount, limit_ends)
        assert discount is not None
        self._weight, self._discount, self.asks_finals = reward.weight, discount, not limit_ends

    def _write(self, rollout: Rollout, settled: Settlement) -> None:
        rollout.shaping.copy_(torch.from_numpy(settled.shaping).to(rollout.shaping))
        rollout.potential.copy_(torch.from_numpy(settled.potential).to(rollout.potential))


class PositiveDelta(Audit):
    """Mode `rises`: the positive part of each score difference is the reward (`bonus`). A baseline.

    This is not potential-based: it rewards falling and rising again, so it changes the optimal policy.
    A missing score is held, as in shaping. After a termination nothing is scored, so that nothing is paid.
    """

    def __init__(self, reward: RewardNode, num_envs: int, discount: Discount | None, limit_ends: bool) -> None:
        super().__init__(reward, num_envs, discount, limit_ends)
        self._weight, self.asks_finals = reward.weight, not limit_ends

    def _write(self, rollout: Rollout, settled: Settlement) -> None:
        paid = np.maximum(settled.shaping, 0.0)  # scores are 0…1: the 0 at a termination is never a rise
        rollout.bonus.copy_(torch.from_numpy(paid).to(rollout.bonus))


def join_known(
    rollout: Rollout, scores: RolloutScores, weight: float, discount: Discount, limit_ends: bool
) -> ScoredRollout:
    """Return a rollout and its scores as the ledger takes them."""
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
