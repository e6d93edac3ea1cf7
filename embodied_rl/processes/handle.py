"""What the engine holds of a simulator or another role, wherever it runs: submit a call, get a future."""

import logging
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

from embodied_rl.interfaces.sim import Episode, Observation, SimulatorSpec

log = logging.getLogger(__name__)


class RunFailed(RuntimeError):  # noqa: N818  it says what happened
    """A process that a run needs is gone or cannot go on; the message says all there is to say, without a traceback."""


class WorkerDied(RunFailed):
    """A worker process is gone: killed, crashed, or killed by us because it hung. `Handle.restart` brings it back."""


class NoAnswer(WorkerDied):
    """A worker was silent for longer than its deadline, and was killed."""


class GaveUp(WorkerDied):
    """A worker died more often than its budget of restarts allows, or has never come up."""


class WorkerError(RunFailed):
    """A simulator raised an exception in its worker; the message holds its traceback. The worker lives on."""


class Future(Protocol):
    """The answer to a call that may still be running."""

    began: float
    """When the simulator began with the call, on the clock `time.monotonic`; known once `result` has returned."""
    seconds: float
    """How long it was busy with the call; likewise."""

    def done(self) -> bool:
        """Whether `result` would return (or raise) without waiting."""
        ...

    def wait_on(self) -> tuple[Connection | None, float]:
        """What becomes readable when there is something new, and the seconds after which it is too late; None where the
        answer is there.
        """
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer.

        Images in the answer of a worker process are views of shared memory: they stay as they are until the worker
        has answered two more calls that return observations. Copy what has to live longer.

        Args:
            timeout: seconds from now; None takes the handle's own deadline, which counts from `submit`, or from when
                the worker was up. There is always one.

        Raises:
            WorkerDied: the worker is gone, or did not answer in time (and was killed).
            WorkerError: the simulator raised an exception.
        """
        ...


@runtime_checkable
class Handle(Protocol):
    """One simulator, or another role such as `embodied_rl.rollout.policy_worker`: in this process, in a thread or in a
    process of its own.

    One call at a time: collect a future before the next submit.
    """

    name: str

    @property
    def spec(self) -> SimulatorSpec:
        """The simulator's spec; waits until the simulator is built. Other roles have none."""
        ...

    @property
    def alive(self) -> bool:
        """Whether calls can be submitted."""
        ...

    def submit(self, method: str, *args: Any) -> Future:
        """Call a method of `Simulator`: "reset", "step", "snapshot", "restore"."""
        ...

    def restart(self) -> None:
        """Replace the simulator by a new one, with no episode running; it starts meanwhile, after a while where the
        last ones came to nothing.

        Raises:
            GaveUp: the budget of restarts is spent.
            WorkerDied: the new one died at once.
        """
        ...

    def memory(self) -> int:
        """Resident bytes of the worker's process; 0 when it has none of its own or the system does not say."""
        ...

    def close(self) -> None:
        """Release everything. Safe to call twice."""
        ...


def wait_for_any(futures: Sequence[Future]) -> None:
    """Until one of them is done, or the first of them is too late: then its `result` says so."""
    while True:
        waiting = [future.wait_on() for future in futures]
        connections = [connection for connection, _ in waiting if connection is not None]
        if not futures or len(connections) < len(futures):
            return
        wait(connections, min(seconds for _, seconds in waiting))
        if any(future.done() for future in futures):
            return


def respawn(handle: Handle) -> int:
    """Replace a dead worker, again and again while the budget of restarts lasts; returns how many it took.

    Raises:
        GaveUp: the budget of restarts is spent.
    """
    restarts = 0
    while True:
        restarts += 1
        try:
            handle.restart()
        except GaveUp:
            raise
        except WorkerDied as death:
            log.warning("the new worker died, too: %s", death)
        else:
            return restarts


class Revival:
    """A `Future`: the first observations of the worker that replaces a dead one, and of further ones if need be.

    `done` starts the next one where the new one died, too, so that nobody waits who has something else to do.

    Args:
        handle: of the dead worker.
        episodes: to start in the new one.

    Attributes:
        restarts: how many it took so far.

    Raises:
        GaveUp: the budget of restarts is spent. Later ones are raised by `result`.
    """

    def __init__(self, handle: Handle, episodes: Sequence[Episode | None]):
        self.began, self.seconds, self.restarts = time.monotonic(), 0.0, 0
        self._handle, self._episodes = handle, episodes
        self._gave_up: GaveUp | None = None
        self._begin()

    def done(self) -> bool:
        if self._gave_up is None and self._call.done():
            try:
                self._call.result()
                return True
            except WorkerDied as death:
                self._again(death)
        return self._gave_up is not None

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self._gave_up is not None else self._call.wait_on()

    def result(self, timeout: float | None = None) -> Observation:
        while self._gave_up is None:
            try:
                return self._call.result(timeout)
            except WorkerDied as death:
                self._again(death)
        raise self._gave_up

    def _again(self, death: WorkerDied) -> None:
        log.warning("the new worker died, too: %s", death)
        try:
            self._begin()
        except GaveUp as end:
            self._gave_up = end

    def _begin(self) -> None:
        self.restarts += respawn(self._handle)
        self._call = self._handle.submit("reset", self._episodes)


def revive(handle: Handle, episodes: Sequence[Episode | None]) -> tuple[Observation, int]:
    """Replace a dead worker and start episodes in the new one, again and again while the budget of restarts lasts.

    Returns:
        The first observations, and how many restarts it took.

    Raises:
        GaveUp: the budget of restarts is spent.
    """
    revival = Revival(handle, episodes)
    return revival.result(), revival.restarts
