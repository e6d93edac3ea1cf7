"""The scores of a rollout as arrays, progress from pairwise scores, and the figures of a run's scores.

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping, Sequence
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
    """Return whether there is a valid score with at least this confidence."""
    return score is not None and score.valid and score.confidence >= least


def read_done(request: ScoreRequest, score: Score) -> float | None:
    """Return the probability that the task is done; None where the scorer does not give it."""
    return score.value if request.kind == "done" else score.done


def advance(progress: Array, change: Array) -> Array:
    """Return progress after a pairwise score: both float64 of one shape, within 0…1 and -1…1; NaN changes nothing.

    A change h > 0 is relative to the remaining progress, h < 0 to the reached one: p ← p + (1 - p) h, or p ← p + p h.
    So progress stays within 0…1, and a potential computed from it depends on the episode's history alone. (The
    recursion is that of Robo-Dopamine, arXiv:2512.23703. Sums of raw changes, as rewards, change what is optimal.)
    """
    known = np.where(np.isnan(change), 0.0, change)
    return progress + np.where(known >= 0, 1 - progress, progress) * known


def count_tickets(tickets: Sequence[Ticket], asked: int, waited: float, status: str) -> dict[str, float]:
    """Return the counts of a collector's rollout.

    Args:
        tickets: that were answered or abandoned in the rollout.
        asked: number of requests submitted in it.
        waited: seconds that the collector waited for scores.
        status: of the service.
    """
    valid = [ticket.score for ticket in tickets if ticket.score is not None and ticket.score.valid]
    return {
        "asked": asked,
        "resolved": len(tickets),
        "valid": len(valid),
        "progress": float(sum(score.value for score in valid)),
        "waited": waited,
        "down": float(status == "down"),
        "degraded": float(status == "degraded"),
        "collectors": 1,
    }


def summarise_scores(counts: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics of an iteration from the summed counts of its collectors; empty without requests.

    `docs/scoring.md` describes each metric. Metrics of a mode are present if the mode counts them.
    """
    if not counts.get("collectors"):
        return {}
    valid, collectors, ended = counts["valid"], counts["collectors"], counts["resolved"]
    found = {
        "reward/asked": counts["asked"],
        **({"reward/valid": valid / ended} if ended else {}),
        **({"reward/labels": counts["labels"], "reward/open": counts["open"] / collectors} if "open" in counts else {}),
        "reward/progress": counts["progress"] / max(valid, 1.0),
        "reward/down": counts["down"] / collectors,
        "reward/degraded": counts["degraded"] / collectors,
        "time/reward_wait": counts["waited"] / collectors,
    }
    if "settled" in counts:
        found["reward/held"] = counts["held"] / max(counts["settled"], 1.0)
    if counts.get("scored"):
        found["reward/staleness"] = counts["age"] / counts["scored"]
    if "said" in counts:
        found["reward/said_done"] = counts["said"]
        found["reward/missed_done"] = counts["missed"]
        found["reward/missing_done"] = counts["undone"] / max(counts["judged"], 1.0)
        if counts["said"]:
            found["reward/false_done"] = counts["false"] / counts["said"]
    if counts.get("ended"):
        found["reward/critic_return"] = counts["returned"] / counts["ended"]
    if probed := counts.get("probed", 0.0):
        found |= {"reward/probed": probed, "reward/mismatch_gap": counts["gap"] / probed}
    return found
