"""Child processes that print a line when they are ready, such as servers."""

import collections
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from embodied_rl.interfaces.errors import RunFailed

START_S = 300.0
"""Seconds that a server may take to load a model and print its address, on a busy machine."""
STOP_S = 10.0
"""Seconds that it may take to end after SIGTERM."""
LOG_LINES = 30


class ProcessWithReadyLine:
    """A process that prints a line when it is ready. Its output is read until it ends, so that it never blocks.

    Args:
        words: what follows `embodied-rl` on its command line.
        pattern: regular expression that finds the line.

    Attributes:
        pid: of the process.
    """

    def __init__(self, words: Sequence[str], pattern: str) -> None:
        self._command, self._pattern = f"embodied-rl {' '.join(words)}", re.compile(pattern)
        self._found: str | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        self._ready_or_ended = threading.Event()
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
                    self._ready_or_ended.set()
        self._ready_or_ended.set()

    def wait_until_ready(self, deadline: float = START_S) -> str:
        """Wait for the ready line and return the match of the pattern.

        Raises:
            RunFailed: the process ended before, or was not ready within `deadline` seconds; the message holds its last
                lines of output.
        """
        in_time = self._ready_or_ended.wait(deadline)
        if self._found is not None:
            return self._found
        what = "ended before it was ready" if in_time else f"was not ready after {deadline:g} s"
        raise RunFailed(f"{self._command} {what}. Its output:\n{''.join(self._lines) or '(empty)'}")

    def close(self) -> None:
        """End the process: SIGTERM, and SIGKILL if that takes longer than `STOP_S`. It is safe if it has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_S)


@contextmanager
def start_until_ready(words: Sequence[str], pattern: str, deadline: float = START_S) -> Iterator[tuple[int, str]]:
    """Start `embodied-rl <words>`, yield its pid and the match of its ready line, and end it afterwards.

    Raises:
        RunFailed: see `ProcessWithReadyLine.wait_until_ready`.
    """
    process = ProcessWithReadyLine(words, pattern)
    try:
        yield process.pid, process.wait_until_ready(deadline)
    finally:
        process.close()
