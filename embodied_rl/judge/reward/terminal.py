"""Mode `terminal`: the scorer alone decides when a task is done. That is the reward, and the end of the episode.

This is not a potential: the optimal policy is the scorer's. The simulator's reward is ignored, and its success is only
measured.

Shapes: T decisions, N environments of a collector.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.modes import Mode
from embodied_rl.judge.reward.score_table import RolloutScores, Scores
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import RewardNode

log = logging.getLogger(__name__)


class Terminal(Mode):
    """Writes 1 into `bonus` at the first decision after which a task is done, and ends its episode there.

    What the simulator does with the episode afterwards is not valid, until it begins the next one. A score that did
    not come in time, or without `done`, counts as not done. The end of an episode in the simulator is an end, too.
    """

    def __init__(self, reward: RewardNode, num_envs: int, discount: Discount | None, limit_ends: bool) -> None:
        super().__init__(reward, num_envs, discount, limit_ends)
        self.asks_finals = True
        self._threshold, self._needed = reward.done_threshold, reward.done_in_a_row
        self._within = discount.gamma if discount is not None and discount.per == "control_step" else 1.0
        self._memory = {
            "over": np.zeros(num_envs, bool),
            "reached": np.zeros(num_envs, bool),
            "in_a_row": np.zeros(num_envs, np.int64),
        }
        """Of running episodes: whether the scorer said done, whether the simulator's goal held at any step, and the
        number of judgements in a row that said done."""
        self._warned_of_missing = self._warned_of_ends = False

    def settle(self, rollout: Rollout, scores: RolloutScores) -> Mapping[str, float]:
        last = (rollout.steps - 1).clamp_min(0)[..., None]
        at_end = rollout.success.gather(-1, last)[..., 0] & (rollout.steps > 0)
        unseen = int((at_end & rollout.terminated & rollout.valid).sum())
        if unseen and not self._warned_of_ends:
            self._warned_of_ends = True
            log.warning(
                "The simulator ended %d episodes at its own success, so the scorer never saw them done: with "
                "reward.mode=terminal they count as failures. Let the simulator go on after success.",
                unseen,
            )
        following = find_following(rollout, scores)
        learned, new, reached = self._end_tasks(rollout, following)
        done = torch.from_numpy(new)
        reward = torch.where(done, torch.pow(self._within, (rollout.steps.cpu() - 1).clamp_min(0).double()), 0.0)
        rollout.ignore_env_reward.fill_(value=True)
        rollout.bonus.copy_(reward.to(rollout.bonus))  # of a chunk on its last control step, as a simulator's would
        done = done.to(rollout.terminated.device)
        rollout.terminated |= done
        rollout.truncated &= ~done
        rollout.valid.copy_(torch.from_numpy(learned))
        judged = learned & following.asked
        missing = int((judged & np.isnan(following.done)).sum())
        if missing and not self._warned_of_missing:
            self._warned_of_missing = True
            log.warning(
                "%d of %d judgements of this rollout came too late or have no done value: they count as not "
                "done. reward/missing_done counts them from now on; reward.deadline waits longer.",
                missing,
                int(judged.sum()),
            )
        ended = learned & (rollout.terminated | rollout.truncated).cpu().numpy()
        return {
            "said": int(new.sum()),
            "false": int((new & ~reached).sum()),
            "missed": int((ended & reached & ~new).sum()),
            "undone": missing,
            "judged": int(judged.sum()),
            "returned": float(new.sum()),
            "ended": int(ended.sum()),
        }

    def _end_tasks(self, rollout: Rollout, following: Scores) -> tuple[Array, Array, Array]:
        """Return which decisions are learned from, which are done, and where the goal was reached: bool [T, N] each."""
        over, goal, in_a_row = self._memory.values()
        said, asked = following.done > self._threshold, following.asked
        valid, success = rollout.valid.cpu().numpy(), rollout.success.any(-1).cpu().numpy()
        decision = rollout.decision.cpu().numpy()
        learned, new, reached = (np.zeros_like(said) for _ in range(3))
        for t in range(len(decision)):
            for array in self._memory.values():
                array[decision[t] == 0] = 0
            learned[t] = valid[t] & ~over
            goal |= success[t] & valid[t]
            in_a_row[:] = np.where(said[t], in_a_row + 1, np.where(asked[t], 0, in_a_row))
            new[t] = learned[t] & said[t] & (in_a_row >= self._needed)
            over |= new[t]
            reached[t] = goal
        return learned, new, reached

    def state(self) -> dict[str, Array]:
        return {f"done/{name}": array.copy() for name, array in self._memory.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        for name, array in self._memory.items():
            array[:] = state[f"done/{name}"]


def find_following(rollout: Rollout, scores: RolloutScores) -> Scores:
    """Return the scores of the observation after each decision, [T, N]; of truncated episodes the final observation.

    Observations after a termination are not scored, so that they need not be rendered.
    """
    terminated, truncated = rollout.terminated.cpu().numpy(), rollout.truncated.cpu().numpy()

    def follow(rows: Array, lasts: Array, finals: Array, none: float) -> Array:
        found = np.concatenate([rows[1:], lasts[None]])
        return np.where(terminated, none, np.where(truncated, finals, found))

    rows, lasts, finals = scores.rows, scores.lasts, scores.finals
    return Scores(
        value=follow(rows.value, lasts.value, finals.value, np.nan),
        done=follow(rows.done, lasts.done, finals.done, np.nan),
        asked=follow(rows.asked, lasts.asked, finals.asked, 0).astype(bool),
    )
