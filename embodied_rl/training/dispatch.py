"""Keeps rollout workers busy: each collects its part of one rollout after another, as far ahead as is allowed."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
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
"""Seconds after which whoever waits for a rollout looks whether somebody still makes it."""


@dataclass
class _Worker:
    """The dispatcher's record of a rollout worker.

    Attributes:
        gate: admits its parts of rollouts, one for each segment of a version.
        following: number of the rollout that it collects now, or next.
        future: of the part that it collects now.
        state: its state after its last part; a replacement continues from it.
        begun: whether the present process has received its `WorkerStart`.
        news: ended episodes that its curriculum has not received.
        made: parts that have not been taken, by number of the rollout.
    """

    handle: Handle
    gate: Gate
    following: int = 0
    future: Future | None = None
    state: dict[str, Array] | None = None
    begun: bool = False
    news: list[EpisodeRecord] = field(default_factory=list)
    told: tuple[EpisodeRecord, ...] = ()
    made: dict[int, CollectedRollout] = field(default_factory=dict)


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

    Attributes:
        restarts: number of workers replaced so far.
    """

    def __init__(self, handles: Sequence[Handle], staleness: int, segments: int = 1) -> None:
        self.restarts = 0
        self._workers = [_Worker(handle, Gate(staleness, rows=segments)) for handle in handles]
        self._staleness, self._segments = staleness, segments
        self._beginning: WorkerStart | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closing = False
        self._bell = _Bell()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def load(self, version: int, states: Sequence[dict[str, Array]]) -> None:
        """Continue with a version's rollouts from the workers' states before them. Call it before the first `offer`."""
        for worker, state in zip(self._workers, states, strict=True):
            worker.following, worker.state = version * self._segments, state
            worker.gate.recover(version)

    def offer(self, version: int, beginning: WorkerStart) -> None:
        """Let workers collect with a published version; new workers start from `beginning`, which must not change."""
        with self._changed:
            self._beginning = beginning
            for worker in self._workers:
                worker.gate.publish(version)
        if self._thread.ident is None:  # after a failure the thread does not start again: `take` raises the failure
            self._thread.start()
        self._bell.ring()

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        """Pass episodes that ended in taken rollouts to the workers' curricula, with the next rollout."""
        with self._changed:
            for worker in self._workers:
                worker.news.extend(finished)

    def take(self, number: int) -> list[CollectedRollout]:
        """Wait until a rollout is complete and return its parts, in the order of workers.

        Raises:
            RestartLimitReached: a worker died more often than its restart budget allows.
            WorkerError: a worker raised an exception.
        """
        while not self.wait(number, POLL):
            pass
        with self._changed:
            return [worker.made.pop(number) for worker in self._workers]

    def wait(self, number: int, seconds: float) -> bool:
        """Wait at most `seconds` until a rollout is complete, and return whether it is. Raises as `take` does."""

        def complete() -> bool:
            return all(number in worker.made for worker in self._workers)

        with self._changed:
            self._changed.wait_for(lambda: complete() or self._failure is not None, seconds)
            if self._failure is not None and not complete():
                raise self._failure
            return complete()

    def close(self) -> None:
        """End the thread and the workers."""
        self._closing = True
        self._bell.ring()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for worker in self._workers:
            worker.handle.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._hand_out()
                wait_for_any([self._bell, *(worker.future for worker in self._workers if worker.future is not None)])
                self._bell.silence()
                self._collect()
        except BaseException as error:  # noqa: BLE001  a thread's border: `take` raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _hand_out(self) -> None:
        with self._changed:
            for worker in self._workers:
                if worker.future is None and worker.gate.may_start(1):
                    worker.gate.start(1)
                    self._order(worker)

    def _order(self, worker: _Worker) -> None:
        beginning = self._beginning
        assert beginning is not None, "nothing is handed out before the first offer"
        beginning = None if worker.begun else beginning.going_on(worker.state)
        worker.told, worker.news, worker.begun = (*worker.told, *worker.news), [], True
        least = worker.following // self._segments - self._staleness
        worker.future = worker.handle.submit("collect", CollectOrder(worker.following, least, worker.told, beginning))

    def _collect(self) -> None:
        for worker in self._workers:
            if worker.future is None or not worker.future.done():
                continue
            future, worker.future = worker.future, None
            try:
                made: CollectedRollout | None = future.result()
            except WorkerDied as death:
                self._replace(worker, death)
            else:
                if made is None:
                    worker.future = worker.handle.submit("proceed")
                else:
                    self._put(worker, made)

    def _put(self, worker: _Worker, made: CollectedRollout) -> None:
        with self._changed:
            worker.gate.finish(1)
            worker.made[worker.following] = made
            worker.state, worker.told = made.state, ()
            worker.following += 1
            self._changed.notify_all()

    def _replace(self, worker: _Worker, death: WorkerDied) -> None:
        log.warning("%s\nA new worker collects its part of rollout %d again.", death, worker.following)
        worker.gate.lose(1)
        self.restarts += restart_worker(worker.handle)
        worker.begun = False


class _Bell:
    """A `Future` that another thread can make ready, to wake a thread that waits for futures."""

    began = seconds = 0.0

    def __init__(self) -> None:
        readable, self._rope = Pipe(duplex=False)
        self._ear = cast("Connection", readable)

    def ring(self) -> None:
        self._rope.send_bytes(b"!")

    def silence(self) -> None:
        while self._ear.poll(0):
            self._ear.recv_bytes()

    def done(self) -> bool:
        return self._ear.poll(0)

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.done() else (self._ear, 3600.0)

    def result(self, timeout: float | None = None) -> Any:
        return None
