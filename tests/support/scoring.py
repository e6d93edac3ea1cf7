"""Scorers that behave as a test tells them, and requests for them."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits

DEADLINE = 60.0
Answer = Callable[[ScoreRequest], Score]


def request(code: int = 0, decision: int = 0, episode: int = 0, words: str = "go left") -> ScoreRequest:
    """A request whose picture shows a number."""
    picture = np.full((1, 2, 2, 3), code, np.uint8)
    return ScoreRequest(
        episode, decision, "absolute", words, {"top": picture}, {"top": picture[0]}, np.zeros(3, np.float32)
    )


def read_code(asked: ScoreRequest) -> Score:
    """What the picture shows, as a share of 255."""
    return Score(float(asked.frames["top"][-1].max()) / 255)


class ToldScorer(Scorer):
    """Answers with a function, which may raise; notes each call.

    Args:
        answer: request → score.
        gate: answers wait until it is set.
    """

    Config: Any = None

    def __init__(
        self,
        answer: Answer = read_code,
        gate: threading.Event | None = None,
        batch: int = 1,
        cacheable: bool = True,
        seconds: float = 0.0,
    ) -> None:
        self.traits = ScorerTraits(("absolute",), "told", batch=batch, cacheable=cacheable)
        self.calls: list[list[ScoreRequest]] = []
        self.at_once = self.most_at_once = 0
        self.closed = False
        self._answer, self._gate, self._seconds = answer, gate, seconds

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        self.calls.append(list(requests))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            while self._gate is not None and not self._gate.is_set():
                await asyncio.sleep(0.002)
            await asyncio.sleep(self._seconds)
            return [self._answer(each) for each in requests]
        finally:
            self.at_once -= 1

    async def close(self) -> None:
        self.closed = True


def score(scorer: Scorer, *requests: ScoreRequest, check: bool = False) -> list[Score]:
    """Open a scorer, check it if wanted, let it answer as many requests at once as it takes, and close it."""
    size = scorer.traits.batch

    async def run() -> list[Score]:
        await scorer.open()
        try:
            if check:
                await scorer.check()
            calls = [requests[place : place + size] for place in range(0, len(requests), size)]
            return [each for found in await asyncio.gather(*map(scorer.score, calls)) for each in found]
        finally:
            await scorer.close()

    return asyncio.run(run())


@contextmanager
def serving(scorer: Scorer, **limits: Any) -> Iterator[ScoreService]:
    """A service around a scorer, closed at the end."""
    service = ScoreService(lambda: scorer, ServiceLimits(**limits))
    try:
        yield service
    finally:
        service.close()
