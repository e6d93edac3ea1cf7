"""Whether processes have ended, stopping them, and waiting until something holds."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

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


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and wait until every thread has stopped, which takes a while on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    wait_for(lambda: all(_read_state(thread) == "T" for thread in threads.iterdir()))


def _read_state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
