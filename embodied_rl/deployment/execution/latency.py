"""The measured time from a request to its answer."""

import math
from collections import deque

import numpy as np

WINDOW = 256
"""Answers that are remembered: enough for a 99 % quantile, few enough to follow a server that becomes slower."""
LAST = 0.99


class Latency:
    """Measured delays, in seconds; the first answer of all is left out, because a policy warms up for it.

    Args:
        expected: seconds, until two answers have come.
    """

    def __init__(self, expected: float) -> None:
        self._expected = expected
        self._seen: deque[float] = deque(maxlen=WINDOW)
        self._warm = False

    def add(self, seconds: float) -> None:
        """Count one more answer."""
        if self._warm:
            self._seen.append(seconds)
        self._warm = True

    def measure(self, quantile: float) -> float:
        """Return a quantile of the delays in seconds: the smallest delay that so many answers do not exceed."""
        if not self._seen:
            return self._expected
        return float(np.quantile(np.array(self._seen), quantile, method="higher"))

    def count_steps(self, quantile: float, control_hz: float) -> int:
        """Return the quantile in whole control steps, rounded up; a thousandth of a step is the clock's rounding."""
        return math.ceil(self.measure(quantile) * control_hz - 1e-3)
