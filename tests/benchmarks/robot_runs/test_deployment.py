"""Deployments with real processes over DDS: equality with the simulator in lockstep, and stops in real time."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from embodied_rl.benchmarks.robot_runs.deployment import (
    deploy_policy,
    describe_deployment,
    list_simulator_arguments,
    plan_deployment,
    report_deployment,
    run_episodes,
)
from embodied_rl.benchmarks.robot_runs.episode_runner import RobotEpisode
from embodied_rl.benchmarks.robot_runs.processes import DOMAINS
from embodied_rl.benchmarks.robot_runs.stop_measurement import Fault, StopTestBench, measure_stop, open_test_bench
from embodied_rl.cli.main import main
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.reports.report import Report
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import DeployConfig, SimNode
from embodied_rl.system.atomic_write import StorageError
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.deployment.bridge.test_lockstep import RecordingObserver
from tests.support.bridging import POLICY, load_local
from tests.support.ended import gone, wait_for
from tests.support.refusals import refuses

pytestmark = pytest.mark.thorough
DEPLOY = DeployConfig(POLICY, episodes=2, film=False)
PATIENT = replace(DEPLOY, strategy="stop")
"""In real time; `strategy=stop` waits for the policy, so that a slow machine does not matter."""


@pytest.mark.process
def test_lockstep_deployment_equals_simulator(tmp_path: Path) -> None:
    planned = plan_deployment(replace(DEPLOY, lockstep=True))
    noted, handle = RecordingObserver(), InlineHandle(lambda: Tabletop(TabletopConfig(), 1))
    seed = derive_noise_seed("report", 0)
    EpisodeRunner(load_local().loaded.actor, planned.part.spec, seed).run([handle], 1, planned.part.episodes, noted)
    episodes, said = run_episodes(planned, tmp_path)
    assert len(episodes) == 2
    for each in episodes:
        expected = np.concatenate(noted.actions[each.episode.index])
        np.testing.assert_allclose(each.executed, expected, atol=1e-6, rtol=0)
        assert (each.outcome["success"], each.outcome["reward"]) == noted.ends[each.episode.index]
    assert said["sources"] == {"policy": said["control_steps"]}


@pytest.mark.process
def test_real_time_deployment_writes_report_and_video(tmp_path: Path) -> None:
    assert deploy_policy(replace(PATIENT, out=str(tmp_path), film=True)) == 0
    (folder,) = tmp_path.iterdir()
    found = Report.read(folder / "report.json")
    said = json.loads((folder / "report.json").read_text())["metadata"]["deployment"]
    assert len(found.episodes) == 2
    assert said["latency"]["wake-up"]["count"] > 20
    assert said["sources"].get("policy", 0) + said["sources"].get("safety", 0) > 0
    assert "On the robot" in (folder / "report.html").read_text()
    assert (folder / "grid.mp4").stat().st_size > 1000


@pytest.mark.process
def test_recorded_deployment_converts_to_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(DEPLOY, lockstep=True, record=True, task="press", out=str(tmp_path / "deploy"))
    assert deploy_policy(config) == 0
    (folder,) = (tmp_path / "deploy").iterdir()
    assert f"embodied-rl collect from={folder / 'recording'}" in capsys.readouterr().out
    assert str(folder / "recording") in (folder / "report.html").read_text()
    out = tmp_path / "dataset"
    assert main(["collect", f"from={folder / 'recording'}", f"out={out}", "format=replay"]) == 0
    kept = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert [(each["seed"], each["steps"], each["success"]) for each in kept] == [
        (each.seed, each.steps, each.success) for each in Report.read(folder / "report.json").episodes
    ]


def check_bridge_holds(bench: StopTestBench, *words: str) -> None:
    """Check that the bridge runs and reports one of the reasons for holding."""
    said = lambda: any(word in str(bench.runner.status.get("why")) for word in words)  # noqa: E731
    bench.runner.wait_for("What the bridge says", said, 60, 120)
    assert bench.find("bridge").process.poll() is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("server killed", ("next chunk", "first chunk", "the episode has ended")),
        ("emergency stop", ("emergency stop",)),
        ("bridge killed", ()),
        pytest.param("camera frozen", ("front",), marks=pytest.mark.slow),  # test_real_time.py has it without processes
        pytest.param("bridge stopped", ("no command was given", "the episode has ended"), marks=pytest.mark.slow),
    ],
)
def test_robot_stops_after_fault(tmp_path: Path, fault: Fault, words: tuple[str, ...]) -> None:
    def then(bench: StopTestBench) -> None:
        bench.runner.check = lambda: None  # what was killed has ended
        if fault == "bridge stopped":
            bench.commands.clear()
            os.kill(bench.find("bridge").pid, signal.SIGCONT)
        if words:
            check_bridge_holds(bench, *words)
        if fault == "bridge stopped":
            bench.node.spin_until(lambda: bool(bench.commands), 5)  # there are none where the episode has ended
            assert not bench.commands or bench.commands[0][1] == 0, "it goes on from rest"

    assert measure_stop(plan_deployment(PATIENT), tmp_path, fault, then).still_s >= 0


@pytest.mark.process
def test_robot_stops_before_bridge_exits(tmp_path: Path) -> None:
    with open_test_bench(plan_deployment(PATIENT), tmp_path) as bench:
        bench.begin_moving()
        bridge = bench.find("bridge")
        os.kill(bridge.pid, signal.SIGTERM)
        bench.node.spin_until(lambda: bridge.process.poll() is not None, 60)
        assert bridge.process.returncode == 128 + signal.SIGTERM
        assert "the robot is at rest" in bridge.read_log()
        bench.node.spin_until(lambda: False, 0.3)
        assert bench.commands[-1][1] == 0


def list_family(process: psutil.Process) -> dict[str, psutil.Process]:
    """Return the descendants of a process by a word of their command."""
    words = ("serve", "robot", "bridge", "recording.process")
    found = {}
    for each in process.children(recursive=True):
        with suppress(psutil.Error):  # it ends while it is looked at
            command = each.cmdline()
            found |= {word: each for word in words if any(part == word or part.endswith(word) for part in command)}
    return found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["", "robot"])
def test_all_processes_end_with_a_killed_deployment(tmp_path: Path, stopped: str) -> None:
    words = ["deploy", f"policy={POLICY}", "episodes=50", "film=false", "strategy=stop", "record=true"]
    command = [sys.executable, "-m", "embodied_rl", *words, f"out={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as deploy:
        try:
            known = psutil.Process(deploy.pid)
            wait_for(lambda: len(list_family(known)) == 4 or deploy.poll() is not None)
            family = list_family(known)
            assert set(family) == {"serve", "robot", "bridge", "recording.process"}
            if stopped:
                family[stopped].suspend()
        finally:
            deploy.kill()
    wait_for(lambda: all(gone(each.pid) for each in family.values()), 60)


def test_results_are_printed_when_the_disk_is_full(
    tmp_path: Path,
    files_up_to: Callable[[int], AbstractContextManager[None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned = plan_deployment(DEPLOY)
    outcome = {"success": True, "steps": 12, "reward": 1.0, "truncated": False}
    episodes = [RobotEpisode(each, outcome) for each in planned.part.episodes]
    metadata = {**planned.metadata, "deployment": describe_deployment(episodes, {}, lockstep=False)}
    with files_up_to(500), pytest.raises(StorageError, match=r"disk is full: could not write .*report\.json.*set out"):
        report_deployment(replace(planned, metadata=metadata), episodes, tmp_path)
    printed = capsys.readouterr().out
    assert "Control steps, by who decided" in printed and "100" in printed
    assert not list(tmp_path.iterdir()), "no part of a file stays"


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        (replace(DEPLOY, policy="ws://127.0.0.1:1"), "policy-not-a-file", "ws://127.0.0.1:1"),
        (replace(DEPLOY, robot="no_such_robot"), None, "no_such_robot"),
        (replace(DEPLOY, policy="no/such/file"), None, "no/such/file"),
        (replace(DEPLOY, robot="franka"), "policy-robot-mismatch", "cameras {'front': (64, 64)} there, {'wrist': "),
        (replace(DEPLOY, task="fly"), "task-unknown", "fly"),
    ],
)
def test_invalid_deployment_is_refused_before_start(config: DeployConfig, code: str | None, named: str) -> None:
    with pytest.raises(UserError) as error:
        plan_deployment(config)
    assert named in str(error.value)
    assert code in (None, error.value.code)


def test_unwritable_output_folder_is_refused() -> None:
    with pytest.raises(UserError, match=r"Cannot write /proc/nowhere.*set out to a permanent folder"):
        deploy_policy(replace(DEPLOY, out="/proc/nowhere"))


def test_ros_variables_are_checked_before_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "strange")  # the processes get another one
    plan_deployment(DEPLOY)
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    with refuses("ros-security-unsupported", "ROS_SECURITY_ENABLE"):
        plan_deployment(DEPLOY)


def test_processes_get_a_new_domain_id_and_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "0")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    monkeypatch.setenv("ROS_DISTRO", "humble")
    planned, given = plan_deployment(DEPLOY), dict[str, str]()

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        given.update(env)
        raise RunFailed("no more is looked at")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(RunFailed):
        run_episodes(planned, tmp_path)
    assert int(given["ROS_DOMAIN_ID"]) in DOMAINS
    assert (given["ROS_AUTOMATIC_DISCOVERY_RANGE"], given["ROS_DISTRO"]) == ("LOCALHOST", "humble")


def test_robot_gets_the_simulator_settings_of_training() -> None:
    kind = SimulatorKind.find(
        SimNode("tabletop", options={"horizon": 30, "inference_delay": [1, 2], "randomise": False})
    )
    assert list_simulator_arguments(kind) == [
        "sim=tabletop", "sim.horizon=30", "sim.randomise=false", "sim.inference_delay=[1,2]",
    ]  # fmt: skip
    assert list_simulator_arguments(SimulatorKind.find(SimNode("tabletop"))) == ["sim=tabletop"]
