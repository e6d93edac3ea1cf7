"""Deadlines of a control loop, measured durations, and settings of the interpreter against late wake-ups."""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

LEAST_S, MOST_S, FACTOR = 1e-6, 100.0, 1.05
"""Bins from 1 µs to 100 s, each 5 % wider than the one before."""
SWITCH_S = 1e-4
"""Seconds after which a thread that holds the interpreter lock must release it to a waiting thread."""
PRIORITY = 10
"""Of SCHED_FIFO, if the system permits it: above all other scheduling classes, below drivers."""


def read_seconds() -> float:
    """Return seconds of a monotonic clock that also counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # on macOS CLOCK_MONOTONIC does


class DurationHistogram:
    """Histogram of durations with constant memory. One thread adds, others may read."""

    def __init__(self) -> None:
        bins = int(np.ceil(np.log(MOST_S / LEAST_S) / np.log(FACTOR)))
        self._edges = LEAST_S * FACTOR ** np.arange(1, bins + 1)
        self._counts = np.zeros(bins, np.int64)
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration; values below 1 µs count as 1 µs."""
        place = int(np.log(max(seconds, LEAST_S) / LEAST_S) / np.log(FACTOR))
        self._counts[min(place, len(self._counts) - 1)] += 1
        self.longest = max(self.longest, seconds)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def measure(self, quantile: float) -> float | None:
        """Return a quantile in seconds, at most 5 % too large; None without durations."""
        if not (total := self.count):
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), quantile * total))
        return min(float(self._edges[min(place, len(self._edges) - 1)]), self.longest)

    def summarise(self) -> dict[str, float | int | None]:
        """Return the count, and p50, p99 and maximum in milliseconds."""
        p50, p99 = (None if (found := self.measure(share)) is None else 1e3 * found for share in (0.5, 0.99))
        return {"count": self.count, "p50_ms": p50, "p99_ms": p99, "max_ms": 1e3 * self.longest if self.count else None}


class Pacer:
    """Wakes a loop at absolute deadlines: the k-th is begin + k · period, independent of the duration of ticks.

    Attributes:
        lateness: delay of each wake-up.
        missed: number of deadlines without a tick, after a long tick or on a busy system.
    """

    def __init__(
        self, period_s: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.period_s, self._clock, self._sleep = period_s, clock, sleep
        self.lateness, self.missed = DurationHistogram(), 0
        self._next: float | None = None

    def wait(self) -> float:
        """Wait for the next deadline, and return it in seconds of the clock."""
        now = self._clock()
        due = now if self._next is None else self._next
        if (behind := int((now - due) / self.period_s)) > 0:
            self.missed += behind
            due += behind * self.period_s
        while (left := due - self._clock()) > 0:
            self._sleep(left)
        self.lateness.add(self._clock() - due)
        self._next = due + self.period_s
        return due


@contextmanager
def low_latency_interpreter() -> Iterator[None]:
    """Shorten pauses by garbage collection and by other threads while a control loop runs."""
    before = sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # present objects are excluded from collections
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def request_realtime_priority() -> str:
    """Give the calling thread real-time priority; return its scheduling class, or why that was refused."""
    if not hasattr(os, "sched_setscheduler"):
        return "this system has no SCHED_FIFO"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return "SCHED_FIFO is not permitted (ulimit -r, or CAP_SYS_NICE); the loop has ordinary priority"
    return f"SCHED_FIFO, priority {PRIORITY}"
