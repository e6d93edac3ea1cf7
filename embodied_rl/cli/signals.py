"""What the user reads when a signal ends a command that does not handle it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def announce_end() -> Iterator[None]:
    """Say so in one line where SIGTERM or SIGHUP ends this process in the context; it ends by the signal, as without.

    Handlers that a command sets in the context replace this; signals that are ignored, as under nohup, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in usual:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    text = f"embodied-rl: ended by {signal.Signals(number).name}; what was not saved by now is lost.\n"
    with suppress(OSError):  # the terminal is gone
        os.write(2, text.encode())
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
