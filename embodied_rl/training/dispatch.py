"""Keeping rollout workers at work: each makes its part of one rollout after another, as far ahead as it may."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.sim import Array
from embodied_rl.processes.handle import Future, Handle, WorkerDied, respawn, wait_for_any
from embodied_rl.rollout.staleness import Gate
from embodied_rl.training.rollout_worker import CollectedRollout, CollectOrder, WorkerStart

log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds after which whoever waits for a rollout looks whether somebody still makes it."""


@dataclass
class _Worker:
    """A rollout worker as its dispatcher knows it.

    Attributes:
        gate: lets its parts in, one for each segment of what a version learns from.
        following: the rollout it makes a part of next, or now.
        future: of the part it makes now.
        state: where it stood after its last part; what another one goes on from, should it die.
        begun: whether this life of it has been told where to begin.
        news: episodes that ended and that its curriculum has not heard of.
        made: by rollout, what nobody has taken yet.
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
    """Hands out rollouts, of which each version of the weights learns from so many `segments`: with one, number i is
    what version i learns from.

    A worker may begin what version i learns from once version i - staleness is there: each has a `Gate` of its own, so
    that a fast one does not take what a slow one may. What version i meets is then at most `staleness` older than
    itself, and nobody collects what will be thrown away.

    A worker that dies is replaced, and the new one goes on where the old one stood before the part it was making, so
    that nothing but time is lost. A thread waits for the workers, so that they go on while the ranks learn.

    Args:
        handles: of `embodied_rl.training.rollout_worker.RolloutWorker`s, in the order of their environments.
        staleness: see above; 0 collects when everything has been learned.
        segments: see above; with several, a version may learn from the first while it collects the others.

    Attributes:
        restarts: workers replaced so far.
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
        """Go on with what a version learns from, from where workers stood before it; only before the first `offer`."""
        for worker, state in zip(self._workers, states, strict=True):
            worker.following, worker.state = version * self._segments, state
            worker.gate.recover(version)

    def offer(self, version: int, beginning: WorkerStart) -> None:
        """A version is on the board; `beginning` is what a new worker starts from, and must not change any more."""
        with self._changed:
            self._beginning = beginning
            for worker in self._workers:
                worker.gate.publish(version)
        if self._thread.ident is None:  # a thread that a failure has ended does not start again: `take` tells of it
            self._thread.start()
        self._bell.ring()

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        """Episodes that ended in rollouts that were taken; curricula hear of them with the next rollout."""
        with self._changed:
            for worker in self._workers:
                worker.news.extend(finished)

    def take(self, number: int) -> list[CollectedRollout]:
        """The parts of a rollout, in the order of workers; waits until it is made.

        Raises:
            GaveUp: a worker died more often than its budget of restarts allows.
            WorkerError: a worker raised an exception.
        """
        with self._changed:
            while any(number not in worker.made for worker in self._workers):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(POLL)
            return [worker.made.pop(number) for worker in self._workers]

    def close(self) -> None:
        """End the workers."""
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
                made: CollectedRollout = future.result()
            except WorkerDied as death:
                self._replace(worker, death)
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
        self.restarts += respawn(worker.handle)
        worker.begun = False


class _Bell:
    """Wakes whoever waits for futures, in the guise of one."""

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
