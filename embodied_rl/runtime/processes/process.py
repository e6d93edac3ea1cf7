"""A child process that exchanges messages with its parent within deadlines."""

import collections
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from embodied_rl.runtime.processes.handle import NoAnswer, WorkerDied
from embodied_rl.runtime.processes.interpreter import Interpreter, make_own_command, make_own_environment
from embodied_rl.runtime.processes.messages import receive, send
from embodied_rl.system.signals import hold_signals
from embodied_rl.system.terminal import DESCRIPTOR, open_terminal

LOG_LINES = 30
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3), malloc.h
_GIGABYTE = 1 << 30


class ChildProcess:
    """A new Python process, connected by a pipe. By default it can import all modules that this process can import.

    Args:
        main: "module:function" to run there; the pipe's descriptor is its first command-line argument.
        log: open file for its standard output and error.
        deadline: seconds that the transfer of one message may take once it has begun.
        descriptors: file descriptors to share with it; they become further command-line arguments.
        threads: number of threads of NumPy and torch; children share the cores.
        interpreter: another environment to run in.
        packages: packages of this environment that it can import there, in addition to `embodied_rl`.
    """

    def __init__(
        self,
        name: str,
        main: str,
        log: IO[bytes],
        deadline: float,
        descriptors: Sequence[int] = (),
        threads: int = 1,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
    ):
        self._name, self._log = name, log
        command = make_own_command(main) if interpreter is None else interpreter.command(main, packages)
        variables = make_own_environment() if interpreter is None else interpreter.environment()
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(deadline), int(deadline % 1 * 1e6))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        passed, terminal = (theirs.fileno(), *descriptors), open_terminal()
        limits = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        with theirs, hold_signals():
            try:
                self._process = subprocess.Popen(
                    [*command, *map(str, passed)],
                    env={**variables, **limits, DESCRIPTOR: str(terminal)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(*passed, terminal),
                )
            except OSError as error:
                ours.close()
                raise WorkerDied(f"{name} could not be started by {command[0]}: {error}") from None
            finally:
                os.close(terminal)
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Any, doing: str) -> None:
        """Send a message. Raise `WorkerDied` if the child is gone or does not read."""
        try:
            send(self.connection, message)
        except OSError:
            raise self._death_error(doing) from None

    def receive(
        self,
        timeout: float,
        doing: str,
        remedy: str = "",
        deadline: float | None = None,
        read: Callable[[Connection], Any] = receive,
    ) -> Any:
        """Wait for the next message and return it.

        Args:
            timeout: seconds to wait from now on.
            doing: the child's current task, for messages.
            remedy: advice to the user where no message came in time.
            deadline: total seconds that the child had, for messages; by default `timeout`.
            read: reads the message from the pipe.

        Raises:
            NoAnswer: the child sent no message in time.
            WorkerDied: the child is gone.
        """
        try:
            if self.connection.poll(timeout):
                return read(self.connection)
        except (EOFError, OSError):
            raise self._death_error(doing) from None
        seconds = timeout if deadline is None else deadline
        raise self._death_error(doing, f"gave no answer within {seconds:g} s and was killed", remedy)

    def ready(self) -> bool:
        """Return whether `receive` would return, or raise, at once."""
        return self.connection.poll(0)

    def stop(self, grace: float = 0.0) -> None:
        """Close the pipe, which ends the child; kill the child if it has not ended after `grace` seconds."""
        self.connection.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def memory(self) -> int:
        """Return the child's resident bytes, or 0 where the system does not report them."""
        return read_resident_bytes(self.pid)

    def _death_error(self, doing: str, late: str = "", remedy: str = "") -> WorkerDied:
        how = late
        if not late:
            try:
                how = describe_exit(self._process.wait(1.0))
            except subprocess.TimeoutExpired:
                how = "stopped answering and was killed"
        self._process.kill()
        self._process.wait()
        message = " ".join(filter(None, (f"{self._name} (pid {self.pid}) {how} during '{doing}'.", remedy)))
        self._log.seek(0)
        text = b"".join(collections.deque(self._log, LOG_LINES)).decode(errors="replace").rstrip()
        message += f"\nThe last lines of its log:\n{text}" if text else " Its log is empty."
        return (NoAnswer if late else WorkerDied)(message)


def make_anonymous_memory() -> int:
    """Return a descriptor of unnamed memory, which children can share and which the system frees with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("embodied-rl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, or 0 where /proc does not report it."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def describe_exit(code: int) -> str:
    """Describe how a process ended, as the predicate of a sentence, from its exit code; negative ones are signals."""
    if code >= 0:
        return f"exited with code {code}"
    hint = " (by hand, or because memory ran out)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


def keep_freed_memory() -> None:
    """Stop the allocator from giving large blocks back to the system after each use.

    A network on the CPU frees and allocates the same large activations in every step. Returning them each time costs a
    page fault per 4 kB, about a fifth of an update. The call does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    for option, value in ((_MMAP_THRESHOLD, _GIGABYTE), (_TRIM_THRESHOLD, _GIGABYTE), (_TOP_PAD, 64 << 20)):
        library.mallopt(option, value)
