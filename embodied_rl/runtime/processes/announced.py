"""A command in a process of its own that says in a line of its output that it is ready, as a server does."""

import collections
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from embodied_rl.runtime.processes.handle import RunFailed

START_S = 120.0
"""Seconds that a server may take to load a model and say its address, on a machine that is busy."""
LEAVE_S = 10.0
"""Seconds that it may take to end after SIGTERM."""
KEPT_LINES = 30


class AnnouncedProcess:
    """A process whose output is read until it ends, so that it never waits for a reader.

    Args:
        words: what follows `embodied-rl` on its command line.
        pattern: regular expression that finds what it announces.

    Attributes:
        pid: of the process.
    """

    def __init__(self, words: Sequence[str], pattern: str) -> None:
        self._called, self._pattern = f"embodied-rl {' '.join(words)}", re.compile(pattern)
        self._found: str | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._settled = threading.Event()
        command = [sys.executable, "-u", "-m", "embodied_rl", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.append(line)
                if self._found is None and (found := self._pattern.search(line)) is not None:
                    self._found = found[0]
                    self._settled.set()
        self._settled.set()

    def wait_until_ready(self, deadline: float = START_S) -> str:
        """Wait until it announces what the pattern finds; return that.

        Raises:
            RunFailed: it ended before, or said nothing within `deadline` seconds; the message holds its last lines.
        """
        in_time = self._settled.wait(deadline)
        if self._found is not None:
            return self._found
        what = "ended before it was ready" if in_time else f"was not ready after {deadline:g} s"
        raise RunFailed(f"{self._called} {what}. It said:\n{''.join(self._lines) or '(nothing)'}")

    def close(self) -> None:
        """End it: SIGTERM, and SIGKILL if that takes longer than `LEAVE_S`; harmless if it has ended."""
        self._process.terminate()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(LEAVE_S)


@contextmanager
def start_announced(words: Sequence[str], pattern: str, deadline: float = START_S) -> Iterator[tuple[int, str]]:
    """Start `embodied-rl <words>`; give its process number and what it announced; end it afterwards.

    Raises:
        RunFailed: see `AnnouncedProcess.wait_until_ready`.
    """
    process = AnnouncedProcess(words, pattern)
    try:
        yield process.pid, process.wait_until_ready(deadline)
    finally:
        process.close()
