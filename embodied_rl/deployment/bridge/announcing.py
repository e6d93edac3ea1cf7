"""What the bridge tells whoever started it: why the robot holds, and when it goes on. No robot waits for a terminal."""

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from embodied_rl.deployment.execution.tick import Mode, State
from embodied_rl.system.untrusted_files import make_printable

SETTLED_S = 0.5
"""Seconds for which something must be so before it is told."""
MOST_LINES = 100
"""Lines that wait for a terminal that takes none; what comes on top of them is not told."""
CLOSING_S = 1.0
_NUMBERS = re.compile(r"[0-9][0-9.]*")


def describe_fare(status: Mapping[str, Any]) -> str:
    """Return in one line how a robot fares, from the bridge's status."""
    why = str(status["why"])
    if status["waiting"]:
        return f"waits for an episode{f': {why}' if why else ''}"
    if status["state"] != State.ACTIVE:
        return f"nothing is commanded: {why}" if why else "nothing is commanded"
    if status["mode"] == Mode.RUN and not why:
        return "run: the policy drives the robot" if not status["dry_run"] else "run: the policy would drive the robot"
    return f"{status['mode']}: {why}" if why else str(status["mode"])


class Announcer:
    """Tells how a robot fares, each time that it fares otherwise, from a thread of its own.

    Args:
        tell: takes a line; it may take its time, or never return.
        clock: seconds, monotonic.
    """

    def __init__(self, tell: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell or _print_line, clock
        self._lines = queue.Queue[str | None](MOST_LINES)
        self._told, self._words, self._since = "", "", 0.0
        self._thread = threading.Thread(target=self._work, name="tells how the robot fares", daemon=True)
        self._thread.start()

    def note(self, said: str) -> None:
        """Take how the robot fares now; numbers in it, such as seconds, make no other line of it."""
        words, now = _NUMBERS.sub("", said), self._clock()
        if words != self._words:
            self._words, self._since = words, now
        elif words != self._told and now - self._since >= SETTLED_S:
            self._told = words
            self.add_line(said)

    def add_line(self, line: str) -> None:
        """Take a line that is told once, whatever was told before."""
        with suppress(queue.Full):
            self._lines.put_nowait(make_printable(line))

    def close(self) -> None:
        """Tell what is left, as far as the terminal takes it."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(CLOSING_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self) -> None:
        with suppress(OSError):  # the terminal is gone: the status says it all the same
            while (line := self._lines.get()) is not None:
                self._tell(line)


def _print_line(line: str) -> None:
    print(line, flush=True)
