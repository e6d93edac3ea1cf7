"""Queue of bounded size between the thread that receives messages and the one that writes them."""

import threading
from collections import Counter, deque
from dataclasses import dataclass

OVERHEAD = 200
"""Approximate overhead of a message in memory, in bytes."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received message: its topic as an index into the recorder's list, CDR bytes, times in nanoseconds."""

    topic: int
    raw: bytes
    received_ns: int
    source_ns: int


class BoundedQueue:
    """Queue of messages with a limit in bytes; messages that do not fit are dropped and counted.

    Attributes:
        dropped: topic → messages dropped. most: largest size so far, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.dropped: Counter[int] = Counter()
        self.most = 0
        self._limit, self._size = limit, 0
        self._waiting: deque[Arrival] = deque()
        self._changed = threading.Condition()

    def put(self, arrival: Arrival) -> None:
        """Add a message, or drop it if the queue is full; never blocks."""
        size = len(arrival.raw) + OVERHEAD
        with self._changed:
            if self._size + size > self._limit:
                self.dropped[arrival.topic] += 1
                return
            self._waiting.append(arrival)
            self._size += size
            self.most = max(self.most, self._size)
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Arrival]:
        """Return up to 64 messages, oldest first; wait up to `timeout_s` for the first."""
        with self._changed:
            if not self._waiting and timeout_s > 0:
                self._changed.wait(timeout_s)
            taken = [self._waiting.popleft() for _ in range(min(64, len(self._waiting)))]
            self._size -= sum(len(each.raw) + OVERHEAD for each in taken)
            return taken
