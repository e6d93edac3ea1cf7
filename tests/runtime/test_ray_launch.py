"""Ranks on a Ray cluster of two nodes on this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from embodied_rl.runtime.processes.handle import NodeShare
from embodied_rl.runtime.ranks.collective import LOOPBACK, make_store
from embodied_rl.runtime.ranks.launch import RankFailed
from embodied_rl.runtime.ray.runtime import RayRuntime
from embodied_rl.training.planner.costs import CostFile, Costs, LinearCost
from tests.support import rank_functions
from tests.support.ended import gone, wait_for
from tests.support.ray_nodes import two_nodes
from tests.support.refusals import refuses

pytestmark = [pytest.mark.process, pytest.mark.thorough]


@pytest.fixture(scope="module")
def runtime() -> Iterator[RayRuntime]:
    with two_nodes() as cluster, RayRuntime(cluster.address) as runtime:
        yield runtime


def launch(runtime: RayRuntime, function: Any, config: Any, size: int = 2, timeout: float = 400) -> Any:
    return runtime.launch(function, config, size, timeout=timeout, share=NodeShare(1))


def test_two_ranks_on_two_nodes_sum_and_gather(runtime: RayRuntime) -> None:
    """Each rank is in its bundle, with its simulator."""
    runtime.reserve([NodeShare(1.5), NodeShare(1.5)], "STRICT_SPREAD")
    try:
        result = launch(runtime, rank_functions.operations, None)
        assert (result["sum"], result["any"]) == (3.0, True)
        assert launch(runtime, rank_functions.start_beside, "") == [(0, True), (1, True)]
    finally:
        runtime.release()


def test_the_store_listens_on_the_given_address_only() -> None:
    [address] = {found.address for found in psutil.net_if_addrs()["eth0"] if "." in found.address} or {LOOPBACK}
    before = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    store = make_store(2, 5.0, address=address)
    after = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    assert after - before == {(address, store.port)}
    make_store(2, 5.0, store.port, address).set("here", "yes")
    assert store.get("here") == b"yes"


def test_the_first_failure_is_raised(runtime: RayRuntime) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 failed first(.|\n)*KeyError: 'the first cause'") as caught:
        launch(runtime, rank_functions.fail, {"rank": 1, "how": "raise"})
    assert "PeerLost" not in str(caught.value)


def test_user_errors_of_a_rank_are_raised_with_their_code(runtime: RayRuntime) -> None:
    with refuses("package-missing", "no_such_package"):
        launch(runtime, rank_functions.refuse, None)


def test_a_killed_rank_is_reported_with_its_node(runtime: RayRuntime) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 \(pid \d+ on node [\d.]+\) has died \(Ray says: .*pid: \d+"):
        launch(runtime, rank_functions.fail, {"rank": 1, "how": "kill"})


@pytest.mark.slow
def test_a_stalled_rank_is_reported(runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.runtime.ray.launch.GRACE", 0.5)
    with pytest.raises(RankFailed, match=r"(?s)rank 1 \(pid.* did not end.*rank 0 lost the others"):
        launch(runtime, rank_functions.stall, None, timeout=2)


@pytest.mark.slow
def test_the_output_of_rank_0_is_copied_while_it_runs(runtime: RayRuntime, tmp_path: Path, capfd, monkeypatch) -> None:
    written: list[str] = []

    def write(text: str) -> int:
        written.append(text)
        if "speaks" in "".join(written):
            (tmp_path / "heard").touch()
        return len(text)

    monkeypatch.setattr(sys.stdout, "write", write)
    assert launch(runtime, rank_functions.talk, str(tmp_path), 1) == "said"
    assert "".join(written) == "rank 0 speaks\n"
    assert "to the user" in capfd.readouterr().err


DRIVER = """
import sys
from embodied_rl.runtime.processes.handle import NodeShare
from embodied_rl.runtime.ranks.launch import Stopped
from embodied_rl.runtime.ray.runtime import RayRuntime
from tests.support import rank_functions

if __name__ == "__main__":
    runtime = RayRuntime(sys.argv[3], cpus=4)
    print("in", runtime.connection.address, flush=True)
    try:
        runtime.launch(getattr(rank_functions, sys.argv[1]), sys.argv[2], 2, timeout=60, share=NodeShare(1))
    except Stopped:
        print("stopped", flush=True)
"""


def drive(function: str, folder: Path, address: str) -> subprocess.Popen[str]:
    """Start ranks by another driver; return when they are running."""
    (folder / "driver.py").write_text(DRIVER)
    command = [sys.executable, str(folder / "driver.py"), function, str(folder), address]
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, text=True, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 200
    while not all((folder / f"{rank}.pid").exists() for rank in range(2)):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail((folder / "log").read_text())
        time.sleep(0.05)
    return process


def of(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """Return all processes of a driver: those of its cluster, its ranks, and those that the ranks started.

    Two of Ray's own are excluded, which hold no resources and end a minute after their raylet was killed.
    """
    named = [int(pid) for path in folder.glob("*.pid") for pid in path.read_text().split()]
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some end at once
            named += [child.pid for program in child.cmdline()[:1] if "Agent" not in program]
    return named


def test_no_process_outlives_a_killed_driver_with_its_own_cluster(tmp_path: Path) -> None:
    process = drive("start_beside", tmp_path, "local")
    processes = of(process, tmp_path)
    assert len(processes) >= 7
    process.kill()
    process.wait()
    wait_for(lambda: all(gone(pid) for pid in processes), 120)


@pytest.mark.slow
def test_no_process_outlives_a_killed_driver_in_a_shared_cluster(runtime: RayRuntime, tmp_path: Path) -> None:
    process = drive("start_beside", tmp_path, runtime.connection.address)
    processes = of(process, tmp_path)
    assert len(processes) >= 4, "two ranks, and a process of each"
    process.kill()
    process.wait()
    wait_for(lambda: all(gone(pid) for pid in processes), 120)


def test_a_signal_to_all_processes_stops_all_ranks_after_the_same_iteration(tmp_path: Path) -> None:
    """As from a scheduler; the run's own cluster runs until the run has stopped."""
    process = drive("loop_until_stopped", tmp_path, "local")
    processes = of(process, tmp_path)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "0.left").read_text() == (tmp_path / "1.left").read_text()
    assert "Stopping after this iteration" in (tmp_path / "log").read_text()
    wait_for(lambda: all(gone(pid) for pid in processes), 120)


@pytest.mark.slow
def test_a_signal_while_everything_is_saved_stops_at_once(runtime: RayRuntime, tmp_path: Path) -> None:
    process = drive("stop_at_once", tmp_path, runtime.connection.address)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0 and "stopped" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_signal_that_rank_0_ignores_ends_the_driver(runtime: RayRuntime, tmp_path: Path) -> None:
    process = drive("report_and_wait", tmp_path, runtime.connection.address)
    processes = of(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) != 0
    wait_for(lambda: all(gone(pid) for pid in processes), 120)


def test_a_plan_for_a_cluster_lists_the_processes_of_each_node(runtime: RayRuntime, tmp_path: Path) -> None:
    """The nodes have two and three cores: the plan needs both nodes, and at most their cores."""
    costs = CostFile(Costs(LinearCost(0.0, 0.1), LinearCost(0.2), LinearCost(2.0)))
    (tmp_path / "costs.json").write_text(costs.text())
    asked = ("sim.num_envs=8", "train.decisions=4", "mode=async", "costs=costs.json", "runtime=ray")
    command = [sys.executable, "-m", "embodied_rl", "plan", *asked, f"cluster={runtime.connection.address}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    placed_on = re.findall(r"node (\d) \((\d) cores\): (.*)", done.stdout)
    assert sorted(cores for _, cores, _ in placed_on) == ["2", "3"]
    chosen = json.loads((tmp_path / "plan" / "plan.json").read_text())["chosen"]["allocation"]
    placed = [name for _, _, names in placed_on for name in names.split(", ") if name != "–"]
    expected = [f"rank {n}" for n in range(chosen["ranks"])]
    expected += [f"rollout worker {n}" for n in range(chosen["rollout_workers"])]
    assert sorted(placed) == sorted(expected) and chosen["rollout_workers"] > 1
    for _, cores, names in placed_on:
        apart = chosen["workers"] * chosen["slices"]
        needed = sum(1 + apart if "worker" in name else 1 for name in names.split(", ") if name != "–")
        assert needed <= int(cores)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r".*cluster=127\.0\.0\.1:1 within 1 s.*ray start --head"),
        ("the.cluster", r"cluster=the\.cluster .*host:port"),
    ],
)
def test_an_address_without_a_cluster_is_reported(address: str, message: str) -> None:
    assert re.search(f"NoCluster: {message}", connecting(address))


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_reported() -> None:
    """Ray itself would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert re.search(f"NoCluster: .*cluster={address} is not a Ray cluster", connecting(address))


def test_another_token_is_reported(runtime: RayRuntime) -> None:
    output = connecting(runtime.connection.address, 20, RAY_AUTH_TOKEN="0" * 64)
    assert re.search(r"NoCluster: The cluster at \S+ refused this process: the token", output)


@pytest.mark.slow
def test_another_version_of_ray_is_reported(runtime: RayRuntime) -> None:
    output = connecting(runtime.connection.address, 20, before="import ray; ray.__version__ = '2.50.1'")
    assert re.search(r"NoCluster: The cluster at \S+ refused .*another version runs there(.|\n)*2\.50\.1", output)


@pytest.mark.slow
def test_a_cluster_that_does_not_start_is_reported() -> None:
    broken = "import ray._private.services as services; services.RAYLET_EXECUTABLE = '/bin/false'"
    output = connecting("local", 20, before=broken)
    assert re.search(r"NoCluster: Ray did not start on this machine: .*raylet.*logs are in.*ray stop --force", output)


def connecting(address: str, deadline: float = 1, before: str = "", **variables: str) -> str:
    """Return the error output of a process that joins a cluster."""
    code = f"{before}\nfrom embodied_rl.runtime.ray.connection import connect; connect({address!r}, 1, {deadline})"
    environment = {**os.environ, **variables}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    return result.stderr
