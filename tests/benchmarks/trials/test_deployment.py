"""Server, bridge and robot as processes over DDS: the simulator's actions in lockstep, and stops in real time."""

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

from embodied_rl.benchmarks.trials import children
from embodied_rl.benchmarks.trials.deployment import (
    conduct_episodes,
    deploy_policy,
    list_simulator_words,
    plan_deployment,
    report_deployment,
)
from embodied_rl.benchmarks.trials.domain import DOMAINS
from embodied_rl.benchmarks.trials.episode_runner import ConductedEpisode
from embodied_rl.benchmarks.trials.results import describe_deployment
from embodied_rl.benchmarks.trials.stopping import Fault, StoppingBed, measure_stop, open_bed
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

DEPLOY = DeployConfig(POLICY, episodes=2, film=False)
PATIENT = replace(DEPLOY, strategy="stop")
"""In real time: however slow this machine is, the policy is waited for."""


@pytest.mark.process
def test_in_lockstep_three_processes_do_what_the_simulator_does(tmp_path: Path) -> None:
    planned = plan_deployment(replace(DEPLOY, lockstep=True))
    noted, handle = RecordingObserver(), InlineHandle(lambda: Tabletop(TabletopConfig(), 1))
    seed = derive_noise_seed("report", 0)
    EpisodeRunner(load_local().loaded.actor, planned.part.spec, seed).run([handle], 1, planned.part.episodes, noted)
    conducted, said = conduct_episodes(planned, tmp_path)
    assert len(conducted) == 2
    for each in conducted:
        expected = np.concatenate(noted.actions[each.episode.index])
        np.testing.assert_allclose(each.executed, expected, atol=1e-6, rtol=0)
        assert (each.outcome["success"], each.outcome["reward"]) == noted.ends[each.episode.index]
    assert said["sources"] == {"policy": said["control_steps"]}


@pytest.mark.process
def test_a_deployment_in_real_time_has_a_report_and_a_film(tmp_path: Path) -> None:
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
def test_a_deployment_that_was_recorded_becomes_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def check_bridge_holds(bed: StoppingBed, *words: str) -> None:
    """The bridge runs, and says why the robot holds."""
    said = lambda: any(word in str(bed.conductor.status.get("why")) for word in words)  # noqa: E731
    bed.conductor.wait_for("What the bridge says", said, 60, 120)
    assert bed.find("bridge").process.poll() is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("server killed", ("next chunk", "first chunk")),
        ("emergency stop", ("emergency stop",)),
        ("bridge killed", ()),
        pytest.param("camera frozen", ("front",), marks=pytest.mark.slow),  # test_real_time.py has it without processes
        pytest.param("bridge stopped", ("no command was given", "the episode has ended"), marks=pytest.mark.slow),
    ],
)
def test_the_robot_comes_to_rest(tmp_path: Path, fault: Fault, words: tuple[str, ...]) -> None:
    def then(bed: StoppingBed) -> None:
        bed.conductor.check = lambda: None  # what was killed has ended
        if fault == "bridge stopped":
            bed.commands.clear()
            os.kill(bed.find("bridge").pid, signal.SIGCONT)
        if words:
            check_bridge_holds(bed, *words)
        if fault == "bridge stopped":
            bed.node.spin_until(lambda: bool(bed.commands), 5)  # there are none where the episode has ended
            assert not bed.commands or bed.commands[0][1] == 0, "it goes on from rest"

    assert measure_stop(plan_deployment(PATIENT), tmp_path, fault, then).still_s >= 0


@pytest.mark.process
def test_the_robot_is_at_rest_when_the_bridge_leaves(tmp_path: Path) -> None:
    with open_bed(plan_deployment(PATIENT), tmp_path) as bed:
        bed.begin_moving()
        bridge = bed.find("bridge")
        os.kill(bridge.pid, signal.SIGTERM)
        bed.node.spin_until(lambda: bridge.process.poll() is not None, 60)
        assert bridge.process.returncode == 128 + signal.SIGTERM
        assert "the robot is at rest" in bridge.read_log()
        bed.node.spin_until(lambda: False, 0.3)
        assert bed.commands[-1][1] == 0


def list_family(process: psutil.Process) -> dict[str, psutil.Process]:
    """The processes that one has started, and those that they have, by a word of their command."""
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
def test_all_that_a_deployment_started_ends_when_it_is_killed(tmp_path: Path, stopped: str) -> None:
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


def test_a_full_disk_costs_the_files_of_a_deployment_and_not_what_it_came_to(
    tmp_path: Path,
    files_up_to: Callable[[int], AbstractContextManager[None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned = plan_deployment(DEPLOY)
    outcome = {"success": True, "steps": 12, "reward": 1.0, "truncated": False}
    conducted = [ConductedEpisode(each, outcome) for each in planned.part.episodes]
    metadata = {**planned.metadata, "deployment": describe_deployment(conducted, {}, lockstep=False)}
    with files_up_to(500), pytest.raises(StorageError, match=r"disk is full: could not write .*report\.json.*set out"):
        report_deployment(replace(planned, metadata=metadata), conducted, tmp_path)
    printed = capsys.readouterr().out
    assert "Control steps, by who decided" in printed and "100" in printed
    assert not list(tmp_path.iterdir()), "no part of a file stays"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(DEPLOY, policy="ws://127.0.0.1:1"), "deploy starts a server of its own"),
        (replace(DEPLOY, robot="no_such_robot"), "no such robot"),
        (replace(DEPLOY, policy="no/such/file"), "no/such/file"),
        (
            replace(DEPLOY, robot="franka"),
            r"simulator: cameras {'front': \(64, 64\)} there, {'wrist': .*} here. Choose",
        ),
        (replace(DEPLOY, task="fly"), "unknown task"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_starts(config: DeployConfig, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_deployment(config)


def test_a_folder_that_cannot_be_made_is_said_with_its_key() -> None:
    with pytest.raises(UserError, match=r"Cannot write /proc/nowhere.*set out to a permanent folder"):
        deploy_policy(replace(DEPLOY, out="/proc/nowhere"))


def test_variables_of_ros_are_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "strange")  # the processes get another one
    plan_deployment(DEPLOY)
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    with pytest.raises(UserError, match="ROS_SECURITY_ENABLE is set"):
        plan_deployment(DEPLOY)


def test_processes_get_a_domain_of_their_own_and_all_other_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "0")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    monkeypatch.setenv("ROS_DISTRO", "humble")
    planned, given = plan_deployment(DEPLOY), dict[str, str]()

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        given.update(env)
        raise RunFailed("no more is looked at")

    monkeypatch.setattr(children.subprocess, "Popen", start)
    with pytest.raises(RunFailed):
        conduct_episodes(planned, tmp_path)
    assert int(given["ROS_DOMAIN_ID"]) in DOMAINS
    assert (given["ROS_AUTOMATIC_DISCOVERY_RANGE"], given["ROS_DISTRO"]) == ("LOCALHOST", "humble")


def test_the_robot_is_simulated_as_the_policy_was_trained() -> None:
    kind = SimulatorKind.find(
        SimNode("tabletop", options={"horizon": 30, "inference_delay": [1, 2], "randomise": False})
    )
    assert list_simulator_words(kind) == [
        "sim=tabletop", "sim.horizon=30", "sim.randomise=false", "sim.inference_delay=[1,2]",
    ]  # fmt: skip
    assert list_simulator_words(SimulatorKind.find(SimNode("tabletop"))) == ["sim=tabletop"]
