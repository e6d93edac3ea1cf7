"""The doctor: its checks on machines that lack something, and of a robot."""

import json
import secrets
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from embodied_rl.assembly import machine_doctor
from embodied_rl.cli.main import main
from embodied_rl.commands import doctor
from embodied_rl.deployment.commands import doctor as robot_doctor
from embodied_rl.deployment.robots import inspection
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import DoctorConfig, RunConfig, SimNode
from embodied_rl_sims.tabletop.simulator import Tabletop
from tests.support.robots import write_robot
from tests.support.transports import borrow_domain

Usage = namedtuple("Usage", "total used free")


def by_name(tmp_path) -> dict[str, Diagnosis]:
    return {check.name: check for check in machine_doctor.examine_machine(tmp_path)}


@pytest.mark.thorough
@pytest.mark.process
def test_a_machine_that_runs_the_tests_can_train(tmp_path) -> None:
    checks = by_name(tmp_path)
    assert {name for name, check in checks.items() if check.status == "fail"} == set()
    assert checks["MuJoCo"].status == "ok" and {"Python", "system"} <= checks.keys()


@pytest.mark.thorough
@pytest.mark.process
def test_everything_that_is_not_ok_has_a_remedy(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 0))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("Memory", "available total")(2**20, 2**30))
    monkeypatch.setattr(machine_doctor.os, "sched_getaffinity", lambda pid: {0})
    checks = by_name(tmp_path)
    assert {name for name, check in checks.items() if check.status == "fail"} == {"memory", "disk", "shared memory"}
    assert checks["cores"].status == "warn"
    assert all(check.remedy for check in checks.values() if check.status != "ok")


@pytest.mark.thorough
@pytest.mark.process
def test_a_failed_check_is_the_exit_code(tmp_path, capsys) -> None:
    (tmp_path / "occupied").write_text("")
    assert doctor.run(DoctorConfig(run=RunConfig(root=str(tmp_path / "occupied" / "runs")))) == 1
    assert "run folder" in capsys.readouterr().out
    assert doctor.run(DoctorConfig(run=RunConfig(root=str(tmp_path)))) == 0


@pytest.mark.parametrize("error", [RunFailed("it died"), Unavailable("no driver"), ZeroDivisionError()])
def test_a_diagnosis_that_fails_is_a_failed_check(error: Exception, tmp_path, monkeypatch, capsys) -> None:
    def ask(kind: SimulatorKind, method: str) -> None:
        raise error

    monkeypatch.setattr(SimulatorKind, "ask", ask)
    monkeypatch.setattr(SimulatorKind, "spec", SimpleNamespace(tasks=(), cameras=(), action_dim=1))
    monkeypatch.setattr(Tabletop, "diagnose", None, raising=False)
    assert doctor.print_checks(doctor.examine_simulator(SimNode("tabletop")), "ready") == 1
    assert "tabletop: diagnosis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), "fail"), ((3, 11, 2), "ok"), ((3, 12, 1), "warn"), ((4, 0, 0), "warn")]
)
def test_a_python_that_is_not_tested_is_a_warning(
    version: tuple[int, int, int], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_doctor, "sys", SimpleNamespace(version_info=version))
    check = machine_doctor.check_python()
    assert check.status == status
    assert ("3.11" in check.remedy) == (status != "ok")


@pytest.mark.parametrize(("name", "status"), [("Linux", "ok"), ("Darwin", "warn"), ("Windows", "warn")])
def test_a_system_that_is_not_tested_is_a_warning(
    name: str, status: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    this = SimpleNamespace(system=lambda: name, platform=lambda: f"{name}-1.0")
    monkeypatch.setattr(machine_doctor, "platform", this)
    monkeypatch.setattr(doctor, "examine_machine", lambda root: [machine_doctor.check_system()])
    assert main(["doctor"]) == 0
    text = capfd.readouterr().out
    assert f"{name}-1.0" in text and ("tested: Linux" in text) == (status == "warn")
    assert main(["doctor", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["name"], row["status"], row["found"]) == ("system", status, f"{name}-1.0")


@pytest.mark.parametrize("module", ["mujoco", "torch"])
def test_a_package_that_does_not_load_is_named(module: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    check = machine_doctor.check_mujoco() if module == "mujoco" else machine_doctor.check_torch()
    assert check.status == "fail"
    assert module in check.remedy


def test_egl_is_optional(monkeypatch) -> None:
    def fails(*arguments, **keywords):
        return subprocess.CompletedProcess(arguments, 1, "", "ImportError: Cannot find EGL")

    monkeypatch.setattr(machine_doctor.subprocess, "run", fails)
    check = machine_doctor.check_egl()
    assert check.status == "warn"
    assert "Cannot find EGL" in check.found and "optional" in check.remedy


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """A domain in which nobody else is, and no long wait for them."""
    monkeypatch.setattr(inspection, "DISCOVERY_S", 0.1)
    with borrow_domain() as domain:
        environment = RosEnvironment(domain=domain, range="LOCALHOST", tag=secrets.token_hex(8))
        monkeypatch.setattr(robot_doctor, "open_transport", lambda kind, node: open_transport(kind, node, environment))
        yield


@pytest.mark.thorough
def test_a_robot_that_says_nothing_fails_by_name(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "robot=tabletop", "seconds=0.5", "policy=ws://127.0.0.1:9", "server.deadline=1"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no publisher" in said and "no subscriber" in said and "start its driver" in said
    assert "checks failed: /clock, /joint_states (joints)" in said and "policy" in said.rpartition("failed:")[2]


@pytest.mark.thorough
def test_a_robot_of_a_folder_of_configurations(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "robot").mkdir()
    write_robot(tmp_path, name="shelf").rename(tmp_path / "robot" / "shelf.yaml")
    assert main(["doctor", "robot=shelf", "seconds=0.5", "--config-dir", str(tmp_path)]) == 1
    assert "robot shelf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy=ws://127.0.0.1:9"], "add robot=<name or yaml>"),
        (["robot=tabletop", "sim=tabletop"], "leave out sim=tabletop, or robot="),
        (["robot=tabeltop"], "Did you mean 'tabletop'"),
        (["robot=tabletop", "robot.command_hz=50"], "robot.command_hz=50: copy the robot's YAML file"),
        (["robot=tabletop", "transport=ros1"], "transport: unknown value 'ros1'"),
    ],
)
def test_what_is_typed_wrongly_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) != 0
    assert said in capsys.readouterr().err
