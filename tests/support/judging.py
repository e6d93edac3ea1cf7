"""Judged episodes whose truth is known, and scorers that know it, or think they do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal, Relation
from embodied_rl.interfaces.scorer import Score, ScoreKind, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.judge.requests.service import ServiceLimits
from tests.support.collecting import SPEC

LIMITS = ServiceLimits(in_flight=8, timeout=30.0)
PROGRESS_SPEC = replace(SPEC, reports_progress=True)
FRAMES = 6


def goal(words: str, relation: Relation, progress: Any, true: bool = True) -> JudgedGoal:
    rising = np.array(progress, np.float32)
    return JudgedGoal(words, relation, rising, rising >= 1, true)


def episode(number: int, success: bool, true: bool = True, frames: int = FRAMES, others: bool = True) -> JudgedEpisode:
    """One whose pictures show the number of the frame; a failure comes to 0.6 and goes back."""
    rising = np.linspace(0, 1, frames)
    own = rising if success else np.concatenate([rising[: frames - 2] * 0.6, [0.3, 0.2]])
    goals = [goal("pick up the red cube", "own", own, true)]
    if others:
        goals.append(goal("pick up the blue cube", "object", 0.2 * rising))
        goals.append(goal("press the button", "task", 0.1 * np.sin(3 * rising) ** 2))
    pictures = np.broadcast_to(np.arange(frames, dtype=np.uint8)[:, None, None, None] * 20, (frames, 8, 8, 3))
    state = np.zeros((frames, len(SPEC.state_names)), np.float32)
    family = "pick" if number % 2 else "push"
    return JudgedEpisode({"top": pictures.copy()}, state, tuple(goals), success, "careful", family)


def episodes(successes: int = 4, failures: int = 4, **options: Any) -> list[JudgedEpisode]:
    both = [True] * successes + [False] * failures
    return [episode(number, success, **options) for number, success in enumerate(both)]


class Judge(Scorer):
    """Answers with a function of the request, which holds the truth.

    Args:
        answer: request → score.
        kinds: the questions that it answers.
    """

    Config: Any = None

    def __init__(self, answer: Callable[[ScoreRequest], Score], kinds: tuple[ScoreKind, ...] = ("absolute",)) -> None:
        self.traits = ScorerTraits(kinds, "told judge", batch=4, cacheable=False)
        self.asked: list[ScoreRequest] = []
        self._answer = answer

    async def open(self) -> None:
        """Nothing to prepare."""

    async def check(self) -> None:
        """It can always answer."""

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        self.asked += requests
        return [self._answer(each) for each in requests]

    async def close(self) -> None:
        """Nothing to release."""


def tell_truth(asked: ScoreRequest) -> Score:
    assert asked.progress is not None
    return Score(asked.progress, done=float(asked.progress >= 1))


def current_time(asked: ScoreRequest) -> Score:
    """A judge that rises with time, whatever the words: it has the best VOC there is."""
    return Score(asked.decision / (FRAMES - 1))
