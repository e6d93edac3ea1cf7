"""A scorer that fails is asked again where that may help, after pauses, and for a share of the calls only."""

import asyncio
from collections.abc import Sequence

import pytest

from embodied_rl.interfaces.scorer import Reason, Score, ScoreRequest, ScorerError
from embodied_rl.judge.requests import attempts
from embodied_rl.judge.requests.attempts import (
    BACKOFF,
    FIRST_PAUSE,
    RETRIES,
    RETRY_SHARE,
    TRIP_AFTER,
    Attempts,
    Breaker,
    InFlightLimit,
)
from tests.support.scoring import ToldScorer, read_code, request

TIMEOUT = 10.0


class Failing(ToldScorer):
    """Raises the errors in `left`, one a call, and then answers."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[ScorerError] = []

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        self.calls.append(list(requests))
        if self.left:
            raise self.left.pop(0)
        return [read_code(each) for each in requests]


class Asked:
    """Attempts at a scorer that fails, by a clock that stands still; notes pauses and what they are drawn from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept, self.drawn = 0.0, list[float](), list[tuple[float, float]]()
        self.scorer, self.breaker = Failing(), Breaker(lambda: self.now)
        self._attempts = Attempts(self.scorer, TIMEOUT, InFlightLimit(8), self.breaker)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        monkeypatch.setattr(attempts.asyncio, "sleep", sleep)
        monkeypatch.setattr(attempts.random, "uniform", lambda *ends: self.drawn.append(ends) or ends[1])

    def ask(self, *errors: ScorerError) -> int:
        """Ask once; return the number of attempts."""
        before, self.scorer.left = len(self.scorer.calls), list(errors)
        asyncio.run(self._attempts.answer([request()]))
        return len(self.scorer.calls) - before


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_each_pause_is_drawn_from_twice_the_range_and_the_last_failure_has_none(asked: Asked) -> None:
    for _ in range(100):
        assert asked.ask() == 1
    assert asked.ask(*[ScorerError("failed", "no")] * 9) == 1 + RETRIES
    assert asked.drawn == [(0, BACKOFF), (0, 2 * BACKOFF)] and asked.slept == [BACKOFF, 2 * BACKOFF]


@pytest.mark.parametrize(
    "reason, after, calls, slept",
    [("failed", 11.0, 1, []), ("busy", 11.0, 1, [TIMEOUT]), ("failed", 10.0, 2, [10.0]), ("busy", 3.0, 2, [3.0])],
)
def test_a_scorer_that_says_when_is_asked_then(
    reason: Reason, after: float, calls: int, slept: list[float], asked: Asked
) -> None:
    """Not within the same call if that is later than the timeout; but one that is busy has a pause."""
    assert asked.ask(ScorerError(reason, "later", retry_after=after)) == calls
    assert asked.slept == slept


def test_a_share_of_the_calls_is_repeated_and_one_always(asked: Asked) -> None:
    busy = [ScorerError("busy", "no")] * 9
    more = [asked.ask(*busy) - 1 for _ in range(100)]
    assert sum(more[:10]) == 1 and sum(more) == RETRY_SHARE * 100


def test_a_busy_answer_to_a_probe_lets_another_one_be_sent(asked: Asked) -> None:
    for _ in range(TRIP_AFTER):
        asked.ask(ScorerError("refused", "gone"))
    asked.now += FIRST_PAUSE
    asked.breaker.begin()
    assert asked.ask(ScorerError("busy", "no")) == 1, "no second attempt"
    assert not asked.breaker.allows()
    asked.now += FIRST_PAUSE
    assert asked.breaker.allows()
