"""The requests that wait for a scorer: in the order of their priority, and each question asked once."""

import hashlib
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerTraits
from embodied_rl.judge.scorers.shared_images import SharedImages, list_pictures

CACHED = 20_000
"""Scores that are remembered."""
PROBE = 1 << 40
"""The priority after all others."""


@dataclass(eq=False)
class Ticket:
    """A request that was handed over.

    Attributes:
        request: the question.
        priority: lower numbers are answered earlier; equal ones in the order in which they came.
        submitted: time of the service's clock.
        slot: of the requests of one slot that wait, only the newest is kept; it takes the place of the one before.
        score: None until it is answered.
        seconds: until the answer.
        counted: decision of the episode before which the score was used first; None where it never was.
        submission: number of the call of `ScoreService.submit` that handed it over.
        key: hash of the request in flight; None for a scorer whose answers are not cached.
    """

    request: ScoreRequest
    priority: int
    submitted: float
    score: Score | None = None
    seconds: float = 0.0
    slot: Hashable = None
    counted: int | None = None
    submission: int = 0
    key: bytes | None = None


class RequestQueue:
    """Waiting requests, requests in flight and remembered scores. Only one thread may use it.

    Args:
        traits: of the scorer.
        most: requests that may wait; beyond, those of the lowest priority are dropped.
        apart: whether a call of the scorer has requests of one submission only.
    """

    def __init__(self, traits: ScorerTraits, most: int, apart: bool) -> None:
        self._traits, self._most, self._apart = traits, most, apart
        self._waiting: dict[Hashable, Ticket] = {}
        self._order: list[tuple[int, int, Hashable]] = []
        """A heap: priority, place, and slot of each waiting ticket."""
        self._places = itertools.count()
        self._remembered: OrderedDict[bytes, Score] = OrderedDict()
        self._in_flight: dict[bytes, list[Ticket]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Add tickets. Return those that are dropped, because of a newer one of their slot, or because too many wait.

        Change is judged without gaps: a pair takes over the earlier frames of a pair that it replaces.
        """
        dropped: list[Ticket] = []
        for ticket in tickets:
            slot = ticket if ticket.slot is None else ticket.slot
            before = self._waiting.get(slot)
            self._waiting[slot] = ticket
            if before is None:
                heapq.heappush(self._order, (ticket.priority, next(self._places), slot))
                continue
            dropped.append(before)
            if ticket.request.kind == "pair" and before.score is None:
                ticket.request = join_pairs(before.request, ticket.request)
        if len(self._waiting) > self._most:
            self._order.sort()
            dropped += [self._waiting.pop(slot) for _, _, slot in self._order[self._most :]]
            del self._order[self._most :]
        return dropped

    def remove_answered(self) -> None:
        """Remove waiting tickets that have a score, because they were abandoned."""
        self._waiting = {slot: ticket for slot, ticket in self._waiting.items() if ticket.score is None}
        self._order = [entry for entry in self._order if entry[2] in self._waiting]
        heapq.heapify(self._order)

    def clear(self) -> list[Ticket]:
        """Remove and return all tickets that wait."""
        tickets = list(self._waiting.values())
        self._waiting, self._order = {}, []
        return tickets

    def take(self, most: int | None = None) -> tuple[list[Ticket], list[tuple[Ticket, Score]]]:
        """Take the requests of the next call of the scorer, at most `most`; and tickets that are answered already.

        A request that is in flight is not sent again: its ticket is answered with the other one's.
        """
        sent: list[Ticket] = []
        answered: list[tuple[Ticket, Score]] = []
        limit = self._traits.batch if most is None else min(self._traits.batch, most)
        while self._waiting and len(sent) < limit:
            ticket = self._waiting[self._order[0][2]]
            if self._apart and sent and ticket.submission != sent[0].submission:
                break
            del self._waiting[heapq.heappop(self._order)[2]]
            if ticket.score is not None:  # abandoned
                continue
            ticket.key = hash_request(ticket.request, self._traits.identity) if self._traits.cacheable else None
            if ticket.key is None:
                sent.append(ticket)
            elif ticket.key in self._remembered:
                self._remembered.move_to_end(ticket.key)
                answered.append((ticket, self._remembered[ticket.key]))
            elif ticket.key in self._in_flight:
                self._in_flight[ticket.key].append(ticket)
            else:
                self._in_flight[ticket.key] = [ticket]
                sent.append(ticket)
        return sent, answered

    def finish(self, sent: Ticket, score: Score) -> list[Ticket]:
        """Return all tickets that a score answers, and remember it if it is valid: failures are asked about again."""
        if sent.key is None:
            return [sent]
        if score.valid:
            self._remembered[sent.key] = score
            if len(self._remembered) > CACHED:
                self._remembered.popitem(last=False)
        return self._in_flight.pop(sent.key, [sent])

    def forget_abandoned(self, sent: Sequence[Ticket]) -> bool:
        """Return whether all tickets that a call would answer have been abandoned; they are forgotten then."""
        waiting = [ticket for each in sent for ticket in self._in_flight.get(each.key or b"", [each])]
        if any(ticket.score is None for ticket in waiting):
            return False
        for each in sent:
            self._in_flight.pop(each.key or b"", None)
        return True


def join_pairs(earlier: ScoreRequest, later: ScoreRequest) -> ScoreRequest:
    """Return the question about the change from before the earlier pair to the later one."""
    before, after = list_pictures(earlier.frames), list_pictures(later.frames)
    frames = SharedImages({name: (*before[name][:-1], after[name][-1]) for name in after})
    return replace(later, frames=frames, state_before=earlier.state_before)


def hash_request(request: ScoreRequest, identity: str) -> bytes:
    """Return a hash of everything that a cacheable scorer's answer may depend on."""
    digest = hashlib.sha256(repr((identity, request.kind, request.instruction)).encode())
    for shown in (request.frames, request.first):
        for name, pictures in sorted(list_pictures(shown).items()):
            digest.update(repr((name, len(pictures))).encode())
            digest.update(b"".join(picture.digest for picture in pictures))
    digest.update(request.state.tobytes())
    if request.state_before is not None:
        digest.update(request.state_before.tobytes())
    return digest.digest()
