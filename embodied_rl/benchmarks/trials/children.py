"""Processes of a trial: started as a user starts them, monitored, and ended with their parent."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.system.atomic_write import explain_errors

LOOKING_S = 0.02
GRACE_S = 15.0
"""Seconds in which a process must bring the robot to rest and exit."""
SHOWN_LINES = 12
LEAST_BYTES = 2**16
"""With less space left a log may be cut off."""


class TrialProcess:
    """A process `embodied-rl <arguments>` with its output in a log file.

    Args:
        name: name in messages.
        arguments: arguments of the command.
        log: the log file.
        environment: variables that differ from this process's own.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        command = [
            sys.executable,
            "-u",
            "-m",
            "embodied_rl.benchmarks.trials.exit_with_parent",
            str(os.getpid()),
            *arguments,
        ]
        with explain_errors(log, "out"), log.open("wb") as said:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_log(self) -> str:
        """Return its log so far."""
        return self.log.read_text(errors="replace")

    def describe_end(self) -> str:
        """Describe how it ended, with the last lines of its log."""
        code = self.process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        said = self.read_log().strip().splitlines()[-SHOWN_LINES:]
        full = shutil.disk_usage(self.log.parent).free < LEAST_BYTES  # the end of its log may be missing then
        more = ["The disk is full there. Free some space, or set out to another disk."] * full
        return "\n".join([f"{self.name} {how}. It said last ({self.log}):", *(f"  {line}" for line in said), *more])


class TrialProcesses:
    """All processes of a trial; leaving the context ends them, the last one started first.

    Args:
        folder: of their logs.
        environment: variables that all of them get.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self.started: list[TrialProcess] = []

    def start(self, name: str, *arguments: str) -> TrialProcess:
        """Start a process."""
        process = TrialProcess(name, arguments, self._folder / f"{name}.log", self._environment)
        self.started.append(process)
        return process

    def check(self) -> None:
        """Check that all run.

        Raises:
            RunFailed: one has ended; the message has the end of its log, and of several names the first one, because
                the others depend on it.
        """
        for each in self.started:
            if each.process.poll() is not None:
                raise RunFailed(each.describe_end())

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, while all processes run.

        Raises:
            RunFailed: one has ended, or it does not hold in time.
        """
        until = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() >= until:
                raise RunFailed(f"{what} did not happen within {seconds:g} s. See {self._folder}/*.log.")
            time.sleep(LOOKING_S)

    def close(self) -> None:
        """End all processes: by SIGTERM, and after 15 s by SIGKILL."""
        for each in reversed(self.started):
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGCONT)  # a stopped process would not receive it
                each.process.terminate()
                try:
                    each.process.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    each.process.kill()
                    each.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
