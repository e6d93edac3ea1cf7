"""How hard a scorer is asked: the number of requests in flight, and the breaker that pauses a scorer which fails."""

from collections import deque
from collections.abc import Callable

Clock = Callable[[], float]

TRIP_AFTER = 5
"""Failures in a row that open the breaker."""
WINDOW, TRIP_SHARE = 40, 0.5
"""The breaker also opens if more than this share of the last requests failed; the window in requests."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds; each pause is twice the one before."""


class InFlightLimit:
    """Limit of requests in flight: additive increase, multiplicative decrease, as in TCP.

    It grows by one after `allowed` answers, and is halved when the scorer is overloaded, at most once per round trip.

    Args:
        most: maximum of the limit.

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
        """Halve the number: the scorer was too slow, or said that it has too much to do.

        Args:
            halvings: the count when the request was sent. One that was sent before the last halving changes nothing.
        """
        if halvings == self.halvings:
            self.allowed, self._answered, self.halvings = max(1, self.allowed // 2), 0, self.halvings + 1


class Breaker:
    """Circuit breaker: pauses a scorer after failures, and tries it again later.

    While it is open, requests are not sent. After a pause one request is sent; its answer closes the breaker, its
    failure doubles the pause.

    Args:
        clock: monotonic, in seconds.

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
            self._open(cause)

    def _open(self, cause: str) -> None:
        self.cause = cause
        self._until, self._probing = self._clock() + self._pause, False
        self._recent.clear()
