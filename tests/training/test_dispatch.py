"""Dispatcher: rollout workers collect up to the staleness bound, and dead workers are replaced."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embodied_rl.actors.learning.weights import Weights
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.rollout.timeline import Timeline
from embodied_rl.runtime.processes.handle import RestartLimitReached, WorkerDied, WorkerError
from embodied_rl.training.dispatch import Dispatcher
from embodied_rl.training.metrics import CollectorReport
from embodied_rl.training.rollout_worker import CollectedRollout, CollectOrder, PublishedWeights, WorkerStart
from tests.support.thread_handle import ThreadHandle

WEIGHTS = Weights(0, {}, "")


class Counting:
    """A rollout worker with the sum of the numbers of its rollouts as its state.

    Args:
        worker: its number.
        seen: every order that it received, also before a restart.
        gate: what it waits for before it answers.
        deaths: numbers of rollouts in which it dies, once each.
        failures: numbers of rollouts in which it raises.
        words: number of reports of each worker before it is done.
    """

    def __init__(
        self,
        worker: int,
        seen: list[CollectOrder],
        gate: threading.Event,
        deaths: set[int],
        failures: set[int],
        words: list[int],
    ) -> None:
        self.worker, self.seen, self.gate, self.deaths, self.failures = worker, seen, gate, deaths, failures
        self.words = words
        self.total: int | None = None

    def collect(self, order: CollectOrder) -> CollectedRollout | None:
        self.order = order
        self.seen.append(order)
        if order.beginning is not None:
            state = order.beginning.state
            self.total = 0 if state is None else int(state["total"])
        return self.proceed()

    def proceed(self) -> CollectedRollout | None:
        if self.words[self.worker]:
            self.words[self.worker] -= 1
            return None
        order = self.order
        assert self.total is not None, "the worker has no initial state"
        assert self.gate.wait(200.0)
        if order.number in self.deaths:
            self.deaths.discard(order.number)
            raise WorkerDied("killed")
        if order.number in self.failures:
            raise ValueError("not this one")
        self.total += order.number
        share = CollectorReport(1, 1, 0, 0, (0, 0), 0, (), Timeline())
        return CollectedRollout({"made by": np.array(self.worker)}, share, {"total": np.array(self.total)})


class Mortal(ThreadHandle):
    """Raises `WorkerDied` of the role, as a process would."""

    def submit(self, method: str, *args: Any) -> Any:
        call = super().submit(method, *args)
        whole = call.result

        def result(timeout: float | None = None) -> Any:
            try:
                return whole(timeout)
            except WorkerError as error:
                if isinstance(error.__cause__, WorkerDied):
                    raise error.__cause__ from None
                raise

        call.result = result
        return call


class Crew:
    """Two workers in threads, and their dispatcher."""

    def __init__(self, staleness: int, segments: int = 1, versions: int | None = None) -> None:
        self.seen: list[list[CollectOrder]] = [[], []]
        self.gates = [threading.Event(), threading.Event()]
        self.deaths: list[set[int]] = [set(), set()]
        self.failures: list[set[int]] = [set(), set()]
        self.words = [0, 0]
        for gate in self.gates:
            gate.set()
        handles = [Mortal(lambda n=n: self.make(n), f"rollout worker {n}") for n in range(2)]
        self.dispatcher = Dispatcher(handles, staleness, segments, versions)

    def make(self, worker: int) -> Counting:
        deaths, failures = self.deaths[worker], self.failures[worker]
        return Counting(worker, self.seen[worker], self.gates[worker], deaths, failures, self.words)

    def offer(self, version: int) -> None:
        self.dispatcher.offer(version, WorkerStart(WEIGHTS, PublishedWeights(WEIGHTS, {"noise_level": float(version)})))

    def numbers(self, worker: int) -> list[int]:
        return [order.number for order in self.seen[worker]]

    def settle(self, worker: int, count: int) -> None:
        """Wait until a worker has received `count` orders, and a little longer."""
        for _ in range(1000):
            if len(self.seen[worker]) >= count:
                break
            threading.Event().wait(0.005)
        threading.Event().wait(0.05)


@pytest.fixture
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    asked = getattr(request, "param", 1)
    made = Crew(*asked) if isinstance(asked, tuple) else Crew(asked)
    yield made
    for gate in made.gates:
        gate.set()
    made.dispatcher.close()


@pytest.mark.parametrize("crew", [0, 1, 3], indirect=True)
def test_workers_are_ahead_by_the_staleness_and_no_more(crew: Crew) -> None:
    staleness = crew.dispatcher._staleness
    for version in range(3):
        crew.offer(version)
        crew.settle(0, version + staleness + 1)
        for worker in range(2):
            assert crew.numbers(worker) == list(range(version + staleness + 1))
            assert [order.least for order in crew.seen[worker]] == [n - staleness for n in crew.numbers(worker)]
        parts = crew.dispatcher.take(version)
        assert [int(part.arrays["made by"]) for part in parts] == [0, 1]
        assert [int(part.state["total"]) for part in parts] == [sum(range(version + 1))] * 2


@pytest.mark.parametrize("crew", [(0, 3), (1, 3)], indirect=True, ids=["in turn", "one ahead"])
def test_a_version_collects_all_of_its_segments_and_no_more(crew: Crew) -> None:
    staleness = crew.dispatcher._staleness
    for version in range(3):
        crew.offer(version)
        crew.settle(0, 3 * (version + staleness + 1))
        assert crew.numbers(0) == list(range(3 * (version + staleness + 1)))
        assert [order.least for order in crew.seen[1]] == [n // 3 - staleness for n in crew.numbers(1)]
        for segment in range(3):
            parts = crew.dispatcher.take(3 * version + segment)
            assert [int(part.state["total"]) for part in parts] == [sum(range(3 * version + segment + 1))] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("crew", [(2, 2, 3)], indirect=True)
def test_nothing_is_collected_ahead_for_a_version_that_will_not_learn(crew: Crew) -> None:
    """Three versions of two segments each; a fourth one, if there is one after all, gets its own."""
    crew.offer(0)
    crew.offer(1)
    for number in range(6):
        crew.dispatcher.take(number)
    crew.offer(2)
    crew.settle(0, 7)
    assert crew.numbers(0) == crew.numbers(1) == list(range(6))
    crew.offer(3)
    crew.dispatcher.take(7)
    crew.settle(0, 9)
    assert crew.numbers(0) == list(range(8))


@pytest.mark.parametrize("crew", [(0, 3)], indirect=True)
def test_resume_from_a_checkpoint_with_segments(crew: Crew) -> None:
    crew.dispatcher.load(5, [{"total": np.array(100)}, {"total": np.array(200)}])
    crew.offer(5)
    assert [int(part.state["total"]) for part in crew.dispatcher.take(15)] == [115, 215]
    crew.settle(0, 3)
    assert crew.numbers(0) == [15, 16, 17]


def test_a_resumed_worker_is_ahead_by_the_staleness_and_no_more(crew: Crew) -> None:
    crew.dispatcher.load(5, [{"total": np.array(100)}, {"total": np.array(200)}])
    crew.offer(5)
    assert [int(part.state["total"]) for part in crew.dispatcher.take(5)] == [105, 205]
    crew.settle(0, 2)
    assert crew.numbers(0) == [5, 6], "not as if everything before had still to be learned from"


def test_a_rollout_waits_for_the_part_of_a_slow_worker(crew: Crew) -> None:
    crew.gates[1].clear()
    crew.offer(0)
    crew.settle(0, 2)
    assert crew.numbers(0) == [0, 1] and crew.numbers(1) == [0]
    taken: list[list[CollectedRollout]] = []
    waiting = threading.Thread(target=lambda: taken.append(crew.dispatcher.take(0)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    crew.gates[1].set()
    waiting.join(10.0)
    assert len(taken[0]) == 2


@pytest.mark.parametrize("crew", [0], indirect=True)
def test_a_dead_worker_is_replaced_and_continues_from_its_last_state(crew: Crew) -> None:
    crew.deaths[1].add(1)
    ended = EpisodeRecord(7, 0, 7, "train", True, True, 5, 1.0)
    crew.offer(0)
    crew.dispatcher.take(0)
    crew.dispatcher.update_curriculum([ended])
    crew.offer(1)
    first, second = crew.dispatcher.take(1)
    assert int(first.state["total"]) == int(second.state["total"]) == 1
    again = [order for order in crew.seen[1] if order.number == 1]
    assert len(again) == 2 and again[0].beginning is None
    assert again[1].beginning is not None and again[1].beginning.state is not None
    assert int(again[1].beginning.state["total"]) == 0, "the state before the part it died in"
    assert crew.dispatcher.restarts == 1
    crew.offer(2)
    crew.dispatcher.take(2)
    told = [record for order in crew.seen[0] for record in order.finished]
    assert told == [ended], "once"
    assert [order.finished for order in again] == [(ended,), (ended,)], "the replacement has not received it"


@pytest.mark.parametrize("crew", [0], indirect=True)
def test_a_worker_that_reports_does_not_time_out(crew: Crew) -> None:
    """The timeout applies to each report, not to a whole part."""
    crew.words[1] = 3
    crew.offer(0)
    parts = crew.dispatcher.take(0)
    assert [int(part.arrays["made by"]) for part in parts] == [0, 1]
    assert crew.words[1] == 0 and crew.numbers(1) == [0] and crew.dispatcher.restarts == 0


@pytest.mark.parametrize("crew", [0], indirect=True)
def test_a_worker_that_dies_within_a_part_is_replaced_and_collects_it_again(crew: Crew) -> None:
    crew.words[1] = 2
    crew.deaths[1].add(0)
    crew.offer(0)
    assert [int(part.state["total"]) for part in crew.dispatcher.take(0)] == [0, 0]
    assert crew.numbers(1) == [0, 0] and crew.dispatcher.restarts == 1


@pytest.mark.parametrize("crew", [0], indirect=True)
def test_a_wait_ends_with_its_time_with_the_rollout_or_with_a_failure(crew: Crew) -> None:
    crew.gates[1].clear()
    crew.failures[1].add(1)
    crew.offer(0)
    assert not crew.dispatcher.wait(0, 0.01)
    crew.gates[1].set()
    assert crew.dispatcher.wait(0, 200.0) and crew.dispatcher.wait(0, 0.0)
    crew.dispatcher.take(0)
    crew.offer(1)
    with pytest.raises(WorkerError, match="rollout worker 1"):
        crew.dispatcher.wait(1, 200.0)


def test_a_worker_that_cannot_be_replaced_ends_the_run(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(handle: ThreadHandle) -> None:
        raise RestartLimitReached("restarted 3 times within an hour")

    monkeypatch.setattr(Mortal, "restart", spent)
    crew.deaths[1].add(0)
    crew.offer(0)
    with pytest.raises(RestartLimitReached, match="within an hour"):
        crew.dispatcher.take(0)


def test_an_exception_ahead_of_the_learner_is_raised_with_the_next_rollout(crew: Crew) -> None:
    crew.failures[1].add(1)
    crew.gates[1].clear()
    crew.offer(0)
    crew.settle(0, 2)  # the other part of rollout 0 is there, before anything fails
    crew.gates[1].set()
    crew.dispatcher.take(0)
    crew.dispatcher._thread.join(10.0)
    crew.offer(1)
    with pytest.raises(WorkerError, match="rollout worker 1"):
        crew.dispatcher.take(1)


@pytest.mark.thorough
@pytest.mark.parametrize("crew", [3], indirect=True)
def test_in_a_pause_no_worker_collects_and_then_all_go_on(crew: Crew) -> None:
    """It begins when the part of a slow worker is complete, which is allowed three more by then."""
    entered, over = threading.Event(), threading.Event()

    def borrow() -> None:
        with crew.dispatcher.pause() as handles:
            assert [handle.name for handle in handles] == ["rollout worker 0", "rollout worker 1"]
            entered.set()
            assert over.wait(200.0)

    with crew.dispatcher.pause():
        pass  # nobody has begun yet
    crew.gates[1].clear()
    crew.offer(0)
    crew.settle(1, 1)
    crew.settle(0, 4)
    borrower = threading.Thread(target=borrow)
    borrower.start()
    assert not entered.wait(0.1), "worker 1 still collects"
    crew.gates[1].set()
    assert entered.wait(200.0)
    crew.settle(1, 2)
    assert crew.numbers(1) == [0]
    over.set()
    borrower.join(200.0)
    crew.settle(1, 4)
    assert crew.numbers(0) == crew.numbers(1) == [0, 1, 2, 3]


def test_a_pause_does_not_wait_for_a_worker_that_failed(crew: Crew) -> None:
    crew.failures[0].add(0)
    crew.offer(0)
    with pytest.raises(WorkerError, match="not this one"):
        crew.dispatcher.take(0)
    with pytest.raises(WorkerError, match="not this one"), crew.dispatcher.pause():
        pass
