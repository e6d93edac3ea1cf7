"""Process handles: same results as an inline simulator, reported deaths, and no leaked resources."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.processes.handle import Handle, RestartLimitReached, WorkerDied, WorkerError
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle, wrap_simulator
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.testing.simulator_contract import assert_same, copy_observation
from tests.support.ended import gone, stop_process, wait_for
from tests.support.refusals import refuses

pytestmark = pytest.mark.process

FAKE = "embodied_rl.testing.fake_simulator:FakeSimulator"
EPISODES = [Episode(index, index % 2, seed=index) for index in range(6)]
NEXT = [Episode(index, index % 2, seed=index) for index in range(6, 12)]


def worker(rows: int = 3, config: FakeSimulator.Config | None = None, **options) -> ProcessHandle:
    return ProcessHandle(FAKE, {"num_envs": rows, "config": config}, name="simulator 7", **options)


def actions(chunk: int, rows: int = 3) -> np.ndarray:
    return np.random.default_rng(chunk).uniform(-1, 1, (rows, 4, 2)).astype(np.float32)


def test_a_worker_returns_the_results_of_an_inline_simulator() -> None:
    """Results, snapshots and images through shared memory, including those of episodes that ended."""
    inline = InlineHandle(lambda: FakeSimulator(3))
    with worker() as process:
        assert isinstance(inline, Handle) and isinstance(process, Handle)
        assert process.spec == inline.spec
        both = (inline, process)
        assert_same(*[handle.submit("reset", EPISODES[:3]).result() for handle in both], "reset")
        for chunk in range(12):
            futures = [handle.submit("step", actions(chunk), NEXT[:3]) for handle in both]
            assert_same(*[future.result() for future in futures], f"chunk {chunk}")
        saved = [handle.submit("snapshot").result() for handle in both]
        assert_same(*saved, "snapshot")
        assert_same(*[handle.submit("restore", saved[0]).result() for handle in both], "restore")
        assert process.memory() > 10**6 and inline.memory() == 0
        assert futures[1].seconds > 0 and futures[1].done()


@pytest.mark.thorough
@pytest.mark.parametrize("below", [0, 1])
def test_a_worker_tells_the_person_at_the_terminal(below: int, capfd: pytest.CaptureFixture[str]) -> None:
    """As a robot's episodes do that a human prepares; what a worker prints goes to its log."""
    with ProcessHandle("tests.support.telling:Teller", {"below": below}) as handle:
        handle.submit("tell", "Set up the scene.").result()
        assert capfd.readouterr().out == "Set up the scene.\n"


def test_an_observation_is_readable_while_the_next_is_written() -> None:
    with worker() as handle:
        held = [handle.submit("reset", EPISODES[:3]).result()]
        copies = [copy_observation(held[0])]
        for chunk in range(4):
            future = handle.submit("step", actions(chunk), NEXT[:3])
            wait_for(future.done)
            assert_same(held[-1], copies[-1], "an observation was overwritten")
            held.append(future.result().observation)
            copies.append(copy_observation(held[-1]))


@pytest.mark.thorough
def test_several_workers_start_in_parallel_with_one_thread_and_without_torch() -> None:
    handles = [ProcessHandle("os:_fake", {"num_envs": 1}) for _ in range(2)]
    for handle in handles:
        with pytest.raises(WorkerError, match="module 'os' has no attribute '_fake'"):
            _ = handle.spec
        handle.close()
    code = "import embodied_rl.runtime.processes.worker, embodied_rl.testing.fake_simulator, sys; "
    code += "print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
    with worker() as handle:
        _ = handle.spec
        environment = Path(f"/proc/{handle.pid}/environ").read_bytes().split(b"\0")
        assert b"OMP_NUM_THREADS=1" in environment


@pytest.mark.thorough
def test_standard_input_of_a_worker_is_dev_null() -> None:
    ours, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    try:
        with worker() as handle:
            assert os.readlink(f"/proc/{handle.pid}/fd/0") == "/dev/null"
    finally:
        os.dup2(ours, 0)
        for descriptor in (ours, read, write):
            os.close(descriptor)


def test_a_killed_worker_is_reported_at_once() -> None:
    with worker(config=FakeSimulator.Config(seconds=900.0)) as handle:
        handle.submit("reset", EPISODES[:3]).result()
        future = handle.submit("step", actions(0), NEXT[:3])
        os.kill(handle.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"simulator 7 \(pid {handle.pid}\) was killed by SIGKILL .*'step'"):
            future.result()
        with pytest.raises(WorkerDied):
            future.result()
        assert not handle.alive
        with pytest.raises(WorkerDied):
            handle.submit("step", actions(0), NEXT[:3]).result()


def test_a_crash_shows_the_last_lines_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    message = r"exited with code 3 during 'start'(.|\n)*the disk is on fire"
    with (
        ProcessHandle("tests.support.faulty_simulator:Crash", {"num_envs": 1}, log=log) as handle,
        pytest.raises(WorkerDied, match=message),
    ):
        _ = handle.spec
    assert "the disk is on fire" in log.read_text()


def test_exceptions_come_with_a_traceback_and_the_worker_stays_alive() -> None:
    with worker(config=FakeSimulator.Config(fault="raise", fault_row=1)) as handle:
        handle.submit("reset", EPISODES[:3]).result()
        with pytest.raises(WorkerError, match=r"simulator 7: 'step' raised RuntimeError(.|\n)*in _misbehave"):
            handle.submit("step", actions(0), NEXT[:3]).result()
        assert handle.alive
        handle.submit("step", actions(1), NEXT[:3]).result()
        with pytest.raises(WorkerError, match="no attribute 'fly'"):
            handle.submit("fly").result()


@pytest.mark.thorough
def test_a_hung_worker_is_killed_at_the_deadline() -> None:
    with worker(config=FakeSimulator.Config(fault="hang"), call_timeout=2.0) as handle:
        handle.submit("reset", EPISODES[:3]).result()
        with pytest.raises(WorkerDied, match=r"within 2 s and was killed during 'step'.*plan\.call_timeout"):
            handle.submit("step", actions(0), NEXT[:3]).result()
        assert gone(handle.pid)


@pytest.mark.thorough
def test_a_worker_that_does_not_start_in_time_is_not_restarted(tmp_path: Path) -> None:
    kwargs = {"num_envs": 1, "gate": tmp_path / "never"}
    with ProcessHandle(
        "tests.support.faulty_simulator:WaitForFile", kwargs, name="simulator 7", start_timeout=15.0
    ) as handle:
        message = rf"simulator 7 \(pid {handle.pid}\).* 15 s .*'start'.*plan\.start_timeout"
        with pytest.raises(RestartLimitReached, match=rf"(?s){message}.*waiting for the licence server"):
            handle.submit("reset", EPISODES[:1]).result()
        pid = handle.pid
        assert gone(pid) and not handle.alive
        for again in (handle.restart, lambda: handle.spec, handle.submit("reset", EPISODES[:1]).result):
            with pytest.raises(RestartLimitReached, match=message):
                again()
        assert handle.pid == pid


@pytest.mark.thorough
def test_a_stopped_worker_that_does_not_read_is_killed_at_the_deadline() -> None:
    """A message larger than the pipe must not block for ever."""
    with worker(rows=3, call_timeout=2.0) as handle:
        handle.submit("reset", EPISODES[:3]).result()
        stop_process(handle.pid)
        started = time.monotonic()
        with pytest.raises(WorkerDied, match="stopped answering"):
            handle.submit("restore", {"position": np.zeros(10**6)}).result()
        assert time.monotonic() - started < 60


@pytest.mark.thorough
def test_close_leaves_no_process_and_no_memory_even_during_a_call() -> None:
    gc.collect()  # objects of earlier tests must not close their descriptors in between
    descriptors = len(os.listdir("/proc/self/fd"))
    for busy in (False, True):
        handle = worker(config=FakeSimulator.Config(seconds=900.0 if busy else 0.0))
        handle.submit("reset", EPISODES[:3]).result()
        if busy:
            handle.submit("step", actions(0), NEXT[:3])
        started = time.monotonic()
        handle.close()
        handle.close()
        assert time.monotonic() - started < 60
        assert gone(handle.pid) and not handle.alive
    assert len(os.listdir("/proc/self/fd")) == descriptors, "memory without a name goes with its descriptors"


@pytest.mark.thorough
def test_workers_end_when_their_parent_is_killed_during_a_call() -> None:
    code = """
import sys, time
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.testing.fake_simulator import FakeSimulator
import numpy as np
handle = ProcessHandle(sys.argv[1], {"num_envs": 1, "config": FakeSimulator.Config(seconds=900)})
handle.submit("reset", [None]).result()
handle.submit("step", np.zeros((1, 1, 2)), [None])
print(handle.pid, flush=True)
time.sleep(900)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, FAKE], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
        assert not gone(pid)
        parent.kill()
        parent.wait()
    wait_for(lambda: gone(pid))


@pytest.mark.thorough
def test_workers_ignore_signals() -> None:
    with worker() as handle:
        handle.submit("reset", EPISODES[:3]).result()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(handle.pid, number)
        handle.submit("step", actions(0), NEXT[:3]).result()
        assert handle.alive


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("simulator", "data"), [("WrongImage", ("'top'", "(2, 8, 8, 3)", "(2, 4, 4, 3)")), ("NoImage", ("'top'",))]
)
def test_images_that_do_not_match_the_spec_are_refused(simulator: str, data: tuple[str, ...]) -> None:
    with (
        ProcessHandle(f"tests.support.faulty_simulator:{simulator}", {"num_envs": 2}) as handle,
        refuses("simulator-output-invalid", *data),
    ):
        handle.submit("reset", EPISODES[:2]).result()


@pytest.mark.thorough
def test_errors_of_the_caller_are_raised() -> None:
    with ProcessHandle(FAKE, {}) as handle, pytest.raises(WorkerError, match="num_envs"):
        handle.submit("reset", EPISODES[:3]).result()
    with worker() as handle:
        future = handle.submit("reset", EPISODES[:3])
        with pytest.raises(AssertionError, match="before the last call was collected"):
            handle.submit("reset", EPISODES[:3])
        future.result()


def test_a_simulator_that_others_refer_to_is_not_replaced():
    handle = wrap_simulator(simulator := FakeSimulator(1))
    assert handle.spec is simulator.spec
    with pytest.raises(RestartLimitReached, match="cannot be replaced"):
        handle.restart()
