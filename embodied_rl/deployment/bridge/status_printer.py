"""Console output of the bridge. Printing never blocks the control loop."""

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

from embodied_rl.deployment.execution.tick import Mode, State
from embodied_rl.system.untrusted_files import make_printable

SETTLED_S = 0.5
"""Seconds that a status must last before it is printed."""
MAX_LINES = 100
"""Size of the queue of lines. If the terminal blocks and the queue is full, further lines are dropped."""
CLOSING_S = 1.0
_NUMBERS = re.compile(r"[0-9][0-9.]*")


def format_status_line(status: Mapping[str, Any]) -> str:
    """Return the bridge's status as one line."""
    why = str(status["why"])
    if status["waiting"]:
        return f"waits for an episode{f': {why}' if why else ''}"
    if status["state"] != State.ACTIVE:
        return f"nothing is commanded: {why}" if why else "nothing is commanded"
    if status["mode"] == Mode.RUN and not why:
        return "run: the policy drives the robot" if not status["dry_run"] else "run: the policy would drive the robot"
    return f"{status['mode']}: {why}" if why else str(status["mode"])


class StatusPrinter:
    """Prints the robot's status when it changes. Runs in its own thread.

    Args:
        print_line: prints a line; it may block.
        clock: seconds, monotonic.
    """

    def __init__(
        self, print_line: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._print, self._clock = print_line or partial(print, flush=True), clock
        self._lines = queue.Queue[str | None](MAX_LINES)
        self._last_printed, self._current, self._since = "", "", 0.0
        self._thread = threading.Thread(target=self._work, name="status printer", daemon=True)
        self._thread.start()

    def update(self, line: str) -> None:
        """Set the present status line. It is printed if it lasts and differs by more than numbers, such as seconds."""
        words, now = _NUMBERS.sub("", line), self._clock()
        if words != self._current:
            self._current, self._since = words, now
        elif words != self._last_printed and now - self._since >= SETTLED_S:
            self._last_printed = words
            self.add_line(line)

    def add_line(self, line: str) -> None:
        """Queue one line for printing."""
        with suppress(queue.Full):
            self._lines.put_nowait(make_printable(line))

    def close(self) -> None:
        """Print the queued lines, for at most `CLOSING_S`."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(CLOSING_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self) -> None:
        with suppress(OSError):  # the terminal was closed; the status topic still has everything
            while (line := self._lines.get()) is not None:
                self._print(line)
