"""Processes of a deployment: start them, monitor them, and end them with their parent."""

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
"""Seconds until a process that should stop the robot and exit is killed."""
SHOWN_LINES = 12
LEAST_BYTES = 2**16
"""Free bytes of a disk below which a log may be cut off."""


class DeploymentProcess:
    """A process `embodied-rl <arguments>` with its output in a log file.

    Args:
        name: name in messages.
        arguments: arguments of the command.
        log: the log file.
        environment: variables added to those of this process.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        command = [
            sys.executable,
            "-u",
            "-m",
            "embodied_rl.benchmarks.robot_runs.exit_with_parent",
            str(os.getpid()),
            *arguments,
        ]
        with explain_errors(log, "out"), log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_log(self) -> str:
        """Return the log."""
        return self.log.read_text(errors="replace")

    def describe_end(self) -> str:
        """Describe how it ended, with the last lines of its log."""
        code = self.process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        lines = self.read_log().strip().splitlines()[-SHOWN_LINES:]
        full = shutil.disk_usage(self.log.parent).free < LEAST_BYTES  # its log may be cut off
        more = ["The disk is full there. Free some space, or set out to another disk."] * full
        return "\n".join([f"{self.name} {how}. Last lines of {self.log}:", *(f"  {line}" for line in lines), *more])


class DeploymentProcesses:
    """All processes of a deployment; leaving the context ends them, the last one started first.

    Args:
        folder: folder for their logs.
        environment: variables added to the environment of each.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self.started: list[DeploymentProcess] = []

    def start(self, name: str, *arguments: str) -> DeploymentProcess:
        """Start a process."""
        process = DeploymentProcess(name, arguments, self._folder / f"{name}.log", self._environment)
        self.started.append(process)
        return process

    def check(self) -> None:
        """Check that all run.

        Raises:
            RunFailed: a process has ended; the message shows the end of its log. Of several it names the one
                started first, because the others depend on it.
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
        """End all processes: send SIGTERM, and SIGKILL after `GRACE_S`."""
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
