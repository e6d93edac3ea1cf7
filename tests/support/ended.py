"""Whether processes have ended, and waiting until something holds."""

import time
from collections.abc import Callable

import psutil


def gone(pid: int) -> bool:
    """Whether a process has ended (or only waits to be reaped). psutil also knows one that ends while it is read."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
