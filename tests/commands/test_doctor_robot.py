"""The doctor of a robot as a command: what it prints, and its exit code."""

import secrets
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.deployment.commands import doctor
from embodied_rl.deployment.robots import inspection
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.opening import open_transport
from tests.support.robots import write_robot
from tests.support.transports import borrow_domain


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """A domain in which nobody else is, and no long wait for them."""
    monkeypatch.setattr(inspection, "DISCOVERY_S", 0.1)
    with borrow_domain() as domain:
        environment = RosEnvironment(domain=domain, range="LOCALHOST", tag=secrets.token_hex(8))
        monkeypatch.setattr(doctor, "open_transport", lambda kind, node: open_transport(kind, node, environment))
        yield


def test_a_robot_that_says_nothing_fails_by_name(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "robot=tabletop", "seconds=0.5", "policy=ws://127.0.0.1:9", "server.deadline=1"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no publisher" in said and "no subscriber" in said and "start its driver" in said
    assert "checks failed: /clock, /joint_states (joints)" in said and "policy" in said.rpartition("failed:")[2]


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
