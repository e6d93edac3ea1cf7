"""Restarts: the first is immediate, later ones are delayed increasingly, and the new worker waits."""

import logging
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.processes import local, messages, worker
from embodied_rl.runtime.processes.handle import (
    NoAnswer,
    RestartLimitReached,
    WorkerDied,
    WorkerRestart,
    restart_and_reset,
    restart_worker,
)
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.processes.remote import RestartBudget
from embodied_rl.testing.fake_simulator import FakeSimulator

EPISODES = [Episode(index, 0, seed=index) for index in range(2)]


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_delays_double_up_to_a_limit() -> None:
    restarts = RestartBudget(9, Clock())
    assert [restarts.next_delay() for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    many = RestartBudget(2000, Clock())
    assert {many.next_delay() for _ in range(2000)} == {0, 0.5, 1, 2, 4, 8, 16, 30}


def test_a_successful_call_makes_the_next_restart_immediate() -> None:
    restarts = RestartBudget(9, Clock())
    assert [restarts.next_delay() for _ in range(3)] == [0, 0.5, 1]
    restarts.succeeded()
    assert [restarts.next_delay() for _ in range(2)] == [0, 0.5]


def test_the_budget_applies_to_the_last_hour() -> None:
    clock = Clock()
    restarts = RestartBudget(2, clock)
    for now, expected in ((0.0, 0), (1800.0, 0.5), (3599.0, None), (3601.0, 1), (5399.0, None), (5401.0, 2)):
        clock.now = now
        assert restarts.next_delay() == expected, now


class DoomedChild:
    """A fake `ChildProcess` that records its start delays and dies in the calls given by `deaths`."""

    starts: list[float]
    deaths: list[bool]
    pid = 1
    alive = False
    connection = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.calls = 0

    def send(self, message: tuple[Any, ...], doing: str) -> None:
        if doing == "start":
            self.starts.append(message[2])

    def receive(self, *_: Any, read: Any = messages.receive) -> Any:
        if read is messages.receive_greeting:
            return {"protocol": messages.PROTOCOL}
        self.calls += 1
        if self.calls == 1:
            return worker.Reply(FakeSimulator.spec_of(FakeSimulator.Config()), 0.0, 0.0, 0)
        if self.deaths.pop(0):
            raise WorkerDied("the machine is out of memory")
        return worker.Reply({}, 0.0, 0.0, 0)

    def stop(self, grace: float = 0.0) -> None:
        """Nothing to stop."""


@pytest.fixture
def doomed(monkeypatch: pytest.MonkeyPatch) -> type[DoomedChild]:
    monkeypatch.setattr(local, "ChildProcess", DoomedChild)
    monkeypatch.setattr(DoomedChild, "starts", [], raising=False)
    monkeypatch.setattr(DoomedChild, "deaths", [], raising=False)
    return DoomedChild


def called(handle: ProcessHandle) -> bool:
    """Return whether a call succeeded; otherwise restart the worker."""
    try:
        handle.submit("snapshot").result()
    except WorkerDied:
        restart_worker(handle)
        return False
    return True


def test_new_workers_wait_until_a_call_succeeds(doomed: type[DoomedChild]) -> None:
    doomed.deaths = [True, True, True, False, True, True]
    handle = ProcessHandle("no:matter", {"num_envs": 2}, max_restarts=9)
    assert [called(handle) for _ in range(6)] == [False, False, False, True, False, False]
    assert doomed.starts == [0, 0, 0.5, 1, 0, 0.5]
    handle.close()


def test_the_last_death_is_reported_when_the_budget_is_spent(doomed: type[DoomedChild]) -> None:
    doomed.deaths = [True] * 3
    handle = ProcessHandle("no:matter", {"num_envs": 2}, name="simulator 4", max_restarts=2)
    with pytest.raises(RestartLimitReached, match=r"simulator 4 .*2 times.*out of memory"):
        for _ in range(3):
            called(handle)
    handle.close()


def test_a_new_worker_waits_before_it_imports_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    def build(factory: str, kwargs: object) -> None:
        done.append(factory)
        raise RuntimeError("enough")

    monkeypatch.setattr(worker.time, "sleep", done.append)
    monkeypatch.setattr(worker, "build_role", build)
    ours, theirs = Pipe()
    with ours, theirs:
        messages.send(ours, ("module:Class", {"num_envs": 1}, 7.0))
        worker.serve_calls(theirs, memory=-1)
    assert done == [7.0, "module:Class"]


def test_a_worker_that_hangs_at_a_later_start_is_tried_again(
    doomed: type[DoomedChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed.deaths = [True, False]
    handle = ProcessHandle("no:matter", {"num_envs": 2})
    assert not called(handle)
    receive, hangs = DoomedChild.receive, [True, False]

    def hang_once(child: DoomedChild, timeout: float, doing: str, *rest: Any, **named: Any) -> Any:
        if doing == "start" and not named and hangs.pop(0):
            raise NoAnswer("too late")
        return receive(child, **named)

    monkeypatch.setattr(DoomedChild, "receive", hang_once)
    assert not called(handle)
    assert called(handle)
    assert doomed.starts == [0, 0, 0.5]
    handle.close()


class DyingWorkers:
    """A handle; its first `deaths` new workers die at once, then they answer. `budget` is its number of restarts."""

    name = "simulator"

    def __init__(self, deaths: int, budget: int) -> None:
        self.deaths, self.budget = deaths, budget

    def restart(self) -> None:
        if self.budget == 0:
            raise RestartLimitReached("budget spent")
        self.budget -= 1

    def submit(self, method: str, episodes: Sequence[Episode | None]) -> "DyingWorkers":
        self.deaths -= 1
        self.dead = self.deaths >= 0
        return self

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> str:
        if self.dead:
            raise WorkerDied("again")
        return "an observation"


def test_worker_restart_repeats_until_the_budget_is_spent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    restart = WorkerRestart(DyingWorkers(2, 9), EPISODES)  # type: ignore[arg-type]
    assert [restart.done() for _ in range(3)] == [False, False, True]
    assert (restart.result(), restart.restarts) == ("an observation", 3)
    assert caplog.text.count("the new worker died, too") == 2
    assert restart_and_reset(DyingWorkers(2, 9), EPISODES) == ("an observation", 3)  # type: ignore[arg-type, comparison-overlap]
    restart = WorkerRestart(DyingWorkers(9, 2), EPISODES)  # type: ignore[arg-type]
    assert [restart.done() for _ in range(2)] == [False, True]
    assert restart.wait_on() == (None, 0.0)
    with pytest.raises(RestartLimitReached, match="budget spent"):
        restart.result()


@pytest.mark.process
def test_submit_does_not_wait_for_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls submitted during the start are sent when the worker is up, which a file controls."""
    monkeypatch.delitem(sys.modules, "tests.support.faulty_simulator", raising=False)  # of another test's
    gate = tmp_path / "gate"
    with ProcessHandle(
        "tests.support.faulty_simulator:WaitForFile", {"num_envs": 2, "gate": gate}, start_timeout=60
    ) as handle:
        future = handle.submit("reset", EPISODES)
        assert not future.done()
        gate.touch()
        assert len(future.result()) == 2
    assert "tests.support.faulty_simulator" not in sys.modules
