"""A child process: start it, exchange messages with deadlines, and report how it ended."""

import collections
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from embodied_rl.runs.stops import note_stop
from embodied_rl.runtime.processes.handle import NoAnswer, WorkerDied
from embodied_rl.runtime.processes.interpreter import Interpreter, make_own_command, make_own_environment
from embodied_rl.runtime.processes.messages import receive, send

LOG_LINES = 30
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class ChildProcess:
    """A new Python process, connected by a pipe. By default it can import all modules that this process can import.

    Args:
        name: for messages.
        main: "module:function" to run there; the pipe's descriptor is its first command-line argument.
        log: open file for its standard output and error.
        deadline: seconds that the transfer of one message may take once it has begun.
        descriptors: file descriptors to share with it; they become further command-line arguments.
        threads: number of threads of NumPy and torch; children share the cores.
        interpreter: another environment to run in.
        packages: packages of this environment that it can import there, besides the engine itself.
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
        _set_deadline(ours, deadline)
        passed = (theirs.fileno(), *descriptors)
        with theirs, hold_signals():
            try:
                self._process = subprocess.Popen(
                    [*command, *map(str, passed)],
                    env={**variables, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=passed,
                )
            except OSError as error:
                ours.close()
                raise WorkerDied(f"{name} could not be started by {command[0]}: {error}") from None
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
            raise self._death(doing) from None

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
            raise self._death(doing) from None
        seconds = timeout if deadline is None else deadline
        raise self._death(doing, f"gave no answer within {seconds:g} s and was killed", remedy)

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

    def _death(self, doing: str, late: str = "", remedy: str = "") -> WorkerDied:
        how = late
        if not late:
            try:
                how = describe_exit(self._process.wait(1.0))
            except subprocess.TimeoutExpired:
                how = "stopped talking and was killed"
        self._process.kill()
        self._process.wait()
        said = " ".join(filter(None, (f"{self._name} (pid {self.pid}) {how} during '{doing}'.", remedy)))
        return (NoAnswer if late else WorkerDied)(f"{said}{self._log_tail()}")

    def _log_tail(self) -> str:
        self._log.seek(0)
        text = b"".join(collections.deque(self._log, LOG_LINES)).decode(errors="replace").rstrip()
        return f"\nThe last lines of its log:\n{text}" if text else " Its log is empty."


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

    SIGHUP, of a terminal that was closed, counts as SIGTERM. It may come twice, from the system and from the shell, and
    nobody insists by the second: only the end of the context restores its handler. Under nohup it stays ignored.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set[signal.Signals]()
    handlers = dict.fromkeys(STOP_SIGNALS - ignored, _make_noting_handler(handler) if callable(handler) else handler)
    if signal.SIGHUP in handlers and callable(handler):
        handlers[signal.SIGHUP] = _make_noting_handler(_make_hang_up_handler(handler))
    before = {number: signal.signal(number, new) for number, new in handlers.items()}

    def restore(kept: signal.Signals | None = signal.SIGHUP) -> None:
        for number, earlier in before.items():
            if number != kept:
                signal.signal(number, earlier)

    try:
        yield restore
    finally:
        restore(None)


def _make_noting_handler(handler: Callable[..., object]) -> Callable[..., object]:
    def note(number: int, frame: object) -> None:
        note_stop(number)
        handler(number, frame)

    return note


def _make_hang_up_handler(handler: Callable[..., object]) -> Callable[..., object]:
    """Return a handler of SIGHUP that calls `handler` once, as for SIGTERM."""
    heard: list[int] = []

    def hang_up(number: int, frame: object) -> None:
        drop_lost_output()
        heard.append(number)
        if len(heard) == 1:
            handler(signal.SIGTERM, frame)

    return hang_up


def drop_lost_output() -> None:
    """Send standard output and error to nowhere where they were a terminal that is gone: each write would fail."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


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


def _set_deadline(end: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def describe_exit(code: int) -> str:
    """Describe how a process ended, as the predicate of a sentence, from its exit code; negative ones are signals."""
    if code >= 0:
        return f"exited with code {code}"
    hint = " (by hand, or because memory ran out)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
