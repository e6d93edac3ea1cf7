"""Contracts of rosetta as a command: files there and back, and what is refused."""

from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.deployment.robots.reading import read_robot
from tests.support.robots import write_robot


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    return write_robot(tmp_path, "franka", cameras__wrist__resize="nearest", cameras__wrist__fit="stretch")


def test_a_file_goes_there_and_back(tmp_path: Path, robot: Path) -> None:
    contract, again = tmp_path / "contract.yaml", tmp_path / "again.yaml"
    assert main(["contract", f"robot={robot}", f"out={contract}"]) == 0
    assert main(["contract", f"contract={contract}", f"out={again}"]) == 0
    assert read_robot(again) == read_robot(robot)


def test_a_file_that_is_there_stays(robot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = robot.read_text()
    assert main(["contract", f"robot={robot}", f"out={robot}"]) != 0
    assert robot.read_text() == before and "is there already" in capsys.readouterr().err
    assert main(["contract", f"robot={robot}", f"out={robot}", "replace=true"]) == 0
    assert robot.read_text() != before


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ([], ["[keys-contradict]"]),
        (["robot=ur5e", "contract=x.yaml"], ["[keys-contradict]"]),
        (["contract=nowhere.yaml"], ["nowhere.yaml"]),
        (["robot=tabletop"], ["[contract-not-expressible]", "control_hz=12.5", "12 or 13", "collect from=<recording>"]),
        (["robot=tabletop", "--dry-run"], ["[contract-not-expressible]", "control_hz=12.5"]),
    ],
)
def test_errors_are_reported(words: list[str], data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contract", *words]) != 0
    said = capsys.readouterr().err
    assert all(each in said for each in data)


def test_what_a_contract_does_not_say_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(
        "robot_type: base\nrobot_interface: ros2\nfps: 10\nobservations:\n  observation.state:\n"
        "    channel: {topic: /odom, type: nav_msgs/msg/Odometry}\n    align: {strategy: hold, timeline: header}\n"
        "    select: [twist.twist.linear.x]\nactions:\n  action:\n"
        "    channel: {topic: /cmd_vel, type: geometry_msgs/msg/Twist}\n"
        "    align: {strategy: hold, timeline: receive}\n    select: [linear.x]\n"
    )
    assert main(["contract", f"contract={file}"]) == 0
    said = capsys.readouterr().out
    assert "keys are ?" in said and "actions.linear.x.limits.speed" in said and "command_hz" in said


def test_a_place_that_cannot_be_written_is_said(
    tmp_path: Path, robot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contract", f"robot={robot}", f"out={tmp_path}", "replace=true"]) != 0
    said = capsys.readouterr().err
    assert f"Cannot write {tmp_path} (Is a directory)" in said and "Set out to" in said
    assert main(["contract", f"robot={robot}", f"out={robot / 'contract.yaml'}"]) != 0
    assert "out=" in capsys.readouterr().err
    assert main(["contract", f"robot={robot}", f"out={tmp_path / 'new' / 'contract.yaml'}"]) == 0
