"""Interfaces of runtimes, which start roles in processes, and of handles: `submit` a call to a role, get a future."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Episode, Observation, SimulatorSpec
from embodied_rl.runtime.processes.interpreter import Interpreter

log = logging.getLogger(__name__)


class WorkerDied(RunFailed):
    """A worker process crashed, was killed, or was killed by us because it hung. `Handle.restart` replaces it."""


class NoAnswer(WorkerDied):
    """A worker did not answer within its deadline, and was killed."""


class RestartLimitReached(WorkerDied):
    """A worker died more often than its restart budget allows, or never started successfully."""


class WorkerError(RunFailed):
    """A simulator raised an exception in its worker. The message holds the traceback, and the worker keeps running."""


class Future(Protocol):
    """The answer to a call, which may still be running."""

    began: float
    """When the simulator began with the call, on the clock `time.monotonic`; known once `result` has returned."""
    seconds: float
    """How long it was busy with the call; likewise."""

    def done(self) -> bool:
        """Return whether `result` would return (or raise) without waiting."""
        ...

    def wait_on(self) -> tuple[Connection | None, float]:
        """Return a connection that becomes readable with the answer (None if it is here), and the seconds left."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer and return it.

        Images in the answer of a worker process are views of shared memory. They stay unchanged until the worker has
        answered two more calls that return observations. Copy images that must live longer.

        Args:
            timeout: seconds from now. None means the handle's own deadline, which counts from `submit`, or from the
                moment when the worker was up. There is always a deadline.

        Raises:
            WorkerDied: the worker is gone, or did not answer in time (and was killed).
            WorkerError: the simulator raised an exception.
        """
        ...


@runtime_checkable
class Handle(Protocol):
    """A handle on a simulator or another role, such as `embodied_rl.rollout.policy_worker`, in this or another process.

    It takes one call at a time: collect each future before the next submit.
    """

    name: str

    @property
    def spec(self) -> SimulatorSpec:
        """The simulator's spec. Reading it waits until the simulator is built. Other roles have no spec."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the role can take calls."""
        ...

    def submit(self, method: str, *args: Any) -> Future:
        """Start a call of a method of the role, e.g. "reset", "step", "snapshot" or "restore" of a `Simulator`."""
        ...

    def restart(self) -> None:
        """Replace the simulator by a new one with no running episode; do not wait for its start, which is delayed
        after failed restarts.

        Raises:
            RestartLimitReached: the restart budget is spent.
            WorkerDied: the new worker died at once.
        """
        ...

    def memory(self) -> int:
        """Return the resident bytes of the worker's process, or 0 if it has no own process or the size is unknown."""
        ...

    def close(self) -> None:
        """Release all resources. It is safe to call this twice."""
        ...


def wait_for_any(futures: Sequence[Future]) -> None:
    """Wait until a future is done or the earliest deadline has passed; `result` of the late future then raises."""
    while True:
        waiting = [future.wait_on() for future in futures]
        connections = [connection for connection, _ in waiting if connection is not None]
        if not futures or len(connections) < len(futures):
            return
        wait(connections, min(seconds for _, seconds in waiting))
        if any(future.done() for future in futures):
            return


def restart_worker(handle: Handle) -> int:
    """Restart a dead worker until a start succeeds, and return the number of restarts.

    Raises:
        RestartLimitReached: the restart budget is spent.
    """
    restarts = 0
    while True:
        restarts += 1
        try:
            handle.restart()
        except RestartLimitReached:
            raise
        except WorkerDied as death:
            log.warning("the new worker died, too: %s", death)
        else:
            return restarts


class WorkerRestart:
    """A `Future` that restarts a dead worker and returns the first observations of the new one.

    If the new worker dies too, `done` starts the next one without waiting for it.

    Attributes:
        restarts: number of restarts so far.

    Raises:
        RestartLimitReached: the restart budget is spent at the first restart. If it is spent later, `result` raises
            this.
    """

    def __init__(self, handle: Handle, episodes: Sequence[Episode | None]):
        self.began, self.seconds, self.restarts = time.monotonic(), 0.0, 0
        self._handle, self._episodes = handle, episodes
        self._error: RestartLimitReached | None = None
        self._restart()

    def done(self) -> bool:
        if self._error is None and self._call.done():
            try:
                self._call.result()
                return True
            except WorkerDied as death:
                self._restart_again(death)
        return self._error is not None

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self._error is not None else self._call.wait_on()

    def result(self, timeout: float | None = None) -> Observation:
        while self._error is None:
            try:
                return self._call.result(timeout)
            except WorkerDied as death:
                self._restart_again(death)
        raise self._error

    def _restart_again(self, death: WorkerDied) -> None:
        log.warning("the new worker died, too: %s", death)
        try:
            self._restart()
        except RestartLimitReached as error:
            self._error = error

    def _restart(self) -> None:
        self.restarts += restart_worker(self._handle)
        self._call = self._handle.submit("reset", self._episodes)


def restart_and_reset(handle: Handle, episodes: Sequence[Episode | None]) -> tuple[Observation, int]:
    """Restart a dead worker until it has started the given episodes.

    Returns:
        The first observations, and the number of restarts.

    Raises:
        RestartLimitReached: the restart budget is spent.
    """
    restart = WorkerRestart(handle, episodes)
    return restart.result(), restart.restarts


@dataclass(frozen=True)
class NodeShare:
    """The CPU cores and GPUs that a process reserves on its node, possibly fractions. `LocalRuntime` ignores them."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Deadlines:
    """The limits of a process: seconds to start, seconds to answer a call, and restarts per hour."""

    start: float = 300.0
    call: float = 120.0
    restarts: int = 3


class BoardReader(Protocol):
    """A reader of a `Board` in another process. It can be pickled."""

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Return the version and the complete newest message, or None where no version is above `above`.

        Raises:
            WorkerDied: the publishing process is gone, or does not answer in time.
        """
        ...

    def close(self) -> None:
        """Release the reader."""
        ...


class Board(Protocol):
    """The newest message of one process, e.g. weights, which any number of other processes can read at any time.

    A message is any picklable value that holds most of its bytes in NumPy arrays.
    """

    def publish(self, version: int, message: Any) -> None:
        """Replace the message. Each version must be higher than the last."""
        ...

    def reader(self) -> BoardReader:
        """Return a reader, which can be sent to a worker of the same runtime."""
        ...

    def close(self) -> None:
        """Release the board. The last message may then no longer be readable."""
        ...


class Runtime(Protocol):
    """Starts processes, and ends them when the process that started them ends, even by a crash."""

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
    ) -> Handle:
        """Start a role in a new process, and return its handle without waiting for the start.

        Args:
            factory: "module:Class" of the role. kwargs: its keyword arguments, picklable.
            deadlines: limits for its start, its calls and its restarts.
            share: the cores and GPUs that it reserves.
            interpreter, packages: see `embodied_rl.runtime.processes.local.ProcessHandle`.
        """
        ...

    def board(self) -> Board:
        """Return a board on which this process can publish."""
        ...
