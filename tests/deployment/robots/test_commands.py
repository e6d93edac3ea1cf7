"""Commands of each kind survive the conversion to ROS 2 messages and back; others are refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.robots.commands import CommandMapping, find_angles, make_quaternion
from embodied_rl.deployment.robots.consistency import check_consistency
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from tests.support.robots import change_robot

MESSAGES = Messages()
NAMES = ("tabletop", "franka", "ur5e", "so101", "mobile_base")
ANGLES = ("roll", "pitch", "yaw")


def pose_robot(folder: Path, turning: bool = False) -> RobotDescription:
    """A pose for three positions, or with three angles besides."""
    limits = {"low": -3, "high": 3, "speed": 1, "acceleration": 1, "jerk": 1}
    targets = [f"position.{axis}" for axis in "xyz"] + [f"orientation.{angle}" for angle in ANGLES if turning]
    common = {"unit": "m", "kind": "position", "low": -1, "high": 1, "limits": limits}
    actions = {target.replace(".", "_"): common | {"target": target} for target in targets}
    command = {"topic": "/pose", "kind": "pose", "frame": "base"}
    command |= {} if turning else {"orientation": [1.0, 0.0, 0.0, 0.0]}
    return change_robot(folder, actions=actions, command=command, operator={})


def draw(robot: RobotDescription, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, len(robot.actions))


def send(mapping: CommandMapping, command: Any, **others: Any) -> Any:
    """What arrives at the robot, through bytes."""
    message = mapping.encode(command, **others)
    return MESSAGES.decode(mapping.type_name, MESSAGES.encode(mapping.type_name, message))


def test_a_non_finite_orientation_is_refused(tmp_path: Path) -> None:
    robot = pose_robot(tmp_path)
    turned = replace(robot, command=replace(robot.command, orientation=(math.nan, 0.0, 0.0, 0.0)))
    with pytest.raises(UserError, match=r"command.orientation=\[nan, 0.0, 0.0, 0.0\]"):
        check_consistency(turned)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_survives_serialisation(name: str) -> None:
    mapping = CommandMapping(load_robot(name), MESSAGES)
    for seed in range(5):
        command = draw(mapping.robot, seed)
        assert np.array_equal(mapping.decode(send(mapping, command, previous=command * 0.99)), command)


@pytest.mark.parametrize("turning", [False, True])
def test_a_pose_survives_serialisation(tmp_path: Path, turning: bool) -> None:
    mapping = CommandMapping(pose_robot(tmp_path, turning), MESSAGES)
    command = draw(mapping.robot)
    message = send(mapping, command, stamp_ns=3_000_000_004)
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (3, 4, "base")
    assert mapping.decode(message) == pytest.approx(command, abs=1e-12)
    if not turning:
        assert message.pose.orientation.x == 1.0


def test_forward_follows_the_controller_s_order(tmp_path: Path) -> None:
    mapping = CommandMapping(change_robot(tmp_path, command__order=["gripper", "z", "x", "y"]), MESSAGES)
    command = np.array([1.0, 2.0, 3.0, 4.0])
    assert send(mapping, command).data.tolist() == [4.0, 3.0, 1.0, 2.0]
    assert np.array_equal(mapping.decode(send(mapping, command)), command)


def test_a_trajectory_ends_at_rest_if_no_other_follows() -> None:
    robot = load_robot("franka")
    mapping = CommandMapping(robot, MESSAGES)
    previous = np.array([limits.low + 0.5 for limits in robot.entry_limits])
    command = previous + 0.02
    message = send(mapping, command, previous=previous)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (0, 0)
    assert message.joint_names == [f"fr3_joint{number}" for number in range(1, 8)]
    moving, resting = message.points
    assert [point.time_from_start.nanosec for point in message.points] == [50_000_000, 100_000_000]
    assert moving.positions == pytest.approx(command) and moving.velocities == pytest.approx(0.4)
    assert resting.positions == pytest.approx(command + 0.01) and not resting.velocities.any()


def test_a_trajectory_never_rests_outside_of_its_limits() -> None:
    robot = load_robot("franka")
    high = np.array([limits.high for limits in robot.entry_limits])
    message = send(CommandMapping(robot, MESSAGES), high - 0.001, previous=high - 0.021)
    assert (message.points[1].positions <= high).all()


def test_a_trajectory_from_rest_stands_still() -> None:
    mapping = CommandMapping(load_robot("franka"), MESSAGES)
    points = send(mapping, draw(mapping.robot)).points
    assert not points[0].velocities.any() and np.array_equal(points[0].positions, points[1].positions)


def test_contents_of_a_stamped_twist() -> None:
    message = send(CommandMapping(load_robot("mobile_base"), MESSAGES), np.array([0.2, -1.0]), stamp_ns=7_000_000_001)
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (7, 1, "base_link")
    twist = message.twist
    assert [getattr(twist.linear, axis) for axis in "xyz"] == [0.2, 0, 0]
    assert [getattr(twist.angular, axis) for axis in "xyz"] == [0, 0, -1.0]


def test_a_plain_twist_has_no_header(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, "mobile_base", command__type="geometry_msgs/msg/Twist")
    mapping = CommandMapping(robot, MESSAGES)
    command = np.array([0.2, -1.0])
    assert not hasattr(send(mapping, command), "header") and np.array_equal(
        mapping.decode(send(mapping, command)), command
    )


def test_each_topic_has_only_its_entries(tmp_path: Path) -> None:
    hand = {"topic": "/hand", "kind": "gripper", "max_effort": 12.5}
    changes = {"commands": {"hand": hand}, "actions__joint4__command": "hand", "actions__joint4__target": "position"}
    robot = change_robot(tmp_path, "franka", **changes)
    command = draw(robot)
    arm, hand = CommandMapping(robot, MESSAGES), CommandMapping(robot, MESSAGES, "hand")
    assert send(arm, command, previous=command).joint_names == [f"fr3_joint{number}" for number in (1, 2, 3, 5, 6, 7)]
    message = send(hand, command)
    assert (message.position, message.max_effort) == (command[3], 12.5)
    found = arm.decode(send(arm, command))
    assert np.isnan(found[3]) and np.array_equal(np.delete(found, 3), np.delete(command, 3))
    found = hand.decode(message)
    assert found[3] == command[3] and np.isnan(found).sum() == 6
    with pytest.raises(UnusableMessageError, match="/hand"):
        hand.decode(change(message, "position", math.nan))
    with pytest.raises(ValueError, match="finite"):
        hand.encode(command[3:4])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_commands_are_not_sent(name: str, value: float) -> None:
    mapping = CommandMapping(load_robot(name), MESSAGES)
    command = draw(mapping.robot)
    command[-1] = value
    with pytest.raises(ValueError, match="finite"):
        mapping.encode(command)
    with pytest.raises(ValueError, match="finite"):
        mapping.encode(np.zeros(len(command) + 1))


def change(message: Any, path: str, value: Any) -> Any:
    *way, last = path.split(".")
    node = message
    for part in way:
        node = node[int(part)] if part.isdigit() else getattr(node, part)
    setattr(node, last, value)
    return message


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        ("tabletop", "data", np.zeros(3), "/command: 3 numbers came, and the robot takes 4"),
        ("tabletop", "data", np.array([0, 0, math.nan, 0]), "is not finite"),
        ("franka", "joint_names", ["a", "b"], "it commands the joints a, b, and the robot has fr3_joint1"),
        ("franka", "points", [], "its first point has not a position for each joint"),
        ("franka", "points.0.positions", np.zeros(6), "its first point has not a position for each joint"),
        ("mobile_base", "twist.linear.y", 0.1, "linear.y=0.1 moves what no action of the robot moves"),
        ("mobile_base", "twist.angular.z", math.inf, "is not finite"),
    ],
)
def test_a_command_that_the_robot_does_not_have_is_refused(name: str, path: str, value: Any, words: str) -> None:
    mapping = CommandMapping(load_robot(name), MESSAGES)
    with pytest.raises(UnusableMessageError, match=words):
        mapping.decode(change(send(mapping, draw(mapping.robot)), path, value))


def test_a_joint_of_a_trajectory_is_found_by_its_name() -> None:
    mapping = CommandMapping(load_robot("franka"), MESSAGES)
    command = draw(mapping.robot)
    message = send(mapping, command)
    message.joint_names = message.joint_names[::-1]
    assert np.array_equal(mapping.decode(message), command[::-1])


@pytest.mark.parametrize("turning", [True, False])
@pytest.mark.parametrize("value", [3.0, math.nan, math.inf])
def test_a_quaternion_of_another_length_is_refused(tmp_path: Path, value: float, turning: bool) -> None:
    mapping = CommandMapping(pose_robot(tmp_path, turning), MESSAGES)
    with pytest.raises(UnusableMessageError, match="no quaternion of length 1"):
        mapping.decode(change(send(mapping, draw(mapping.robot)), "pose.orientation.w", value))


@pytest.mark.parametrize(
    ("angles", "quaternion"),
    [
        ((0, 0, 0), (0, 0, 0, 1)),
        ((math.pi / 2, 0, 0), (math.sqrt(0.5), 0, 0, math.sqrt(0.5))),
        ((0, math.pi / 2, 0), (0, math.sqrt(0.5), 0, math.sqrt(0.5))),
        ((0, 0, math.pi / 2), (0, 0, math.sqrt(0.5), math.sqrt(0.5))),
        ((math.pi / 2, 0, math.pi / 2), (0.5, 0.5, 0.5, 0.5)),  # about fixed axes: first x, then z
    ],
)
def test_angles_are_about_fixed_axes(angles: tuple[float, ...], quaternion: tuple[float, ...]) -> None:
    assert make_quaternion(*angles) == pytest.approx(quaternion)


def test_angles_survive_the_conversion() -> None:
    for roll, pitch, yaw in np.random.default_rng(1).uniform([-3.1, -1.5, -3.1], [3.1, 1.5, 3.1], (200, 3)):
        assert find_angles(*make_quaternion(roll, pitch, yaw)) == pytest.approx((roll, pitch, yaw), abs=1e-9)
