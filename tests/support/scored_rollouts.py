"""Rollouts of one environment, and the scores of their observations, as modes of rewards take them."""

from typing import Literal

import numpy as np
import torch

from embodied_rl.judge.reward.score_table import RolloutScores, Scores
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

NAN = float("nan")


def make_rollout(
    decision: list[int], cut: tuple[int, ...] = (), over: tuple[int, ...] = (), executed: int = 1, reward: float = 0.0
) -> Rollout:
    """One environment; decisions `cut` and `over` truncate and terminate its episodes."""
    made = Rollout.allocate(RowwiseFakeActor(FakeSimulator(1).spec, executed=executed), len(decision), 1)
    made.clear()
    made.decision[:, 0] = torch.tensor(decision)
    made.valid[:], made.steps[:], made.reward[:] = True, executed, reward
    made.truncated[list(cut)], made.terminated[list(over)] = True, True
    return made


def tell(
    before: list[float],
    last: float = NAN,
    final: dict[int, float] | None = None,
    what: Literal["value", "done"] = "value",
) -> RolloutScores:
    """Values, or probabilities of done beside a value of 0.5, before each decision, after the last, at truncations."""

    def columns(told: np.ndarray) -> Scores:
        return Scores.of(told) if what == "value" else Scores(np.full(told.shape, 0.5), told, np.ones(told.shape, bool))

    finals = np.full((len(before), 1), NAN)
    for row, value in (final or {}).items():
        finals[row] = value
    return RolloutScores(columns(np.array(before)[:, None]), columns(finals), columns(np.array([last])))
