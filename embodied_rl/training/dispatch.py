"""Dispatcher of rollout workers: it orders parts of rollouts, limits how far workers run ahead, and replaces them."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.staleness import Gate
from embodied_rl.runtime.processes.handle import Future, Handle, WorkerDied, restart_worker, wait_for_any
from embodied_rl.training.rollout_worker import CollectedRollout, CollectOrder, WorkerStart

log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two checks of a thread that waits for a rollout."""


@dataclass
class _Worker:
    """The dispatcher's record of a rollout worker.

    Attributes:
        gate: admits its parts of rollouts, one for each segment of a version.
        next_rollout: number of the rollout that it collects now, or next.
        future: of the part that it collects now.
        state: its state after its last part; a replacement continues from it.
        begun: whether the present process has received its `WorkerStart`.
        pending_episodes: ended episodes that its next order will carry to its curriculum.
        reported_episodes: ended episodes that the order of the unfinished part carried.
        finished_rollouts: parts that have not been taken, by number of the rollout.
    """

    handle: Handle
    gate: Gate
    next_rollout: int = 0
    future: Future | None = None
    state: dict[str, Array] | None = None
    begun: bool = False
    pending_episodes: list[EpisodeRecord] = field(default_factory=list)
    reported_episodes: tuple[EpisodeRecord, ...] = ()
    finished_rollouts: dict[int, CollectedRollout] = field(default_factory=dict)


class Dispatcher:
    """Orders rollouts from rollout workers. Each version of the weights learns from `segments` rollouts.

    With one segment, version i learns from rollout i. A worker may begin the rollouts of version i once version
    i - staleness is published. Each worker has its own `Gate`, so that a fast worker does not use up the allowance of a
    slow one. Version i then learns from data at most `staleness` versions old, and no data is collected in vain.

    A worker that dies is replaced. The new worker continues from the state before the unfinished part, so that only
    time is lost. A thread waits for the workers, so that they continue while the ranks learn.

    Args:
        handles: of `embodied_rl.training.rollout_worker.RolloutWorker`s, in the order of their environments.
        staleness: see above; with 0, workers collect only after all data has been learned from.
        segments: see above; with several, a version may learn from the first while workers collect the others.
        versions: number of versions that will learn, None if unknown; nothing is collected ahead for later ones.

    Attributes:
        restarts: number of workers replaced so far.
    """

    def __init__(
        self, handles: Sequence[Handle], staleness: int, segments: int = 1, versions: int | None = None
    ) -> None:
        self.restarts = 0
        self._workers = [_Worker(handle, Gate(staleness, rows=segments)) for handle in handles]
        self._staleness, self._segments, self._versions = staleness, segments, versions
        self._start: WorkerStart | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closing = self._paused = self._idle = False
        self._wakeup = _WakeupPipe()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def load(self, version: int, states: Sequence[dict[str, Array]]) -> None:
        """Continue with a version's rollouts from the workers' states before them. Call it before the first `offer`."""
        for worker, state in zip(self._workers, states, strict=True):
            worker.next_rollout, worker.state = version * self._segments, state
            worker.gate.recover(version)

    def offer(self, version: int, start: WorkerStart) -> None:
        """Let workers collect with a published version; new workers begin with `start`, which must not change."""
        with self._changed:
            self._start = start
            for worker in self._workers:
                worker.gate.publish(version)
        if self._thread.ident is None:  # after a failure the thread does not start again: `take` raises the failure
            self._thread.start()
        self._wakeup.notify()

    def update_curriculum(self, finished: Sequence[EpisodeRecord]) -> None:
        """Pass episodes that ended in taken rollouts to the workers' curricula, with the next rollout."""
        with self._changed:
            for worker in self._workers:
                worker.pending_episodes.extend(finished)

    def take(self, number: int) -> list[CollectedRollout]:
        """Wait until a rollout is complete and return its parts, in the order of workers.

        Raises:
            RestartLimitReached: a worker died more often than its restart budget allows.
            WorkerError: a worker raised an exception.
        """
        while not self.wait(number, POLL):
            pass
        with self._changed:
            return [worker.finished_rollouts.pop(number) for worker in self._workers]

    def wait(self, number: int, seconds: float) -> bool:
        """Wait at most `seconds` until a rollout is complete, and return whether it is. Raises as `take` does."""

        def complete() -> bool:
            return all(number in worker.finished_rollouts for worker in self._workers)

        with self._changed:
            self._changed.wait_for(lambda: complete() or self._failure is not None, seconds)
            if self._failure is not None and not complete():
                raise self._failure
            return complete()

    @contextmanager
    def pause(self) -> Iterator[list[Handle]]:
        """Wait until the workers have collected the parts that they began; none begins another in the `with` block.

        Yields:
            Their handles, which take other calls meanwhile.

        Raises:
            RunFailed: a worker failed, see `take`.
        """
        with self._changed:
            self._paused, self._idle = True, self._thread.ident is None
            self._wakeup.notify()
            while not (self._idle or self._failure is not None):
                self._changed.wait(POLL)
            if self._failure is not None:
                raise self._failure
        try:
            yield [worker.handle for worker in self._workers]
        finally:
            with self._changed:
                self._paused = False
            self._wakeup.notify()

    def close(self) -> None:
        """End the thread and the workers."""
        self._closing = True
        self._wakeup.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for worker in self._workers:
            worker.handle.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._start_workers()
                wait_for_any([self._wakeup, *(worker.future for worker in self._workers if worker.future is not None)])
                self._wakeup.drain()
                self._receive_parts()
        except BaseException as error:  # noqa: BLE001  the thread ends here: `take` raises the error
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _start_workers(self) -> None:
        """Order the next part from each idle worker that may start it, unless they pause."""
        with self._changed:
            if self._paused:
                self._idle = all(worker.future is None for worker in self._workers)
                return self._changed.notify_all()
            for worker in self._workers:
                if worker.future is not None or not worker.gate.may_start(1) or self._is_over(worker):
                    continue
                assert self._start is not None, "no worker starts before the first offer"
                worker.gate.start(1)
                worker.reported_episodes += tuple(worker.pending_episodes)
                worker.pending_episodes = []
                start = None if worker.begun else replace(self._start, state=worker.state)
                oldest = worker.next_rollout // self._segments - self._staleness
                order = CollectOrder(worker.next_rollout, oldest, worker.reported_episodes, start)
                worker.begun, worker.future = True, worker.handle.submit("collect", order)

    def _is_over(self, worker: _Worker) -> bool:
        """Return whether no version will learn from what the worker would collect next."""
        if self._versions is None:
            return False
        return worker.next_rollout >= max(self._versions, worker.gate.version + 1) * self._segments

    def _receive_parts(self) -> None:
        """Store the parts that are complete, let the other workers proceed, and replace dead workers."""
        for worker in self._workers:
            if worker.future is None or not worker.future.done():
                continue
            future, worker.future = worker.future, None
            try:
                part: CollectedRollout | None = future.result()
            except WorkerDied as death:
                log.warning("%s\nA new worker collects its part of rollout %d again.", death, worker.next_rollout)
                worker.gate.lose(1)
                self.restarts += restart_worker(worker.handle)
                worker.begun = False
                continue
            if part is None:
                worker.future = worker.handle.submit("proceed")
                continue
            with self._changed:
                worker.gate.finish(1)
                worker.finished_rollouts[worker.next_rollout] = part
                worker.state, worker.reported_episodes = part.state, ()
                worker.next_rollout += 1
                self._changed.notify_all()


class _WakeupPipe:
    """A `Future` that another thread completes to wake a thread that waits for futures."""

    began = seconds = 0.0

    def __init__(self) -> None:
        reader, self._writer = Pipe(duplex=False)
        self._reader = cast("Connection", reader)

    def notify(self) -> None:
        self._writer.send_bytes(b"!")

    def drain(self) -> None:
        while self._reader.poll(0):
            self._reader.recv_bytes()

    def done(self) -> bool:
        return self._reader.poll(0)

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.done() else (self._reader, 3600.0)

    def result(self, timeout: float | None = None) -> Any:
        return None
