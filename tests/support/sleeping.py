"""Sleeping until a signal comes, however early it is."""

import time


def wait_for_signal(seconds: float = 900.0) -> None:
    """Sleep in short steps.

    Python looks for signals between its instructions. One that comes after its last look, and before the system call
    of a sleep, is seen when that sleep ends: of 3,000 processes that were signalled at once, 1 to 4 slept on.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
