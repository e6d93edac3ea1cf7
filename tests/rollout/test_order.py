"""Ready order: ready simulators are inferred, none starves, and a row-wise actor decides as in exact order."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.rollout.environments import HandlePart, take_ready_first
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import RowwiseFakeActor
from tests.support.collecting import SPEC, N, T, assert_equal, copied, half_skilled, inline, make

PARTS = 4


class Delayed:
    """A result that is ready only after a number of calls of `done`."""

    def __init__(self, future: Any, asked: int):
        self._future, self._asked = future, asked
        self.began, self.seconds = future.began, future.seconds

    def done(self) -> bool:
        self._asked -= 1
        return self._asked < 0

    def wait_on(self) -> tuple[None, float]:
        return None, 0.0

    def result(self, timeout: float | None = None) -> Any:
        return self._future.result()


class SlowHandle(InlineHandle):
    """A simulator whose chunks take a random number of turns."""

    def __init__(self, handle: InlineHandle, delays: Callable[[], int]):
        self.__dict__.update(handle.__dict__)
        self._delays = delays

    def submit(self, method: str, *args: Any) -> Any:
        future = super().submit(method, *args)
        return Delayed(future, self._delays()) if method == "step" else future


class NotingActor(RowwiseFakeActor):
    """Remembers which episodes were decided together."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.batches: list[list[int]] = []

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        self.batches.append(sorted(int(index) % N for index in keys.episode))
        return super().act(observation, keys, explore)


def slow(delays: Callable[[], int]) -> list[SlowHandle]:
    return [SlowHandle(handle, delays) for handle in inline(PARTS)]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_delays_every_decision_lands_in_its_row(seed: int) -> None:
    draw = random.Random(seed)
    collector, actor = make(slow(lambda: draw.randrange(6)), slices=2, order="ready", actor=half_skilled())
    exact, _ = make(inline(PARTS), slices=2, actor=actor)
    for _ in range(2):
        assert_equal(copied(collector.collect(actor)), copied(exact.collect(actor)))


def test_at_most_a_slice_is_decided_together_and_a_slow_one_alone() -> None:
    handles = slow(lambda: 0)
    handles[3]._delays = lambda: 3
    actor = NotingActor()
    collector, _ = make(handles, slices=2, order="ready", actor=actor)
    collector.collect(actor)
    size = N // PARTS
    assert {len(batch) for batch in actor.batches} <= {size, 2 * size}
    assert sum(len(batch) for batch in actor.batches) == N * T
    before_it_is_back = actor.batches[2:5]
    assert all(N - 1 not in batch for batch in before_it_is_back)


def test_no_simulator_starves() -> None:
    """Three that are always ready, two at a time: they take turns."""
    parts = [HandlePart(handle=None, columns=None) for _ in range(3)]  # type: ignore[arg-type]
    counts = []
    for batch in take_ready_first(parts, 6, 2):
        assert len(batch) <= 2
        for part in batch:
            part.decided += 1
        counts.append([part.decided for part in parts])
    assert all(max(count) - min(count) <= 1 for count in counts)
    assert counts[-1] == [6, 6, 6]


def test_without_a_ready_simulator_all_running_chunks_are_waited_for() -> None:
    """And none of a part that has made its decisions. The one whose chunk is done then is served, and it alone."""
    parts = [HandlePart(handle=None, columns=None) for _ in range(4)]  # type: ignore[arg-type]
    futures = [Delayed(SimpleNamespace(began=0.0, seconds=0.0), 100) for _ in parts]
    for part, future in zip(parts, futures, strict=True):
        part.future = future
    parts[3].decided = 2
    waited = list[list[Any]]()

    def wait(chunks: Sequence[Any]) -> None:
        waited.append([*chunks])
        futures[1]._asked = 0

    assert next(take_ready_first(parts, 2, 2, wait)) == [parts[1]]
    assert waited == [futures[:3]]


class Dead:
    """The answer of a worker that is gone."""

    seconds = 0.0

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> Any:
        raise WorkerDied("gone")


class MortalHandle(SlowHandle):
    """Dies in its second chunk; the one that replaces it takes many turns to start."""

    steps = 0

    def submit(self, method: str, *args: Any) -> Any:
        self.steps += method == "step"
        if method == "step" and self.steps == 2:
            return Dead()
        future = InlineHandle.submit(self, method, *args)
        return Delayed(future, 20) if method == "reset" and self.steps else future


@pytest.mark.parametrize("order", ["ready", "exact"])
def test_a_worker_that_is_replaced_delays_no_other_in_ready_order(order: Any) -> None:
    handles = [*slow(lambda: 0)[:3], MortalHandle(slow(lambda: 0)[3], lambda: 0)]
    actor = NotingActor()
    collector, _ = make(handles, slices=2, order=order, actor=actor)
    rollout = collector.collect(actor)
    mine = [number for number, batch in enumerate(actor.batches) if N - 1 in batch]
    others = [sum(index not in (N - 2, N - 1) for index in batch) for batch in actor.batches[: mine[2]]]
    assert len(mine) == T
    assert (sum(others) == (N - 2) * T) == (order == "ready"), "all others were done when it was back"
    assert not rollout.valid[:2, -2:].any() and rollout.valid[2:, -2:].all() and rollout.valid[:, :-2].all()
    assert (collector.restarts, collector.lost_episodes) == (1, 2)
    second = collector.collect(actor)
    assert second.valid.all() and (second.episode[0, -2:] > N).all()
