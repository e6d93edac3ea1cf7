"""Retries of a scorer that fails, the number of requests in flight, and the breaker, by a clock of the test."""

import asyncio
from collections.abc import Sequence

import pytest

from embodied_rl.interfaces.scorer import Reason, Score, ScoreRequest, ScorerError
from embodied_rl.judge.requests import attempts
from embodied_rl.judge.requests.attempts import (
    BACKOFF,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RETRIES,
    RETRY_SHARE,
    TRIP_AFTER,
    WINDOW,
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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(TRIP_AFTER):
        breaker.note_failure("refused")
    return breaker


def test_overload_halves_and_answers_add_one() -> None:
    limit = InFlightLimit(32)
    limit.note_overload(limit.halvings)
    limit.note_overload(limit.halvings)
    assert limit.allowed == 8
    for _ in range(8):
        limit.note_answer()
    assert limit.allowed == 9
    for _ in range(100):
        limit.note_overload(limit.halvings)
    assert limit.allowed == 1, "one is always allowed"
    for _ in range(495):
        limit.note_answer()
    assert limit.allowed == 31
    limit.note_answer()
    assert limit.allowed == 32, "one more for each round trip, 1 + 2 + … + 31 answers"
    for _ in range(100):
        limit.note_answer()
    assert limit.allowed == 32, "and never more than the settings say"
    limit.note_overload(limit.halvings)
    for _ in range(15):
        limit.note_answer()
    assert limit.allowed == 16, "answers before the halving do not count"


def test_requests_sent_before_a_halving_halve_no_further() -> None:
    limit = InFlightLimit(32)
    sent = limit.halvings
    for _ in range(32):
        limit.note_overload(sent)
    assert limit.allowed == 16
    limit.note_overload(limit.halvings)
    assert limit.allowed == 8


def test_failures_in_a_row_open_the_breaker() -> None:
    breaker = Breaker(Clock())
    for _ in range(TRIP_AFTER - 1):
        breaker.note_failure("refused")
    assert breaker.allows() and not breaker.is_open
    breaker.note_answer()
    for _ in range(TRIP_AFTER - 1):
        breaker.note_failure("refused")
    assert not breaker.is_open, "an answer between them counts"
    assert opened(Clock()).is_open
    assert opened(Clock()).cause == "refused"


def test_many_failures_among_answers_open_it_too() -> None:
    breaker, half = Breaker(Clock()), Breaker(Clock())
    for _ in range(WINDOW):
        half.note_answer()
        half.note_failure("busy")
        assert not half.is_open
    seen = 0
    while not breaker.is_open and seen < 2 * WINDOW:
        breaker.note_failure("busy") if seen % 3 else breaker.note_answer()
        seen += 1
    assert WINDOW <= seen <= WINDOW + 1, "as soon as there are enough to judge by"
    breaker.note_answer()
    breaker.note_failure("busy")
    assert not breaker.is_open, "what was before the pause is forgotten"


def test_one_request_is_tried_after_each_pause_which_doubles() -> None:
    clock = Clock()
    breaker, pause = opened(clock), FIRST_PAUSE
    while pause < LONGEST_PAUSE:
        clock.now += pause - 0.1
        assert not breaker.allows()
        clock.now += 0.2
        assert breaker.allows()
        breaker.begin()
        assert not breaker.allows(), "one at a time"
        breaker.note_failure("still gone")
        pause = min(2 * pause, LONGEST_PAUSE)
    clock.now += LONGEST_PAUSE + 0.1
    breaker.begin()
    breaker.note_answer()
    assert breaker.allows() and not breaker.is_open and not breaker.cause
    for _ in range(TRIP_AFTER):
        assert not breaker.is_open, "it counts from 0 again"
        breaker.note_failure("gone once more")
    clock.now += FIRST_PAUSE
    assert breaker.allows(), "and pauses as at first"


def test_a_request_that_says_nothing_lets_another_one_be_tried() -> None:
    """One that was cancelled, or refused as busy, after the pause."""
    clock = Clock()
    breaker = opened(clock)
    clock.now += FIRST_PAUSE
    breaker.begin()
    breaker.note_unknown()
    assert breaker.is_open and not breaker.allows()
    clock.now += FIRST_PAUSE
    assert breaker.allows(), "the pause has not grown"
