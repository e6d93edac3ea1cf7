"""The requests that wait for a scorer: in the order of their priority, and each question asked once."""

import hashlib
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerTraits

CACHED = 20_000
"""Scores that are remembered."""


@dataclass(eq=False)
class Ticket:
    """A request that was handed over. `score` is None until it is answered; `seconds` from then on."""

    request: ScoreRequest
    priority: int
    submitted: float
    score: Score | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class QueuedRequest:
    """A request that has to be sent; `key` is None for a scorer whose answers may not be used again."""

    key: bytes | None
    ticket: Ticket


class RequestQueue:
    """Waiting requests, requests in flight and remembered scores. It is not safe against threads: a lock is.

    Args:
        traits: of the scorer.
        most: requests that may wait; beyond, those that matter least are dropped.
    """

    def __init__(self, traits: ScorerTraits, most: int) -> None:
        self._traits, self._most = traits, most
        self._waiting: list[tuple[int, int, Ticket]] = []
        self._order = itertools.count()
        self._remembered: OrderedDict[bytes, Score] = OrderedDict()
        self._in_flight: dict[bytes, list[Ticket]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Add tickets, and return those that are dropped because too many wait."""
        for ticket in tickets:
            heapq.heappush(self._waiting, (ticket.priority, next(self._order), ticket))
        if len(self._waiting) <= self._most:
            return []
        ordered = sorted(self._waiting)
        self._waiting = ordered[: self._most]  # sorted, therefore a heap
        return [ticket for _, _, ticket in ordered[self._most :]]

    def clear(self) -> list[Ticket]:
        """Remove and return all tickets that wait."""
        tickets, self._waiting = [ticket for _, _, ticket in self._waiting], []
        return tickets

    def take(self, most: int | None = None) -> tuple[list[QueuedRequest], list[tuple[Ticket, Score]]]:
        """Take the next questions, as many as one call of the scorer may have; and tickets that are answered already.

        At most `most` questions are taken, if it is given.

        A question that is in flight is not asked again: its ticket is answered with the other one's.
        """
        questions: list[QueuedRequest] = []
        answered: list[tuple[Ticket, Score]] = []
        limit = self._traits.batch if most is None else min(self._traits.batch, most)
        while self._waiting and len(questions) < limit:
            ticket = heapq.heappop(self._waiting)[2]
            if ticket.score is not None:  # nobody waits for it any more
                continue
            key = hash_request(ticket.request, self._traits.identity) if self._traits.cacheable else None
            if key is not None and key in self._remembered:
                self._remembered.move_to_end(key)
                answered.append((ticket, self._remembered[key]))
            elif key is not None and key in self._in_flight:
                self._in_flight[key].append(ticket)
            else:
                if key is not None:
                    self._in_flight[key] = [ticket]
                questions.append(QueuedRequest(key, ticket))
        return questions, answered

    def finish(self, question: QueuedRequest, score: Score) -> list[Ticket]:
        """Return all tickets that a score answers, and remember it if it is valid: failures are asked about again."""
        if question.key is None:
            return [question.ticket]
        if score.valid:
            self._remembered[question.key] = score
            if len(self._remembered) > CACHED:
                self._remembered.popitem(last=False)
        return self._in_flight.pop(question.key)


def hash_request(request: ScoreRequest, identity: str) -> bytes:
    """Return a hash of everything that a cacheable scorer's answer may depend on."""
    digest = hashlib.sha256(repr((identity, request.kind, request.instruction)).encode())
    for pictures in (request.frames, request.first):
        for name in sorted(pictures):
            digest.update(repr((name, pictures[name].shape)).encode())
            digest.update(pictures[name].tobytes())
    digest.update(request.state.tobytes())
    if request.state_before is not None:
        digest.update(request.state_before.tobytes())
    return digest.digest()
