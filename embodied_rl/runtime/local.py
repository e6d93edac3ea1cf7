"""Handles on this machine: a simulator in this process, or in a worker process of its own."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from embodied_rl.interfaces.sim import NotFinite, Simulator, SimulatorSpec, Unavailable
from embodied_rl.runtime.handle import GaveUp, NoAnswer, WorkerDied, WorkerError
from embodied_rl.runtime.interpreter import Interpreter
from embodied_rl.runtime.messages import PROTOCOL, Lists, greeting
from embodied_rl.runtime.process import ChildProcess, anonymous_memory
from embodied_rl.runtime.restarts import Restarts
from embodied_rl.runtime.worker import Failure, ImageSlots, to_host

START_REMEDY = "If it only needs longer to start, raise plan.start_timeout."
CALL_REMEDY = "If such a call may take longer, raise plan.call_timeout."


class InlineHandle:
    """A simulator in this process: `submit` does the work, and raises what the simulator raises.

    Args:
        build: makes the simulator; called again by `restart`.
        name: for messages.
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
        began = time.monotonic()
        value = to_host(getattr(self._open(), method)(*args))
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


class FinishedCall:
    """A future whose answer is there."""

    def __init__(self, value: Any, began: float, seconds: float):
        self._value, self.began, self.seconds = value, began, seconds

    def done(self) -> bool:
        return True

    def wait_on(self) -> tuple[None, float]:
        return None, 0.0

    def result(self, timeout: float | None = None) -> Any:
        return self._value


class PendingCall:
    """A future whose answer comes from a worker process."""

    def __init__(self, handle: "ProcessHandle", method: str):
        self._handle, self.method = handle, method
        self.finished = False
        self._value: Any = None
        self._error: Exception | None = None
        self.began, self.seconds = time.monotonic(), 0.0

    def done(self) -> bool:
        return self.finished or self._handle.answered()

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.finished else self._handle.wait_on()

    def result(self, timeout: float | None = None) -> Any:
        if not self.finished:
            self._handle.collect(self, timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def finish(self, value: Any, began: float, seconds: float) -> None:
        """Set the answer; for the handle alone."""
        self._value, self.began, self.seconds, self.finished = value, began, seconds, True

    def fail(self, error: Exception) -> None:
        """Set what went wrong; for the handle alone."""
        self._error, self.finished = error, True


class ProcessHandle:
    """A role in a process of its own, which starts at once and in parallel with others.

    The worker ends by itself when this process does, however it ends. Nothing outlives `close`: the shared memory has
    no name, so the system frees it with the last of the two processes, even after `kill -9`.

    Args:
        factory: "module:Class" of the role; the module is imported in the worker alone.
        kwargs: its keyword arguments, picklable; a simulator's "num_envs" is among them.
        name: for messages.
        log: file for the worker's standard output and error; by default one that vanishes with the handle.
        start_timeout: seconds until the simulator must be built.
        call_timeout: seconds in which a call must be answered; then the worker counts as hung and is killed.
        max_restarts: how often `restart` may be called within an hour. The first is immediate; those that follow
            without a call that succeeded wait longer and longer, in the new worker, so that nobody here waits with it.
        interpreter: another Python environment that the worker runs in, with nothing of ours installed there.
        packages: what it imports from here nevertheless, by top-level name, besides the engine.
        descriptors: that it inherits under the same numbers, of boards that it reads.
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
        self.name = name
        self._interpreter, self._packages, self._descriptors = interpreter, packages, descriptors
        self._factory, self._kwargs = factory, dict(kwargs)
        self._start_timeout, self._call_timeout = start_timeout, call_timeout
        self._restarts = Restarts(max_restarts)
        self._last_death = self._hopeless = ""
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "a+b")  # noqa: SIM115
        self._memory = anonymous_memory()
        self._slots: ImageSlots | None = None
        self._spec: SimulatorSpec | None = None
        self._pending: PendingCall | None = None
        self._unsent: tuple[str, tuple[Any, ...]] | None = None
        self._closed = False
        self._launch()

    @property
    def spec(self) -> SimulatorSpec:
        if self._spec is None:
            self._finish_start()
        assert self._spec is not None
        return self._spec

    @property
    def alive(self) -> bool:
        return not self._closed and self._worker.alive

    @property
    def pid(self) -> int:
        return self._worker.pid

    def submit(self, method: str, *args: Any) -> PendingCall:
        assert not self._closed, f"{self.name} is closed"
        assert self._pending is None, f"{self.name}: '{method}' submitted before the last call was collected"
        self._pending, self._unsent = PendingCall(self, method), (method, args)
        call = self._pending
        if not self._starting:
            self._hand_over(call)
        return call

    def restart(self) -> None:
        if self._hopeless:
            raise GaveUp(self._hopeless)
        delay = self._restarts.next_delay()
        if delay is None:
            times = f"{self.name} was restarted {self._restarts.budget} times within an hour; giving up."
            raise GaveUp(f"{times}{self._last_death}")
        self._worker.stop()
        self._launch(delay)

    def memory(self) -> int:
        return self._worker.memory() if self.alive else 0

    def close(self) -> None:
        if self._closed:
            return
        if self.alive and self._pending is None and not self._starting:
            with contextlib.suppress(WorkerDied, WorkerError):  # it is on its way out anyway
                self.submit("close").result(timeout=5.0)
        self._worker.stop(grace=1.0)
        self._slots = None
        os.close(self._memory)
        self._log.close()
        self._closed = True

    def __enter__(self) -> "ProcessHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answered(self) -> bool:
        """Whether the pending call has its answer, or is too late; for `PendingCall` alone."""
        call = self._pending
        assert call is not None, f"{self.name}: a call that was given up"
        if self._starting and self._over():
            self._hand_over(call)
        return call.finished or (not self._starting and self._over())

    def wait_on(self) -> tuple[Connection, float]:
        """What becomes readable with what the pending call waits for, and the seconds left for it; for `PendingCall`
        alone."""
        return self._worker.connection, self._remaining()

    def collect(self, call: PendingCall, timeout: float | None) -> None:
        """Finish the pending call; for `PendingCall` alone."""
        assert call is self._pending, f"{self.name}: '{call.method}' was given up"
        if self._starting:
            self._hand_over(call)
        if call.finished:
            return
        seconds, deadline = (self._remaining(), self._call_timeout) if timeout is None else (timeout, timeout)
        try:
            reply = self._worker.receive(seconds, call.method, CALL_REMEDY, deadline)
        except WorkerDied as death:
            return self._fail(call, death)
        if isinstance(reply, Failure):
            return self._fail(call, self._worker_error(call.method, reply))
        assert self._slots is not None
        self._pending = None
        self._restarts.succeeded()
        call.finish(self._slots.take(reply.value, reply.slot), reply.began, reply.seconds)

    def _launch(self, delay: float = 0.0) -> None:
        main = "embodied_rl.runtime.worker:main"
        self._worker = ChildProcess(
            self.name,
            main,
            self._log,
            self._call_timeout,
            [self._memory, *self._descriptors],
            interpreter=self._interpreter,
            packages=self._packages,
        )
        self._starting, self._greeted, self._pending, self._lists = True, False, None, Lists()
        self._answer_by = time.monotonic() + delay + self._start_timeout
        self._worker.send((self._factory, self._kwargs, delay), "start")

    def _hand_over(self, call: PendingCall) -> None:
        """Send what was submitted, once the worker is up: before, it does not read, and a long message would wait."""
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

    def _finish_start(self) -> None:
        if self._hopeless:
            raise GaveUp(self._hopeless)
        try:
            self._greet()
            reply = self._worker.receive(self._remaining(), "start", START_REMEDY, self._start_timeout)
        except NoAnswer as death:
            if self._spec is not None:
                raise
            self._hopeless = str(death)  # what never came up once would hang again
            raise GaveUp(self._hopeless) from None
        if isinstance(reply, Failure):
            raise self._worker_error("start", reply)
        self._starting = False
        self._spec = reply.value
        cameras = () if self._spec is None else self._spec.cameras
        self._slots = ImageSlots(self._memory, cameras, self._kwargs.get("num_envs", 0))

    def _greet(self) -> None:
        """Hear who speaks, before anything is unpickled."""
        if self._greeted:
            return
        said = self._worker.receive(self._remaining(), "start", START_REMEDY, self._start_timeout, read=greeting)
        problem = said.get("problem") or protocol_problem(said.get("protocol"))
        if problem:
            self._worker.stop()
            where = sys.executable if self._interpreter is None else self._interpreter.python
            self._hopeless = f"{self.name} cannot run in {where}: {problem}."
            raise GaveUp(self._hopeless)
        self._greeted = True

    def _remaining(self) -> float:
        return max(0.0, self._answer_by - time.monotonic())

    def _over(self) -> bool:
        return self._worker.ready() or self._remaining() == 0.0

    def _fail(self, call: PendingCall, error: Exception) -> None:
        self._pending = None
        if isinstance(error, WorkerDied):
            self._last_death = f" The last time: {error}"
        call.fail(error)

    def _worker_error(self, method: str, failure: Failure) -> Exception:
        if (said := said_in_full(self.name, failure)) is not None:
            return said
        if failure.missing and self._interpreter is not None:
            where = f"the package '{failure.missing}' is not installed in {self._interpreter.python}"
            return Unavailable(f"{self.name}: {where}. {self._interpreter.remedy}".rstrip())
        return WorkerError(
            f"{self.name}: '{method}' raised {failure.summary}\n"
            f"--- traceback in the worker ---\n{failure.traceback}--- end of it ---"
        )


def said_in_full(name: str, failure: Failure) -> Exception | None:
    """What a worker's failure is raised as where its summary is all there is to say; None where it is not."""
    if failure.row is not None:
        return NotFinite(failure.summary, failure.row)
    if failure.told:
        return WorkerError(failure.summary)
    if failure.not_finite:
        return FloatingPointError(failure.summary)
    if failure.refused:
        return ValueError(failure.summary)
    return Unavailable(f"{name}: {failure.summary}") if failure.unavailable else None


def protocol_problem(spoken: object) -> str:
    """What is wrong with a worker that speaks this version of the protocol; empty where nothing is."""
    if spoken == PROTOCOL:
        return ""
    other = "does not say which version of the protocol it speaks" if spoken is None else f"speaks version {spoken}"
    return f"it {other}, this process version {PROTOCOL}: another version of embodied-rl runs there. Use one for both"
