"""Signals that end a bridge, which brings its robot to rest first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from embodied_rl.system.signals import note_stop


@contextmanager
def watch_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set, in place of what they do otherwise."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]

    def stop(number: int, _: object) -> None:
        note_stop(number)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
