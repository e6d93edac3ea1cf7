"""Handlers of the signals that stop a run, a record of these signals, and exceptions ignored in handlers."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
RESEND_S = 0.05
"""Seconds after which the signal is sent again, when the finaliser has normally ended."""
_received: list[int] = []


def note_stop(number: int) -> None:
    """Record a signal; handlers that end a command in order call this."""
    _received.append(number)


def count_stops() -> int:
    """Return how many signals were recorded in this process."""
    return len(_received)


def find_stop_code(since: int) -> int | None:
    """Return the exit code of the first signal after the first `since` ones, as shells count: 128 + its number."""
    return 128 + _received[since] if len(_received) > since else None


@contextmanager
def hold_signals() -> Iterator[None]:
    """Block `STOP_SIGNALS` in the context, so that they cannot end a new child before it has set its handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handle_stop_signals(handler: Callable[..., object] | signal.Handlers) -> Iterator[Callable[[], None]]:
    """Handle SIGINT and SIGTERM with `handler` in the context; yield a function that restores the old handlers.

    SIGHUP, which a closed terminal causes, counts as SIGTERM. The system and the shell may both send it, so a second
    one does not count as a repeated request, and only the end of the context restores its handler. It stays ignored
    under nohup.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set[signal.Signals]()
    handlers = dict.fromkeys(STOP_SIGNALS - ignored, handler)
    if callable(handler):

        def record(number: int, frame: object) -> object:
            note_stop(number)
            return handler(number, frame)

        handlers = dict.fromkeys(handlers, record)
        if signal.SIGHUP in handlers:
            hung_up: list[int] = []

            def hang_up(number: int, frame: object) -> None:
                note_stop(number)
                drop_lost_output()
                hung_up.append(number)
                if len(hung_up) == 1:
                    handler(signal.SIGTERM, frame)

            handlers[signal.SIGHUP] = hang_up
    before = {number: signal.signal(number, new) for number, new in handlers.items()}

    def restore(kept: signal.Signals | None = signal.SIGHUP) -> None:
        for number, earlier in before.items():
            if number != kept:
                signal.signal(number, earlier)

    try:
        yield restore
    finally:
        restore(None)


@contextmanager
def catch_stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set instead of ending the process; ignored ones stay ignored.

    Outside of the main thread, which alone can handle signals, nothing sets it.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    numbers = [number for number in sorted(STOP_SIGNALS) if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _: object) -> None:
        note_stop(number)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drop_lost_output() -> None:
    """Redirect standard output and error to /dev/null where their terminal is gone; otherwise each write would fail."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


@contextmanager
def reraise_ignored_exceptions(kind: type[BaseException], number: int = signal.SIGTERM) -> Iterator[None]:
    """Send a signal to this process again if Python ignored an exception of this kind, in the main thread.

    Python ignores exceptions in `__del__`, in callbacks of weak references, and in callbacks that modules such as
    logging register for a fork. If a signal handler's exception is ignored there, the request to stop is lost. At the
    end of the context the exception is raised if its signal was not yet sent again.
    """
    usual, timers = sys.unraisablehook, list[threading.Timer]()

    def send_again(ignored: Any) -> None:
        if not isinstance(ignored.exc_value, kind):
            usual(ignored)
            return
        timers.append(threading.Timer(RESEND_S, os.kill, (os.getpid(), number)))
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
