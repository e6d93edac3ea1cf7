"""Runtime of one machine: simulators in this process, or in processes connected by pipes and shared memory."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from embodied_rl.interfaces.sim import NotFinite, Simulator, SimulatorSpec, Unavailable
from embodied_rl.runtime.processes.board import SharedBoard
from embodied_rl.runtime.processes.handle import Deadlines, NodeShare, RestartLimitReached, WorkerDied, WorkerError
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.messages import PROTOCOL, ShortenedLists, receive_greeting
from embodied_rl.runtime.processes.process import ChildProcess, make_anonymous_memory
from embodied_rl.runtime.processes.remote import CALL_REMEDY, START_REMEDY, RemoteCall, RemoteHandle
from embodied_rl.runtime.processes.simulator_checks import check_output
from embodied_rl.runtime.processes.worker import CallFailure, ImageSlots, move_to_host


class InlineHandle:
    """A handle on a simulator in this process. `submit` runs the call at once and raises the simulator's exceptions.

    Args:
        build: builds the simulator; `restart` calls it again.
    """

    def __init__(self, build: Callable[[], Simulator], name: str = "simulator"):
        self.name = name
        self._build = build
        self._simulator: Simulator | None = build()

    @property
    def spec(self) -> SimulatorSpec:
        return self._open().spec

    @property
    def alive(self) -> bool:
        return self._simulator is not None

    def submit(self, method: str, *args: Any) -> "FinishedCall":
        began, simulator = time.monotonic(), self._open()
        value = move_to_host(getattr(simulator, method)(*args))
        check_output(simulator.spec, method, args, value)
        return FinishedCall(value, began, time.monotonic() - began)

    def restart(self) -> None:
        self.close()
        self._simulator = self._build()

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None

    def _open(self) -> Simulator:
        assert self._simulator is not None, f"{self.name} is closed"
        return self._simulator


def wrap_simulator(simulator: Simulator, name: str = "simulator") -> InlineHandle:
    """Return a handle on an existing simulator; its `restart` raises `RestartLimitReached`.

    A new simulator could not replace this one, because other objects, such as an operator, refer to it.
    """
    left = [simulator]

    def build() -> Simulator:
        if not left:
            raise RestartLimitReached(f"{name}: its process died and cannot be replaced; see above for the first cause")
        return left.pop()

    return InlineHandle(build, name)


class FinishedCall:
    """A future whose answer is already available."""

    def __init__(self, value: Any, began: float, seconds: float):
        self._value, self.began, self.seconds = value, began, seconds

    def done(self) -> bool:
        return True

    def wait_on(self) -> tuple[None, float]:
        return None, 0.0

    def result(self, timeout: float | None = None) -> Any:
        return self._value


class ProcessHandle(RemoteHandle[RemoteCall]):
    """A handle on a role in a worker process on this machine.

    The worker ends when this process ends, even by a crash. Nothing outlives `close`: the shared memory has no name, so
    the system frees it with the last of the two processes, even after `kill -9`.

    Args:
        factory: "module:Class" of the role; only the worker imports the module.
        kwargs: its picklable keyword arguments; for a simulator they include "num_envs".
        log: file for the worker's standard output and error; by default a temporary file, deleted with the handle.
        start_timeout: seconds until the simulator must be built.
        call_timeout: seconds in which a call must be answered; after that the worker counts as hung and is killed.
        max_restarts: see `RemoteHandle`.
        interpreter: another Python environment to run the worker in; our packages need not be installed there.
        packages: top-level names of packages that it imports from this environment in addition to `embodied_rl`.
        descriptors: descriptors of the boards that it reads; it inherits them under the same numbers.
    """

    def __init__(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str = "worker",
        log: Path | None = None,
        start_timeout: float = 300.0,
        call_timeout: float = 120.0,
        max_restarts: int = 3,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
        descriptors: Sequence[int] = (),
    ):
        super().__init__(name, max_restarts)
        self._interpreter, self._packages, self._descriptors = interpreter, packages, descriptors
        self._factory, self._kwargs = factory, dict(kwargs)
        self._start_timeout, self._call_timeout = start_timeout, call_timeout
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "a+b")  # noqa: SIM115
        self._memory = make_anonymous_memory()
        self._slots: ImageSlots | None = None
        self._unsent: tuple[str, tuple[Any, ...]] | None = None
        self._launch()

    @property
    def alive(self) -> bool:
        return not self._closed and self._worker.alive

    @property
    def pid(self) -> int:
        return self._worker.pid

    def memory(self) -> int:
        return self._worker.memory() if self.alive else 0

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        self._slots = None
        os.close(self._memory)
        self._log.close()

    def answered(self, call: RemoteCall) -> bool:
        assert call is self._pending, f"{self.name}: '{call.method}' is not the current call"
        if self._starting and self._answered_or_late():
            self._send_when_started(call)
        return call.finished or (not self._starting and self._answered_or_late())

    def wait_on(self, call: RemoteCall) -> tuple[Connection, float]:
        return self._worker.connection, self._remaining()

    def collect(self, call: RemoteCall, timeout: float | None) -> None:
        assert call is self._pending, f"{self.name}: '{call.method}' is not the current call"
        if self._starting:
            self._send_when_started(call)
        if call.finished:
            return
        seconds, deadline = (self._remaining(), self._call_timeout) if timeout is None else (timeout, timeout)
        try:
            reply = self._worker.receive(seconds, call.method, CALL_REMEDY, deadline)
        except WorkerDied as death:
            return self._fail(call, death)
        if isinstance(reply, CallFailure):
            return self._fail(call, self._worker_error(call.method, reply))
        assert self._slots is not None
        self._pending = None
        self._restarts.succeeded()
        call.finish(self._slots.take(reply.value, reply.slot), reply.began, reply.seconds)

    def _send(self, method: str, args: tuple[Any, ...]) -> RemoteCall:
        call, self._unsent = RemoteCall(self, method), (method, args)
        if not self._starting:
            self._send_when_started(call)
        return call

    def _stop(self, grace: float = 0.0) -> None:
        self._worker.stop(grace)

    def _launch(self, delay: float = 0.0) -> None:
        main = "embodied_rl.runtime.processes.worker:main"
        self._worker = ChildProcess(
            self.name,
            main,
            self._log,
            self._call_timeout,
            [self._memory, *self._descriptors],
            interpreter=self._interpreter,
            packages=self._packages,
        )
        self._starting, self._greeted, self._pending, self._lists = True, False, None, ShortenedLists()
        self._answer_by = time.monotonic() + delay + self._start_timeout
        self._worker.send((self._factory, self._kwargs, delay), "start")

    def _send_when_started(self, call: RemoteCall) -> None:
        """Wait until the worker is up, then send the submitted call: a starting worker does not read long messages."""
        try:
            if self._starting:
                self._finish_start()
            self._answer_by = time.monotonic() + self._call_timeout
            assert self._unsent is not None, "a call is handed over once"
            method, args = self._unsent
            self._worker.send((method, self._lists.shorten(method, args)), method)
        except (WorkerDied, WorkerError, NotFinite, Unavailable, ValueError) as error:
            self._fail(call, error)
        self._unsent = None

    def _await_start(self) -> SimulatorSpec | None:
        if not self._greeted:  # the protocol's version is checked before anything is unpickled
            greeting = self._worker.receive(
                self._remaining(), "start", START_REMEDY, self._start_timeout, read=receive_greeting
            )
            problem, protocol = greeting.get("problem"), greeting.get("protocol")
            if not problem and protocol != PROTOCOL:
                problem = (
                    f"its protocol version is {protocol}, this process has {PROTOCOL}: "
                    "another version of embodied-rl runs there. Use one for both"
                )
            if problem:
                self._worker.stop()
                where = sys.executable if self._interpreter is None else self._interpreter.python
                self._start_failure = f"{self.name} cannot run in {where}: {problem}."
                raise RestartLimitReached(self._start_failure)
            self._greeted = True
        reply = self._worker.receive(self._remaining(), "start", START_REMEDY, self._start_timeout)
        if isinstance(reply, CallFailure):
            raise self._worker_error("start", reply)
        spec: SimulatorSpec | None = reply.value
        self._slots = ImageSlots(self._memory, () if spec is None else spec.cameras, self._kwargs.get("num_envs", 0))
        return spec

    def _remaining(self) -> float:
        return max(0.0, self._answer_by - time.monotonic())

    def _answered_or_late(self) -> bool:
        return self._worker.ready() or self._remaining() == 0.0

    def _worker_error(self, method: str, failure: CallFailure, where: str = "") -> Exception:
        error = super()._worker_error(method, failure, where)
        if type(error) is WorkerError and failure.missing and self._interpreter is not None:
            why = f"the package '{failure.missing}' is not installed in {self._interpreter.python}"
            return Unavailable(f"{self.name}: {why}. {self._interpreter.remedy}".rstrip())
        return error


class LocalRuntime:
    """A `Runtime` that needs no other service. It does not count cores: processes share them."""

    def __init__(self) -> None:
        self._boards: list[SharedBoard] = []

    def worker(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str,
        deadlines: Deadlines,
        share: NodeShare,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
    ) -> ProcessHandle:
        """Start a worker; see `Runtime.worker`. It can read the boards that exist already."""
        return ProcessHandle(
            factory,
            kwargs,
            name=name,
            start_timeout=deadlines.start,
            call_timeout=deadlines.call,
            max_restarts=deadlines.restarts,
            interpreter=interpreter,
            packages=packages,
            descriptors=[board.descriptor for board in self._boards],
        )

    def board(self) -> SharedBoard:
        """Return a new board; see `Runtime.board`."""
        self._boards.append(SharedBoard())
        return self._boards[-1]
