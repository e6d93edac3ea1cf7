"""Probes of a scorer: the same picture with another task's instruction must score lower.

A scorer that ignores the instruction gives the same score for every task. So a small share of the requests with a high
score is sent again with the instruction of another episode. Probes have the lowest priority: they are sent after a
rollout is settled, and counted when the next one is.
"""

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embodied_rl.interfaces.scorer import ScorerTraits
from embodied_rl.judge.requests.request_queue import PROBE, Ticket
from embodied_rl.judge.requests.service import ScoreService

log = logging.getLogger(__name__)

HIGH = 0.5
"""Only scores of at least so much are asked about again: where a task has hardly begun, no words change that."""
LEAST_GAP = 0.2
"""The user is warned if the mean difference is smaller."""
ENOUGH = 30
"""Probes before the mean is judged."""


class MismatchProbes:
    """Asks about a share (0…1) of the observations of a rollout with other instructions, and compares.

    Attributes:
        asked: tickets of the probes that were asked last.
    """

    def __init__(self, service: ScoreService, share: float, traits: ScorerTraits) -> None:
        self._service, self._share = service, share if traits.reads_instruction else 0.0
        self.asked: list[Ticket] = []
        self._own, self._gaps = list[float](), list[float]()
        """Scores of the requests that were asked again; differences until they are judged."""
        self._warned = False

    def ask(self, tickets: Sequence[Ticket]) -> None:
        """Ask about a share of answered tickets under the instruction of another episode."""
        most = round(self._share * len(tickets))
        high = [ticket for ticket in tickets if _value(ticket) >= HIGH]
        chosen = sorted(high, key=lambda each: zlib.crc32(f"{each.request.episode} {each.request.decision}".encode()))
        requests, self._own = [], []
        for place, ticket in enumerate(chosen[:most]):  # random, and the same in each run with the same episodes
            others = sorted({other.request.instruction for other in tickets} - {ticket.request.instruction})
            if others:
                requests.append(replace(ticket.request, instruction=others[place % len(others)]))
                self._own.append(_value(ticket))
        self.asked = self._service.submit(requests, [PROBE] * len(requests))

    def count(self, tickets: Sequence[Ticket]) -> Mapping[str, float]:
        """Return the number of answered probes and the sum of differences; warn once if their mean is small."""
        gaps = [
            own - ticket.score.value
            for own, ticket in zip(self._own, tickets, strict=True)
            if ticket.score is not None and ticket.score.valid
        ]
        self._gaps += [] if self._warned else gaps
        if len(self._gaps) >= ENOUGH:
            mean = sum(self._gaps) / len(self._gaps)
            self._gaps.clear()
            if mean < LEAST_GAP:
                self._warned = True
                log.warning(
                    "The scorer hardly listens: under the words of another task, pictures that it scores high lose "
                    "%.2f on average (%d probes); below %.1f it judges looks, not the task.",
                    mean,
                    ENOUGH,
                    LEAST_GAP,
                )
        return {"probed": len(gaps), "gap": float(sum(gaps))}


def _value(ticket: Ticket) -> float:
    return ticket.score.value if ticket.score is not None and ticket.score.valid else -1.0
