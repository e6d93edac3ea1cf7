"""Processes of a deployment: start them in a domain of their own, monitor them, and end them with their parent.

As a script: run a command of this package that ends when its parent process ends, even if the parent is killed.

python -m embodied_rl.benchmarks.robot_runs.processes <parent's process id> serve policy=…
"""

import fcntl
import os
import runpy
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.system.atomic_write import explain_errors

DOMAINS = range(20, 100)
"""Domain ids whose UDP ports lie below Linux's range of ephemeral ports."""
FIRST_PORT, PORTS_EACH = 7400, 250
PARTICIPANTS = 8
"""Number of participants of a domain whose ports are checked."""


@contextmanager
def reserve_domain_id() -> Iterator[dict[str, str]]:
    """Reserve a free domain id for this process; yield the environment variables that put ROS 2's nodes there.

    Raises:
        RunFailed: all are in use, or the lock files cannot be opened.
    """
    open_no_follow = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)  # noqa: E731
    folder = Path(tempfile.gettempdir(), f"embodied-rl-domains-{os.getuid()}")
    for domain in DOMAINS:
        try:
            with suppress(FileExistsError):
                folder.mkdir(0o700)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise PermissionError("it must be a folder that only you can write to")
            file = open(folder / str(domain), "a", opener=open_no_follow)  # noqa: SIM115 - closed below
        except OSError as error:
            raise RunFailed(
                f"{folder} cannot hold lock files: {error}. Remove it, or set TMPDIR to another folder."
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not _has_free_ports(domain):
                continue
            yield {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
            return
    raise RunFailed(f"All domains of ROS 2 from {DOMAINS[0]} to {DOMAINS[-1]} are in use on this machine.")


def _has_free_ports(domain: int) -> bool:
    """Return whether the ports of a domain's first participants are free."""
    for participant in range(PARTICIPANTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", FIRST_PORT + PORTS_EACH * domain + 10 + 2 * participant))
            except OSError:
                return False
    return True


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
        command = [sys.executable, "-u", "-m", __name__, str(os.getpid()), *arguments]
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


PARENT_LOOKING_S = 0.2
PATIENCE_S = 10.0
"""Seconds from the signal, after which the robot is brought to rest, until this process is killed."""


def end_with(parent: int, patience_s: float = PATIENCE_S) -> None:
    """Watch the parent in a thread; when it has ended, send this process SIGTERM, and kill it after `patience_s`.

    A kernel timer kills it, because this thread ends with the interpreter, and a library may hang after that.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOKING_S)
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run `embodied-rl <arguments[1:]>` for the parent `arguments[0]`."""
    end_with(int(arguments[0]))
    sys.argv = ["embodied-rl", *arguments[1:]]
    runpy.run_module("embodied_rl", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
