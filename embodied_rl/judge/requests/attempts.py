"""The attempts to get an answer from a scorer: deadlines, pauses, a budget, and what is said when it fails."""

import asyncio
import logging
import random
from collections.abc import Sequence

from embodied_rl.interfaces.scorer import Reason, Score, Scorer, ScoreRequest, ScorerError
from embodied_rl.judge.requests.circuit_breaker import Breaker, InFlightLimit

log = logging.getLogger(__name__)

RETRIES = 2
"""Further attempts of a call that failed, where another attempt may help."""
RETRY_SHARE = 0.1
"""At most this share of all calls may be attempts beyond the first; one always may."""
BACKOFF = 0.2
"""Seconds; the pause before attempt n + 1 is drawn evenly from 0 … BACKOFF · 2^n."""
_RETRIED: tuple[Reason, ...] = ("busy", "failed", "timeout")


class Attempts:
    """Calls a scorer with retries, and reports the outcome to limit and breaker.

    Args:
        scorer: the scorer.
        timeout: seconds per call.
        limit, breaker: of the service.
    """

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
                scores = await self._call(requests)
            except ScorerError as error:
                if error.reason in ("busy", "timeout"):
                    self._limit.note_overload(halvings)
                again = self._may_retry(error, attempt)
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
                return scores

    async def _call(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        try:
            answers = await asyncio.wait_for(self._scorer.score(requests), self._timeout)
        except TimeoutError:
            raise ScorerError("timeout", f"no answer within {self._timeout:g} s") from None
        return check_answers(requests, answers)

    def _may_retry(self, error: ScorerError, attempt: int) -> bool:
        useful = error.reason in _RETRIED and not error.permanent and not self._breaker.is_open
        patient = error.retry_after is None or error.retry_after <= self._timeout
        return useful and patient and attempt < RETRIES and self._more < max(1.0, RETRY_SHARE * self._calls)

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


def check_answers(requests: Sequence[ScoreRequest], answers: Sequence[Score]) -> list[Score]:
    """Return a scorer's answers, invalid where a value is outside of its range.

    Raises:
        ScorerError: there are more or fewer answers than requests.
    """
    if len(answers) != len(requests):
        raise ScorerError("failed", f"{len(answers)} answers to {len(requests)} requests")
    return [answer.checked(request.kind) for request, answer in zip(requests, answers, strict=True)]
