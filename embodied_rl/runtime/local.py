"""Handles on this machine: a simulator in this process, or in a worker process of its own."""

import collections
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from embodied_rl.interfaces.sim import NotFinite, Simulator, SimulatorSpec
from embodied_rl.runtime.handle import GaveUp, WorkerDied, WorkerError
from embodied_rl.runtime.process import ChildProcess, anonymous_memory
from embodied_rl.runtime.worker import Failure, ImageSlots

RESTART_WINDOW = 3600.0


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
        value = getattr(self._open(), method)(*args)
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
        self._value: Any = None
        self._error: Exception | None = None
        self._finished = False
        self.began, self.seconds = time.monotonic(), 0.0

    def done(self) -> bool:
        return self._finished or self._handle.answered()

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self._finished else self._handle.wait_on()

    def result(self, timeout: float | None = None) -> Any:
        if not self._finished:
            self._handle.collect(self, timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def finish(self, value: Any, began: float, seconds: float) -> None:
        """Set the answer; for the handle alone."""
        self._value, self.began, self.seconds, self._finished = value, began, seconds, True

    def fail(self, error: Exception) -> None:
        """Set what went wrong; for the handle alone."""
        self._error, self._finished = error, True


class ProcessHandle:
    """A simulator in a process of its own, which starts at once and in parallel with others.

    The worker ends by itself when this process does, however it ends. Nothing outlives `close`: the shared memory has
    no name, so the system frees it with the last of the two processes, even after `kill -9`.

    Args:
        factory: "module:Class" of the simulator; the module is imported in the worker alone.
        kwargs: its keyword arguments, picklable; "num_envs" must be among them.
        name: for messages.
        log: file for the worker's standard output and error; by default one that vanishes with the handle.
        start_timeout: seconds until the simulator must be built.
        call_timeout: seconds in which a call must be answered; then the worker counts as hung and is killed.
        max_restarts: how often `restart` may be called within an hour.

    Raises:
        ValueError: "num_envs" is missing.
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
    ):
        if "num_envs" not in kwargs:
            raise ValueError(f"ProcessHandle({factory!r}): kwargs must hold 'num_envs', got {sorted(kwargs)}")
        self.name = name
        self._factory, self._kwargs = factory, dict(kwargs)
        self._start_timeout, self._call_timeout = start_timeout, call_timeout
        self._max_restarts = max_restarts
        self._restarts: collections.deque[float] = collections.deque()
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "a+b")  # noqa: SIM115
        self._memory = anonymous_memory()
        self._slots: ImageSlots | None = None
        self._spec: SimulatorSpec | None = None
        self._pending: PendingCall | None = None
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
        call = PendingCall(self, method)
        try:
            if self._starting:
                self._finish_start()
            self._worker.send((method, args), method)
            self._pending = call
        except WorkerDied as death:
            call.fail(death)
        return call

    def restart(self) -> None:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            raise GaveUp(f"{self.name} was restarted {self._max_restarts} times within an hour; giving up")
        self._restarts.append(now)
        self._worker.stop()
        self._launch()

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
        """Whether the pending call has its answer; for `PendingCall` alone."""
        return self._worker.ready()

    def wait_on(self) -> tuple[Connection, float]:
        """What becomes readable with the pending call's answer, and its deadline; for `PendingCall` alone."""
        return self._worker.connection, self._call_timeout

    def collect(self, call: PendingCall, timeout: float | None) -> None:
        """Finish the pending call; for `PendingCall` alone."""
        assert call is self._pending and self._slots is not None, f"{self.name}: '{call.method}' was given up"
        self._pending = None
        try:
            reply = self._worker.receive(self._call_timeout if timeout is None else timeout, call.method)
        except WorkerDied as death:
            return call.fail(death)
        if isinstance(reply, Failure):
            return call.fail(self._worker_error(call.method, reply))
        call.finish(self._slots.take(reply.value, reply.slot), reply.began, reply.seconds)

    def _launch(self) -> None:
        main = "embodied_rl.runtime.worker:main"
        self._worker = ChildProcess(self.name, main, self._log, self._call_timeout, [self._memory])
        self._starting, self._pending = True, None
        self._worker.send((self._factory, self._kwargs), "start")

    def _finish_start(self) -> None:
        reply = self._worker.receive(self._start_timeout, "start")
        if isinstance(reply, Failure):
            raise self._worker_error("start", reply)
        self._starting = False
        self._spec = reply.value
        self._slots = ImageSlots(self._memory, reply.value.cameras, self._kwargs["num_envs"])

    def _worker_error(self, method: str, failure: Failure) -> NotFinite | WorkerError:
        if failure.row is not None:
            return NotFinite(failure.summary, failure.row)
        return WorkerError(
            f"{self.name}: '{method}' raised {failure.summary}\n"
            f"--- traceback in the worker ---\n{failure.traceback}--- end of it ---"
        )
