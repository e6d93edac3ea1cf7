"""The scores of a rollout that came in time, as arrays.

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.requests.request_queue import Ticket


@dataclass(frozen=True)
class Scores:
    """Scores, NaN where there is none that may be used.

    Attributes:
        value, done: float64.
        asked: bool, whether there was a question at all.
    """

    value: Array
    done: Array
    asked: Array

    @staticmethod
    def of(value: Array) -> "Scores":
        """Return scores without "done"."""
        return Scores(value, np.full(value.shape, np.nan), np.ones(value.shape, bool))


@dataclass(frozen=True)
class RolloutScores:
    """Scores of a rollout.

    Attributes:
        rows: [T, N], of the observations before the decisions.
        finals: [T, N], of the final observations of episodes that were truncated.
        lasts: [N], of the observations after the last decision.
        age: float64 [T, N], decisions since the scored observation; NaN without a score. None if each score belongs
            to the observation of its row.
    """

    rows: Scores
    finals: Scores
    lasts: Scores
    age: Array | None = None


def tabulate_scores(tickets: Mapping[Any, Ticket], shape: tuple[int, ...], least: float) -> Scores:
    """Return answered tickets, by their place, as arrays of a shape; scores below `least` confidence are missing."""
    value, done, asked = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, bool)
    for place, ticket in tickets.items():
        asked[place] = True
        if is_usable(ticket.score, least):
            said = read_done(ticket.request, ticket.score)
            value[place], done[place] = ticket.score.value, np.nan if said is None else said
    return Scores(value, done, asked)


def is_usable(score: Score | None, least: float) -> TypeGuard[Score]:
    """Return whether a score is there, valid, and sure enough."""
    return score is not None and score.valid and score.confidence >= least


def read_done(request: ScoreRequest, score: Score) -> float | None:
    """Return the probability that the task is done; None where the scorer does not say."""
    return score.value if request.kind == "done" else score.done
