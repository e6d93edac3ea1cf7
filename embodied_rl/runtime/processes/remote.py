"""Handles on roles in other processes, on this or another machine; and a simulator behind such a handle.

A handle allows one call at a time, starts without waiting, restarts within a budget, and reports why a process died.
"""

import collections
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import (
    Array,
    Episode,
    NotFinite,
    Observation,
    Rendered,
    SimulatorSpec,
    StepResult,
    Unavailable,
)
from embodied_rl.runtime.processes.handle import Handle, NoAnswer, RestartLimitReached, WorkerDied, WorkerError
from embodied_rl.runtime.processes.worker import CallFailure, RemoteFunction

OPTIONAL = ("expert", "bare_loop")
"""Optional methods of simulators that return a function."""

START_REMEDY = "If it only needs longer to start, raise plan.start_timeout."
CALL_REMEDY = "If such a call may take longer, raise plan.call_timeout."
WINDOW = 3600.0
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0


class RemoteCall:
    """A future that is answered by another process."""

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


class RestartBudget:
    """A budget of restarts, with delays that grow until a call succeeds.

    The first restart after a successful call is immediate, so that a killed simulator is back soon. Further restarts
    wait 0.5 s, 1 s, 2 s, … and 30 s at most, so as not to overload a machine that is short of memory.

    Args:
        budget: restarts within an hour.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, budget: int, clock: Callable[[], float] = time.monotonic):
        self.budget, self._clock = budget, clock
        self._times: collections.deque[float] = collections.deque()
        self._failures = 0

    def next_delay(self) -> float | None:
        """Count a restart and return the seconds to wait before it, or None if the budget is spent."""
        now = self._clock()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self.budget:
            return None
        self._times.append(now)
        delay = FIRST_DELAY * 2.0 ** (self._failures - 1) if self._failures else 0.0
        self._failures = min(self._failures + 1, 60)  # more is useless; 2^1024 overflows a float
        return min(delay, LONGEST_DELAY)

    def succeeded(self) -> None:
        """Note a successful call: the next restart is immediate again."""
        self._failures = 0


Call = TypeVar("Call", bound=RemoteCall)


class RemoteHandle(ABC, Generic[Call]):
    """A `Handle` on a role in another process. The role starts at once, in parallel with others.

    Args:
        restarts: how often `restart` may be called within an hour. The first is immediate; further ones without a
            successful call between them wait for increasing times. The new process waits, not the caller.
    """

    def __init__(self, name: str, restarts: int):
        self.name = name
        self._restarts = RestartBudget(restarts)
        self._last_death = self._start_failure = ""
        self._spec: SimulatorSpec | None = None
        self._pending: Call | None = None
        self._closed = self._was_up = False
        self._starting = True

    @property
    def spec(self) -> SimulatorSpec:
        if self._spec is None:
            self._finish_start()
        assert self._spec is not None, f"{self.name} is not a simulator: it has no spec"
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
        if self._start_failure:
            raise RestartLimitReached(self._start_failure)
        delay = self._restarts.next_delay()
        if delay is None:
            times = f"{self.name} was restarted {self._restarts.budget} times within an hour; giving up."
            raise RestartLimitReached(f"{times}{self._last_death}")
        self._stop()
        self._launch(delay)

    def close(self) -> None:
        if self._closed:
            return
        if self.alive and self._pending is None and not self._starting:
            with contextlib.suppress(WorkerDied, WorkerError):
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
        """End the process; kill it if it has not ended after `grace` seconds."""

    @abstractmethod
    def _await_start(self) -> SimulatorSpec | None:
        """Wait until the role is built. Return the spec of a simulator, or None for other roles."""

    def _finish_start(self) -> None:
        if self._start_failure:
            raise RestartLimitReached(self._start_failure)
        try:
            self._spec = self._await_start()
        except NoAnswer as death:
            if self._was_up:
                raise
            self._start_failure = str(death)  # a worker that never started would hang again
            raise RestartLimitReached(self._start_failure) from None
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
        if failure.worker_failed:
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


class RemoteSimulator:
    """A simulator that is called through a handle. Images are copied, so that later calls do not change them.

    Args:
        handle: of the simulator; closed with this object.
        num_envs: n.
        simulator: its class. This object has the same methods of `OPTIONAL` and `Rendered` as that class.

    Attributes:
        waited: seconds that this process waited for steps.
        busy: seconds of `waited` in which the simulator computed; the rest was transport.
    """

    def __init__(self, handle: Handle, num_envs: int, simulator: type[Any]) -> None:
        self.num_envs = num_envs
        self.waited = self.busy = 0.0
        self._handle = handle
        for name in OPTIONAL:
            if hasattr(simulator, name):
                setattr(self, name, partial(self._get_function, name, signature(getattr(simulator, name))))
        if issubclass(simulator, Rendered):
            self.render = partial(self._call, "render")
        self.spec: SimulatorSpec = handle.spec

    @property
    def render_seconds(self) -> float:
        """The seconds spent on rendering; see `embodied_rl.interfaces.sim.Timed`."""
        return float(self._call("render_seconds"))

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return _owned(self._call("reset", list(episodes)))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        began = time.perf_counter()
        future = self._handle.submit("step", actions, list(next_episodes))
        result: StepResult = future.result()
        final = None if result.final_observation is None else _owned(result.final_observation)
        result = replace(result, observation=_owned(result.observation), final_observation=final)
        self.waited, self.busy = self.waited + time.perf_counter() - began, self.busy + future.seconds
        return result

    def snapshot(self) -> dict[str, Array]:
        return self._call("snapshot")

    def restore(self, state: dict[str, Array]) -> Observation:
        return _owned(self._call("restore", state))

    def close(self) -> None:
        self._handle.close()

    def _get_function(self, method: str, takes: Signature, *args: Any, **named: Any) -> Callable[..., Any]:
        """Call a method that returns a function, and return a proxy: the function stays in the worker."""
        positional = takes.bind(self, *args, **named).args[1:]
        function: RemoteFunction = self._call(method, *positional)
        return lambda *given: self._call("call_function", function.number, *given)

    def _call(self, method: str, *args: Any) -> Any:
        return self._handle.submit(method, *args).result()


def _owned(observation: Observation) -> Observation:
    return replace(observation, images={name: image.copy() for name, image in observation.images.items()})
