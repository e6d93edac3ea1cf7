"""The restart budget of a worker, and the delay before each restart."""

import collections
import time
from collections.abc import Callable

WINDOW = 3600.0
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0


class Restarts:
    """A budget of restarts, with delays that grow until a call succeeds.

    The first restart after a successful call is immediate, so that a killed simulator is back soon. Further restarts
    wait 0.5 s, 1 s, 2 s, … and 30 s at most, so as not to overload a machine that is short of memory.

    Args:
        budget: restarts within an hour.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, budget: int, clock: Callable[[], float] = time.monotonic):
        self.budget, self._clock = budget, clock
        self._times: collections.deque[float] = collections.deque()
        self._failures = 0

    def next_delay(self) -> float | None:
        """Count a restart and return the seconds to wait before it, or None if the budget is spent."""
        now = self._clock()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self.budget:
            return None
        self._times.append(now)
        delay = FIRST_DELAY * 2.0 ** (self._failures - 1) if self._failures else 0.0
        self._failures = min(self._failures + 1, 60)  # more is useless; 2^1024 overflows a float
        return min(delay, LONGEST_DELAY)

    def succeeded(self) -> None:
        """Note a successful call: the next restart is immediate again."""
        self._failures = 0
