"""The base class of handles on roles in other processes, on this machine or another: one call at a time, a start that
the caller can wait for later, restarts within a budget, and error messages that give the cause of a death.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import NotFinite, SimulatorSpec, Unavailable
from embodied_rl.runtime.processes.handle import GaveUp, NoAnswer, WorkerDied, WorkerError
from embodied_rl.runtime.processes.restarts import Restarts
from embodied_rl.runtime.processes.worker import CallFailure

START_REMEDY = "If it only needs longer to start, raise plan.start_timeout."
CALL_REMEDY = "If such a call may take longer, raise plan.call_timeout."


class RemoteCall:
    """A future whose answer comes from another process."""

    def __init__(self, handle: "RemoteHandle[Any]", method: str):
        self.method, self.finished = method, False
        self.began, self.seconds = time.monotonic(), 0.0
        self._handle = handle
        self._value: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self.finished or self._handle.answered(self)

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.done() else self._handle.wait_on(self)

    def result(self, timeout: float | None = None) -> Any:
        if not self.finished:
            self._handle.collect(self, timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def finish(self, value: Any, began: float, seconds: float) -> None:
        """Set the answer. Only the handle calls this."""
        self._value, self.began, self.seconds, self.finished = value, began, seconds, True

    def fail(self, error: Exception) -> None:
        """Set the error. Only the handle calls this."""
        self._error, self.finished = error, True


Call = TypeVar("Call", bound=RemoteCall)


class RemoteHandle(ABC, Generic[Call]):
    """A `Handle` on a role in another process. The role starts at once, in parallel with others.

    Args:
        name: for messages.
        restarts: how often `restart` may be called within an hour. The first is immediate; further ones without a
            successful call between them wait longer and longer. The new process waits, not the caller.
    """

    def __init__(self, name: str, restarts: int):
        self.name = name
        self._restarts = Restarts(restarts)
        self._last_death = self._hopeless = ""
        self._spec: SimulatorSpec | None = None
        self._pending: Call | None = None
        self._closed = self._was_up = False
        self._starting = True

    @property
    def spec(self) -> SimulatorSpec:
        if self._spec is None:
            self._finish_start()
        assert self._spec is not None, f"{self.name} is no simulator: it has no spec"
        return self._spec

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    def submit(self, method: str, *args: Any) -> Call:
        assert not self._closed, f"{self.name} is closed"
        assert self._pending is None, f"{self.name}: '{method}' submitted before the last call was collected"
        call = self._send(method, args)
        self._pending = None if call.finished else call  # it may have failed at once
        return call

    def restart(self) -> None:
        if self._hopeless:
            raise GaveUp(self._hopeless)
        delay = self._restarts.next_delay()
        if delay is None:
            times = f"{self.name} was restarted {self._restarts.budget} times within an hour; giving up."
            raise GaveUp(f"{times}{self._last_death}")
        self._stop()
        self._launch(delay)

    def close(self) -> None:
        if self._closed:
            return
        if self.alive and self._pending is None and not self._starting:
            with contextlib.suppress(WorkerDied, WorkerError):  # it is on its way out anyway
                self.submit("close").result(timeout=5.0)
        self._stop(grace=1.0)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def answered(self, call: Call) -> bool:
        """Return whether a call has its answer, has failed or is past its deadline. Only `RemoteCall` calls this."""

    @abstractmethod
    def wait_on(self, call: Call) -> tuple[Connection, float]:
        """Return the connection on which the answer arrives and the seconds left. Only `RemoteCall` calls this."""

    @abstractmethod
    def collect(self, call: Call, timeout: float | None) -> None:
        """Wait for the answer to a call and finish the call. Only `RemoteCall` calls this."""

    @abstractmethod
    def _send(self, method: str, args: tuple[Any, ...]) -> Call:
        """Submit a call, now or once the process is up."""

    @abstractmethod
    def _launch(self, delay: float = 0.0) -> None:
        """Start a process, which waits `delay` seconds before it builds its role."""

    @abstractmethod
    def _stop(self, grace: float = 0.0) -> None:
        """End the process; kill it if it has not ended by itself after `grace` seconds."""

    @abstractmethod
    def _await_start(self) -> SimulatorSpec | None:
        """Wait until the role is built. Return the spec of a simulator, or None for other roles."""

    def _finish_start(self) -> None:
        if self._hopeless:
            raise GaveUp(self._hopeless)
        try:
            self._spec = self._await_start()
        except NoAnswer as death:
            if self._was_up:
                raise
            self._hopeless = str(death)  # a worker that never started would hang again
            raise GaveUp(self._hopeless) from None
        self._starting, self._was_up = False, True

    def _fail(self, call: Call, error: Exception) -> None:
        self._pending = None
        if isinstance(error, WorkerDied):
            self._last_death = f" The last time: {error}"
        call.fail(error)

    def _worker_error(self, method: str, failure: CallFailure, where: str = "") -> Exception:
        """Return the exception to raise in this process for a failure in the worker."""
        if failure.row is not None:
            return NotFinite(failure.summary, failure.row)
        if failure.told:
            return WorkerError(failure.summary)
        if failure.not_finite:
            return FloatingPointError(failure.summary)
        if failure.refused:
            return UserError(failure.summary, failure.code)
        if failure.unavailable:
            return Unavailable(f"{self.name}: {failure.summary}")
        return WorkerError(
            f"{self.name}: '{method}' raised {failure.summary}{where}\n"
            f"--- traceback in the worker ---\n{failure.traceback}--- end of it ---"
        )
