"""The ledger of potentials: it settles the value of each observation once, and makes potential-based rewards of them.

F_t = γ_t Φ(s_{t+1}) - Φ(s_t) does not change which policy is optimal (Ng, Harada and Russell, 1999), for any potential,
even one that depends on the history, as long as the value used as Φ(s_{t+1}) at decision t is the one used as Φ(s_t) at
the next decision, and depends on nothing that follows the next action. So a value is settled once, and where there is
no score, the last settled value of the episode is held. (Interpolation between scores would use the future, and bias
the gradient.)

Shapes: T decisions, N environments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array


@dataclass(frozen=True)
class ScoredRollout:
    """What is known of a rollout when its potentials are settled. NaN stands for a missing score.

    Attributes:
        score: float64 [T, N], of the observation before each decision.
        last: float64 [N], of the observation after the last decision.
        final: float64 [T, N], of the final observation of episodes that were truncated.
        decision: int64 [T, N], number of earlier decisions in the same episode.
        discount: float64 [T, N], that of the advantages, on what follows each decision.
        terminated, truncated, valid: bool [T, N].
    """

    score: Array
    last: Array
    final: Array
    decision: Array
    discount: Array
    terminated: Array
    truncated: Array
    valid: Array


@dataclass(frozen=True)
class Settlement:
    """What was settled for a rollout.

    Attributes:
        potential: float64 [T, N], Φ of the observation before each decision.
        following: float64 [T, N], Φ of what follows: 0 after a termination.
        shaping: float64 [T, N], F; 0 in rows that are not valid.
        held: bool [T, N], whether `potential` is an earlier value of the episode, or the 0 of a missing first score.
    """

    potential: Array
    following: Array
    shaping: Array
    held: Array


class PotentialLedger:
    """Settles potentials of consecutive rollouts of the same environments.

    Attributes:
        carried: float64 [N], the settled Φ of the observation after the last decision, where its episode goes on.
    """

    def __init__(self, num_envs: int) -> None:
        self.carried = np.zeros(num_envs)

    def settle(self, rollout: ScoredRollout) -> Settlement:
        """Settle the potentials of a rollout, and carry those at its end into the next one.

        An episode that goes on from the rollout before keeps the value that was settled there, even if its score has
        come in between. An episode that begins has 0 before its first score: a constant changes no gradient.
        """
        potential, held = np.zeros(rollout.score.shape), np.zeros(rollout.score.shape, bool)
        for t in range(len(rollout.decision)):
            begins, missing = rollout.decision[t] == 0, np.isnan(rollout.score[t])
            held[t] = missing & (begins | (t > 0))
            if t == 0:
                missing = missing | ~begins
            before = self.carried if t == 0 else potential[t - 1]
            potential[t] = np.where(missing, np.where(begins, 0.0, before), rollout.score[t])
        last = np.where(np.isnan(rollout.last), potential[-1], rollout.last)
        following = np.concatenate([potential[1:], last[None]])
        final = np.where(np.isnan(rollout.final), potential, rollout.final)
        following = np.where(rollout.truncated, final, following)
        following = np.where(rollout.terminated, 0.0, following)
        shaping = np.where(rollout.valid, rollout.discount * following - potential, 0.0)
        goes_on = rollout.valid[-1] & ~(rollout.terminated[-1] | rollout.truncated[-1])
        self.carried = np.where(goes_on, following[-1], 0.0)
        return Settlement(potential, following, shaping, held & rollout.valid)

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue exactly."""
        return {"carried": self.carried.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state that `state` returned."""
        self.carried = np.asarray(state["carried"], np.float64).copy()
