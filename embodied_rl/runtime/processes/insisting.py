"""Exceptions that a signal's handler raises where Python cannot raise: in a finaliser, or around a fork."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_S = 0.05
"""Seconds after which the signal is sent again: by then the finaliser is over, or the next try finds it so."""


@contextmanager
def raise_swallowed(kind: type[BaseException]) -> Iterator[None]:
    """Send SIGTERM to this process again where Python swallowed an exception of a kind, in the main thread.

    Python ignores what is raised in `__del__`, in callbacks of weak references, and in those that modules such as
    logging register for a fork; with the handler's exception the user's wish to stop would be lost.

    Raises:
        BaseException: of the kind, at the end of the context, if one was swallowed just before.
    """
    usual, timers = sys.unraisablehook, list[threading.Timer]()

    def send_again(swallowed: Any) -> None:
        if not isinstance(swallowed.exc_value, kind):
            usual(swallowed)
            return
        timers.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = usual
        waiting = [timer for timer in timers if timer.is_alive()]
        for timer in waiting:
            timer.cancel()
    if waiting:
        raise kind
