"""How often a worker is replaced, and how long a new one waits before it starts."""

import collections
import time
from collections.abc import Callable

WINDOW = 3600.0
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0


class Restarts:
    """A budget of restarts, with delays that grow while nothing works.

    The first restart after a call that succeeded is immediate: a killed simulator is back as soon as can be. Further
    ones wait 0.5 s, 1 s, 2 s, … and 30 s at most, so that a machine short of memory is not made worse.

    Args:
        budget: restarts within an hour.
        clock: seconds that only grow.
    """

    def __init__(self, budget: int, clock: Callable[[], float] = time.monotonic):
        self.budget, self._clock = budget, clock
        self._times: collections.deque[float] = collections.deque()
        self._failures = 0

    def next_delay(self) -> float | None:
        """Count a restart; returns the seconds to wait before it, or None where the budget is spent."""
        now = self._clock()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self.budget:
            return None
        self._times.append(now)
        delay = FIRST_DELAY * 2.0 ** (self._failures - 1) if self._failures else 0.0
        self._failures = min(self._failures + 1, 60)  # beyond any use; 2^1024 is no float
        return min(delay, LONGEST_DELAY)

    def succeeded(self) -> None:
        """A call was answered: the next restart is immediate again."""
        self._failures = 0
