"""Calls of a scorer: retries, the number of requests in flight, and the breaker that pauses a scorer which fails."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

from embodied_rl.interfaces.scorer import Reason, Score, Scorer, ScoreRequest, ScorerError

log = logging.getLogger(__name__)
Clock = Callable[[], float]

RETRIES = 2
"""Further attempts of a call that failed, where another attempt may help."""
RETRY_SHARE = 0.1
"""At most this share of all calls may be attempts beyond the first; one always may."""
BACKOFF = 0.2
"""Seconds; the pause before attempt n + 1 is drawn evenly from 0 … BACKOFF · 2^n."""
_RETRIED: tuple[Reason, ...] = ("busy", "failed", "timeout")
TRIP_AFTER = 5
"""Failures in a row that open the breaker."""
WINDOW, TRIP_SHARE = 40, 0.5
"""The breaker also opens if more than this share of the last requests failed; the window in requests."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds; each pause is twice the one before."""


class InFlightLimit:
    """Limit of requests in flight, at most `most`: additive increase, multiplicative decrease, as in TCP.

    It grows by one after `allowed` answers, and is halved when the scorer is overloaded, at most once per round trip.

    Attributes:
        allowed: the current limit.
        halvings: how often it was halved.
    """

    def __init__(self, most: int) -> None:
        self.allowed, self._most, self._answered, self.halvings = most, most, 0, 0

    def note_answer(self) -> None:
        """Count a request that was answered."""
        self._answered += 1
        if self._answered >= self.allowed:
            self.allowed, self._answered = min(self._most, self.allowed + 1), 0

    def note_overload(self, halvings: int) -> None:
        """Halve the limit, unless the request was sent before the last halving: `halvings` is the count of then."""
        if halvings == self.halvings:
            self.allowed, self._answered, self.halvings = max(1, self.allowed // 2), 0, self.halvings + 1


class Breaker:
    """Circuit breaker: pauses a scorer after failures, and tries it again later.

    While it is open, requests are not sent. After a pause one request is sent; its answer closes the breaker, its
    failure doubles the pause. The clock is monotonic, in seconds.

    Attributes:
        cause: of its opening; empty while it is closed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._pause = clock, FIRST_PAUSE
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._in_a_row, self._probing, self._until = 0, False, 0.0
        self.cause = ""

    @property
    def is_open(self) -> bool:
        """Return whether requests are not sent."""
        return bool(self.cause)

    def allows(self) -> bool:
        """Return whether a request may be sent now: always while closed, and one request after each pause."""
        if not self.is_open:
            return True
        return not self._probing and self._clock() >= self._until

    def begin(self) -> None:
        """Note that a request is sent."""
        self._probing = self.is_open

    def note_answer(self) -> None:
        """Note that a request was answered."""
        self._recent.append(True)
        self._in_a_row, self._probing, self._pause, self.cause = 0, False, FIRST_PAUSE, ""

    def note_unknown(self) -> None:
        """Note that a request ended without showing whether the scorer works: it was cancelled, or refused as busy."""
        if self._probing:
            self._probing, self._until = False, self._clock() + self._pause

    def note_failure(self, cause: str) -> None:
        """Note that a request failed, after all its attempts."""
        self._recent.append(False)
        self._in_a_row += 1
        failed = self._recent.count(False)
        mostly = len(self._recent) == WINDOW and failed > TRIP_SHARE * WINDOW
        if self._probing:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if self._probing or self._in_a_row >= TRIP_AFTER or mostly:
            self.cause = cause
            self._until, self._probing = self._clock() + self._pause, False
            self._recent.clear()


class Attempts:
    """Calls a scorer with retries, each within `timeout` seconds, and reports the outcome to limit and breaker."""

    def __init__(self, scorer: Scorer, timeout: float, limit: InFlightLimit, breaker: Breaker) -> None:
        self._scorer, self._timeout, self._limit, self._breaker = scorer, timeout, limit, breaker
        self._calls = self._more = 0

    async def answer(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Return a score for each request; invalid ones, with the reason, where the scorer failed."""
        self._calls += 1
        attempt = 0
        while True:
            halvings = self._limit.halvings
            try:
                answers = await asyncio.wait_for(self._scorer.score(requests), self._timeout)
                if len(answers) != len(requests):
                    raise ScorerError("failed", f"{len(answers)} answers to {len(requests)} requests")
            except (ScorerError, TimeoutError) as failure:
                late = ScorerError("timeout", f"no answer within {self._timeout:g} s")
                error = failure if isinstance(failure, ScorerError) else late
                if error.reason in ("busy", "timeout"):
                    self._limit.note_overload(halvings)
                useful = error.reason in _RETRIED and not error.permanent and not self._breaker.is_open
                patient = error.retry_after is None or error.retry_after <= self._timeout
                few = attempt < RETRIES and self._more < max(1.0, RETRY_SHARE * self._calls)
                again = useful and patient and few
                if again or error.reason == "busy":  # a busy scorer is not sent the next request at once
                    drawn = random.uniform(0, BACKOFF * 2**attempt)
                    await asyncio.sleep(min(self._timeout, drawn if error.retry_after is None else error.retry_after))
                if not again:
                    self._note(error)
                    return [Score.invalid(error.reason, str(error)) for _ in requests]
                attempt, self._more = attempt + 1, self._more + 1
            else:
                self._limit.note_answer()
                self._note(None)
                return [answer.checked(request.kind) for request, answer in zip(requests, answers, strict=True)]

    def _note(self, error: ScorerError | None) -> None:
        """Report the outcome of a call to the breaker, and log changes of the scorer's state."""
        was_open = self._breaker.is_open
        if error is None:
            self._breaker.note_answer()
        elif error.reason == "busy":
            self._breaker.note_unknown()
        else:
            self._breaker.note_failure(str(error))
        if self._breaker.is_open and not was_open:
            log.warning(
                "The scorer is down: %s. Rewards go on without it; it is asked again from time to time.",
                self._breaker.cause,
            )
        elif was_open and not self._breaker.is_open:
            log.warning("The scorer answers again.")
