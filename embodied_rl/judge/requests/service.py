"""The service that asks a scorer: requests are handed over without waiting, and answered on a thread of their own."""

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Score, Scorer, ScoreRequest
from embodied_rl.judge.requests.attempts import Attempts, Breaker, Clock, InFlightLimit
from embodied_rl.judge.requests.request_queue import RequestQueue, Ticket
from embodied_rl.judge.scorers.cost import CostMeter, Prices

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0
"""Seconds in which a scorer must have closed."""
OPEN_TIMEOUT = 300.0
"""Seconds in which a scorer must have opened: it imports its libraries and loads its weights, which takes longer than
an answer."""


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a service.

    Attributes:
        in_flight: most calls of the scorer at once.
        queued: most requests that wait; beyond, those that matter least are dropped.
        timeout: seconds in which the scorer must answer a call.
        opening: seconds in which the scorer must be built and opened.
        budget: questions that may be sent in all, not counting further attempts; None for any number.
        prices: of tokens, where the scorer counts them; money: that may be spent in all, None for any amount.
        apart: whether a call of the scorer has requests of one submission only, so that the rounding of a network that
            judges several requests together does not depend on when they arrive.
    """

    in_flight: int = 32
    queued: int = 4096
    timeout: float = 10.0
    opening: float = OPEN_TIMEOUT
    budget: int | None = None
    prices: Prices | None = None
    money: float | None = None
    apart: bool = False


class ScoreService:
    """Sends requests to a scorer from a separate thread, so that collectors do not wait for it.

    A request without an answer gets an invalid `Score` with its reason, never a default value.

    Args:
        make_scorer: builds the scorer; called in the service's thread.
        limits: of queue, concurrency and time.
        clock: monotonic, in seconds.

    Attributes:
        counts: reason → number of requests with this outcome since the start.
        spent: number of sent requests.
        cost: of the answers.

    Raises:
        UserError: the scorer could not be created or opened in time.
    """

    def __init__(self, make_scorer: Callable[[], Scorer], limits: ServiceLimits, clock: Clock = time.monotonic) -> None:
        self._make, self._limits, self._clock = make_scorer, limits, clock
        self._limit, self._breaker = InFlightLimit(limits.in_flight), Breaker(clock)
        self._changed = threading.Condition()
        self._arrived: list[Ticket] = []
        self._submissions = itertools.count()
        self._abandoned = self._closing = False
        self._calls: dict[asyncio.Task[None], list[Ticket]] = {}
        self.counts: Counter[Reason] = Counter()
        self.spent, self.cost = 0, CostMeter(limits.prices, limits.money)
        self._warned_of_spent = False
        self._failure: BaseException | None = None
        self._name = "the scorer"
        self._loop = asyncio.new_event_loop()
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), name="score service", daemon=True)
        self._thread.start()
        if not begun.wait(limits.opening + CLOSE_TIMEOUT):  # it holds up the thread, which ends with the process
            raise _explain_opening(self._name, limits.opening)
        self.check()

    def submit(
        self, requests: Sequence[ScoreRequest], priorities: Sequence[int], slots: Sequence[Hashable] | None = None
    ) -> list[Ticket]:
        """Submit requests without waiting, and return their tickets.

        Args:
            requests: their arrays must not be changed afterwards.
            priorities: lower numbers are answered first.
            slots: see `Ticket`; None keeps all requests.
        """
        now, number = self._clock(), next(self._submissions)
        tickets = [
            Ticket(request, priority, now, slot=slot, submission=number)
            for request, priority, slot in zip(requests, priorities, slots or [None] * len(requests), strict=True)
        ]
        with self._changed:
            self._arrived.extend(tickets)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._work)
        return tickets

    def wait(self, tickets: Sequence[Ticket], seconds: float) -> None:
        """Wait until all tickets are answered or the service's thread has ended, at most `seconds` (or inf)."""
        until = time.monotonic() + seconds
        with self._changed:
            for ticket in tickets:
                while ticket.score is None:
                    left = until - time.monotonic()
                    if left <= 0 or self._loop.is_closed():
                        return
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def abandon(self, tickets: Sequence[Ticket]) -> None:
        """Settle tickets that are no longer needed: those without an answer get the reason "late".

        A call in flight is cancelled if all its tickets are abandoned, unless its tokens have a price: the cost of a
        cancelled call is unknown.
        """
        unanswered = [ticket for ticket in tickets if self._resolve(ticket, Score.invalid("late"))]
        with self._changed:
            if unanswered and not self._loop.is_closed():
                self._abandoned = True
                self._loop.call_soon_threadsafe(self._work)

    @property
    def status(self) -> str:
        """Return "healthy"; "degraded" where fewer requests are in flight than the settings allow; or "down"."""
        if self._breaker.is_open or self._is_spent():
            return "down"
        return "degraded" if self._limit.allowed < self._limits.in_flight else "healthy"

    @property
    def cause(self) -> str:
        """Return what is wrong while the status is "down"; else an empty text."""
        if self._is_spent():
            return self.cost.cause or f"its budget of {self._limits.budget} requests is spent (reward.budget)"
        return self._breaker.cause

    def _is_spent(self) -> bool:
        return bool(self.cost.cause) or (self._limits.budget is not None and self.spent >= self._limits.budget)

    def check(self) -> None:
        """Raise what ended the service's thread, if anything did: a mistake in a scorer may not pass unseen."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread, and close the scorer."""
        with self._changed:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * CLOSE_TIMEOUT)

    def _run(self, begun: threading.Event) -> None:
        """Run the event loop until it is stopped; an exception is raised by `check`, in another thread."""
        try:
            scorer = self._make()
            self._name = scorer.traits.identity
            self._queue = RequestQueue(scorer.traits, self._limits.queued, self._limits.apart)
            self._counts_tokens = scorer.traits.counts_tokens
            self._attempts = Attempts(scorer, self._limits.timeout, self._limit, self._breaker)
            self._loop.run_until_complete(open_scorer(scorer, self._limits.opening))
            begun.set()
            self._loop.run_forever()
            self._loop.run_until_complete(self._end(scorer))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = self._failure or error
        finally:
            with self._changed:
                self._loop.close()
                self._changed.notify_all()
            begun.set()

    async def _end(self, scorer: Scorer) -> None:
        self._closing = True
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.wait_for(scorer.close(), CLOSE_TIMEOUT)

    def _work(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - the event loop would only log it, and nothing more be answered
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._loop.stop()

    def _serve(self) -> None:
        """Take the requests that have arrived, and send those that may be sent. Hashing is slow, so no lock is held."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            abandoned, self._abandoned = self._abandoned, False
        if abandoned:
            self._queue.remove_answered()
            for task, sent in self._calls.items() if self._limits.prices is None else ():
                if not task.done() and self._queue.forget_abandoned(sent):
                    task.cancel()
        for ticket in self._queue.add(arrived):
            self._resolve(ticket, Score.invalid("dropped"))
        while len(self._calls) < self._limit.allowed and len(self._queue):
            if self._is_spent() or not self._breaker.allows():  # nothing is kept for a scorer that is gone
                for ticket in self._queue.clear():
                    self._resolve(ticket, Score.invalid("unavailable", self.cause))
                if self._is_spent() and not self._warned_of_spent:
                    self._warned_of_spent = True
                    log.warning("The scorer is not asked any more: %s. The run goes on without it.", self.cause)
                return
            if not self.cost.has_room(len(self._calls)):
                return  # requests in flight may cost all that is left; it goes on when that is known
            left = None if self._limits.budget is None else self._limits.budget - self.spent
            sent, answered = self._queue.take(left if self._limits.money is None else 1)  # a price for each call
            for ticket, score in answered:
                self._resolve(ticket, score)
            if sent:
                self.spent += len(sent)
                self.cost.begin(len(sent))
                self._breaker.begin()
                task = self._loop.create_task(self._ask(sent))
                self._calls[task] = sent
                task.add_done_callback(self._finish)

    async def _ask(self, sent: list[Ticket]) -> None:
        scores = await self._attempts.answer([ticket.request for ticket in sent])
        for each, score in zip(sent, scores, strict=True):
            if self._counts_tokens:
                self.cost.note(score)
            for ticket in self._queue.finish(each, score):
                self._resolve(ticket, score)

    def _finish(self, task: "asyncio.Task[None]") -> None:
        sent = self._calls.pop(task)
        if self._closing:
            return
        if task.cancelled():
            self._breaker.note_unknown()
            for _ in sent if self._counts_tokens else ():
                self.cost.note(Score.invalid("timeout"))
        elif (error := task.exception()) is not None:  # a mistake of the scorer's author, not a failure of a server
            self._fail(error)
            return
        self._work()

    def _resolve(self, ticket: Ticket, score: Score) -> bool:
        """Answer a ticket; return False where it has an answer already."""
        with self._changed:
            if ticket.score is not None:
                return False
            ticket.score, ticket.seconds = score, self._clock() - ticket.submitted
            self.counts[score.reason] += 1
            self._changed.notify_all()
            return True


async def open_scorer(scorer: Scorer, seconds: float = OPEN_TIMEOUT) -> None:
    """Open a scorer within `seconds`, or raise `UserError`."""
    try:
        await asyncio.wait_for(scorer.open(), seconds)
    except TimeoutError:
        raise _explain_opening(scorer.traits.identity, seconds) from None


def _explain_opening(scorer: str, seconds: float) -> UserError:
    return UserError(
        f"{scorer} was not ready within {seconds:g} s: check that the disk with its weights answers, and try again.",
        code="scorer-timeout",
    )
