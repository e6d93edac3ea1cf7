"""Handles, reservations and boards on a Ray cluster of two nodes on this machine."""

import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from embodied_rl.interfaces.sim import Episode, NotFinite, Unavailable
from embodied_rl.interfaces.version import __version__
from embodied_rl.runtime.processes.handle import (
    Deadlines,
    Handle,
    NoAnswer,
    NodeShare,
    RestartLimitReached,
    WorkerDied,
    WorkerError,
    restart_and_reset,
    wait_for_any,
)
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle
from embodied_rl.runtime.ray.handle import RayHandle
from embodied_rl.runtime.ray.runtime import InsufficientResources, RayRuntime
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.testing.simulator_contract import assert_same
from tests.support.ended import gone, wait_for
from tests.support.ray_nodes import two_nodes

pytestmark = [pytest.mark.process, pytest.mark.thorough]

FAKE = "embodied_rl.testing.fake_simulator:FakeSimulator"
EPISODES = [Episode(index, index % 2, seed=index) for index in range(3)]
NEXT = [Episode(index, index % 2, seed=index) for index in range(6, 9)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def runtime(cluster: Any) -> Iterator[RayRuntime]:
    with RayRuntime(cluster.address) as runtime:
        yield runtime


@pytest.fixture
def started(runtime: RayRuntime) -> Iterator[Any]:
    """Return a function that starts workers in the cluster, which are closed afterwards."""
    handles: list[RayHandle] = []

    def start(factory: str = FAKE, deadlines=Deadlines(120, 120), share=NodeShare(0.5), **kwargs: Any) -> Any:  # noqa: B008
        outside = {name: kwargs.pop(name) for name in ("interpreter", "packages") if name in kwargs}
        kwargs = {"num_envs": 3} | kwargs
        handles.append(runtime.worker(factory, kwargs, name="simulator 7", deadlines=deadlines, share=share, **outside))
        return handles[-1]

    yield start
    for handle in handles:
        handle.close()


def actions(chunk: int) -> np.ndarray:
    return np.random.default_rng(chunk).uniform(-1, 1, (3, 4, 2)).astype(np.float32)


def test_an_actor_returns_the_results_of_other_handles(started) -> None:
    """Results, snapshots and images are equal bit for bit, and writable copies."""
    actor = started()
    assert isinstance(actor, Handle)
    with ProcessHandle(FAKE, {"num_envs": 3}) as process:
        handles = (InlineHandle(lambda: FakeSimulator(3)), process, actor)
        assert handles[0].spec == actor.spec == process.spec

        def ask(what: str, method: str, *args: Any) -> Any:
            futures = [handle.submit(method, *args) for handle in handles]
            wait_for_any([futures[2]])
            before = time.monotonic()
            values = [future.result() for future in futures]
            assert before - 60 < futures[2].began <= before and 0 < futures[2].seconds < 60
            assert_same(*values[:2], what)
            assert_same(*values[1:], what)
            return values[2]

        seen = ask("reset", "reset", EPISODES)
        for chunk in range(12):
            seen = ask(f"chunk {chunk}", "step", actions(chunk), NEXT).observation
        saved = ask("snapshot", "snapshot")
        ask("restore", "restore", saved)
        seen.state[:] = 0
        seen.images["top"][:] = 0
        assert actor.memory() > 10**7


@pytest.mark.parametrize(
    ("factory", "kwargs", "error", "message"),
    [
        (FAKE, {"config": FakeSimulator.Config(fault="physics", fault_row=2)}, NotFinite, "came to nothing"),
        ("tests.support.guests:NeedsAsset", {}, Unavailable, "simulator 7: the bowl is missing"),
        ("tests.support.guests:Refuses", {"stumble": False}, ValueError, "no_such_package"),
        ("tests.support.guests:Refuses", {"stumble": True}, WorkerError, "invalid literal"),
    ],
)
def test_errors_keep_their_type(started, factory: str, kwargs: dict, error: type[Exception], message: str) -> None:
    handle = started(factory, **kwargs)
    with pytest.raises(error, match=message):
        handle.submit("reset", EPISODES).result()
        handle.submit("step", actions(0), NEXT).result()


def test_a_killed_actor_is_reported_at_once_and_replaced(started) -> None:
    handle = started(config=FakeSimulator.Config(seconds=900.0))
    handle.submit("reset", EPISODES).result()
    pid = handle.pid
    future = handle.submit("step", actions(0), NEXT)
    os.kill(pid, signal.SIGKILL)
    wait_for_any([future])
    with pytest.raises(
        WorkerDied, match=rf"simulator 7 \(pid {pid} on node [\d.]+\) has died \(Ray says: .*{pid}.*\) during 'step'"
    ):
        future.result()
    assert not handle.alive and not isinstance(future._error, NoAnswer)
    observation, restarts = restart_and_reset(handle, EPISODES)
    assert_same(observation, FakeSimulator(3).reset(EPISODES), "after the restart")
    assert restarts == 1 and handle.pid != pid and handle.alive


def test_a_hung_actor_is_killed_at_the_deadline(started) -> None:
    handle = started(config=FakeSimulator.Config(fault="hang"), deadlines=Deadlines(120, 3.0, restarts=1))
    handle.submit("reset", EPISODES).result()
    pid = handle.pid
    with pytest.raises(NoAnswer, match=r"pid \d+ on node .*within 3 s and was killed during 'step'.*plan\.call_tim"):
        handle.submit("step", actions(0), NEXT).result()
    wait_for(lambda: gone(pid))
    handle.restart()
    handle.submit("reset", EPISODES).result(120)
    with pytest.raises(RestartLimitReached, match=r"restarted 1 times within an hour.*The last time: .*within 3 s"):
        handle.restart()


@pytest.mark.slow
def test_an_actor_that_does_not_start_in_time_is_reported(started, tmp_path: Path) -> None:
    handle = started("tests.support.faulty_simulator:WaitForFile", Deadlines(15.0, 60), gate=tmp_path / "gate")
    with pytest.raises(RestartLimitReached, match=r"simulator 7 .*(within|after) 15 s.*plan\.start_timeout"):
        _ = handle.spec
    with pytest.raises(RestartLimitReached):
        handle.restart()


def test_the_log_of_an_actor_that_exits_during_its_start_is_shown(started) -> None:
    handle = started("tests.support.faulty_simulator:Crash")
    with pytest.raises(WorkerDied, match=r"'start'(.|\n)*the disk is on fire"):
        _ = handle.spec


def test_missing_resources_are_reported(started) -> None:
    handle = started(deadlines=Deadlines(1.5, 60), share=NodeShare(4))
    with pytest.raises(RestartLimitReached, match=r"simulator 7 .*1\.5 s.* 4 cores.*Free: .* of 3 c"):
        handle.submit("reset", EPISODES).result()


def test_another_version_on_the_nodes_is_refused(started, monkeypatch) -> None:
    there = __version__
    monkeypatch.setattr("embodied_rl.runtime.ray.handle.__version__", "77.0")
    handle = started()
    with pytest.raises(RestartLimitReached, match=rf"on node .*embodied-rl {there}.*embodied-rl 77\.0"):
        handle.submit("reset", EPISODES).result()


@pytest.mark.slow
def test_a_simulator_of_another_environment_runs_in_a_worker_of_its_actor(started) -> None:
    foreign = Interpreter.find(sys.executable)
    handle = started("tests.support.guests:Nosy", interpreter=foreign, packages=("tests",))
    assert_same(handle.submit("reset", EPISODES).result(), FakeSimulator(3).reset(EPISODES), "reset")
    kept = handle.submit("expert").result()
    assert handle.submit("call_function", kept.number).result().shape == (3, 2)
    with pytest.raises(WorkerError, match="no attribute 'fly'"):
        handle.submit("fly").result()
    [worker] = psutil.Process(handle.pid).children()
    worker.kill()
    with pytest.raises(WorkerDied, match=r"On node .*simulator 7 \(pid \d+\) was killed by SIGKILL"):
        handle.submit("reset", EPISODES).result()
    restart_and_reset(handle, EPISODES)
    pid = handle.pid
    handle.close()
    wait_for(lambda: gone(pid))


def test_a_lost_node_fails_the_call_and_is_replaced(cluster: Any, started) -> None:
    extra = cluster.add_node(num_cpus=8, object_store_memory=100 << 20)
    handle = started(share=NodeShare(6), deadlines=Deadlines(300, 120))
    handle.submit("reset", EPISODES).result()
    future = handle.submit("step", actions(0), NEXT)
    future.result()
    began = time.monotonic()
    cluster.remove_node(extra, allow_graceful=False)
    with pytest.raises(WorkerDied, match="simulator 7"):
        while time.monotonic() - began < 200:
            handle.submit("step", actions(0), NEXT).result()
    print(f"node lost: noticed after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    cluster.add_node(num_cpus=8, object_store_memory=100 << 20)
    restart_and_reset(handle, EPISODES)
    print(f"node replaced: simulating again after {time.monotonic() - began:.1f} s")


def test_a_reservation_without_free_resources_is_refused(runtime: RayRuntime) -> None:
    with pytest.raises(InsufficientResources, match=r"1 s.*2 × 1 core, 1 × 1 core and 2 GPUs\..*cores of"):
        runtime.reserve([NodeShare(1), NodeShare(1), NodeShare(1, 2)], timeout=1)


def test_processes_use_free_bundles_first(runtime: RayRuntime, started) -> None:
    """Processes of a driver use the bundles of no rank, empty ones first, and then other resources."""
    runtime.reserve([NodeShare(1), NodeShare(1)], "STRICT_SPREAD")
    try:
        handles = [started(share=NodeShare(0.5)) for _ in range(4)]
        assert [handle._where.bundle for handle in handles] == [0, 1, 0, 1]
        for handle in handles:
            handle.submit("reset", EPISODES).result()
        beyond = started(share=NodeShare(0.25))
        assert beyond._where is None and beyond.spec.action_dim
        handles[1].close()
        assert started(share=NodeShare(0.5))._where.bundle == 1
    finally:
        runtime.release()


def test_the_newest_message_is_read_here_and_in_an_actor(runtime: RayRuntime, started) -> None:
    board = runtime.board()
    reader = pickle.loads(pickle.dumps(board.reader()))
    assert reader.newest() is None
    weights = {"w": torch.randn(300, 400).bfloat16(), "steps": np.arange(5)}
    board.publish(3, weights)
    version, message = reader.newest()
    assert version == 3 and torch.equal(message["w"], weights["w"]) and message["w"].dtype == torch.bfloat16
    message["w"].zero_()
    assert torch.equal(reader.newest(2)[1]["w"], weights["w"]) and reader.newest(3) is None
    board.publish(4, {"w": weights["w"] + 1})
    there = started("tests.support.rank_functions:Reads", reader=board.reader())
    assert there.submit("total", 3).result() == (4, float((weights["w"] + 1).float().sum()))
    board.close()
    wait_for(lambda: is_lost(reader))
    reader.close()


def is_lost(reader) -> bool:
    """Return whether the board is gone. Ray ends an actor with a delay."""
    try:
        reader.newest()
    except WorkerDied as died:
        assert "published" in str(died)
        return True
    return False
