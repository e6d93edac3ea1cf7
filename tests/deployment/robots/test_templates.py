"""The shipped robots, compared with facts of their public drivers that are repeated here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.config.option_files import find_config_folder, list_options
from embodied_rl.deployment.robots.mapping import ObservationMapping
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages

MESSAGES = Messages()
SO101 = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
UR = ("shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint", "wrist_1_joint", "wrist_2_joint", "wrist_3_joint")


@dataclass(frozen=True)
class Driver:
    """What a driver says of itself: its command, its joints in the command's order, lows, highs, largest speeds."""

    topic: str
    type_name: str
    joints: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    speed: tuple[float, ...]


DRIVERS = {
    "franka": Driver(
        "/fr3_arm_controller/joint_trajectory",
        "trajectory_msgs/msg/JointTrajectory",
        tuple(f"fr3_joint{number}" for number in range(1, 8)),
        (-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159),
        (2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159),
        (2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26),
    ),
    "ur5e": Driver(
        "/forward_position_controller/commands",
        "std_msgs/msg/Float64MultiArray",
        UR,
        tuple(np.radians([-360, -360, -180, -360, -360, -360])),
        tuple(np.radians([360, 360, 180, 360, 360, 360])),
        (np.pi,) * 6,
    ),
    "so101": Driver(
        "/follower/forward_controller/commands",
        "std_msgs/msg/Float64MultiArray",
        SO101,
        (-1.91986, -1.74533, -1.69, -1.65806, -2.74385, -0.174533),
        (1.91986, 1.74533, 1.69, 1.65806, 2.84121, 1.74533),
        (10.0,) * 6,
    ),
    "mobile_base": Driver(
        "/diff_drive_controller/cmd_vel",
        "geometry_msgs/msg/TwistStamped",
        ("linear.x", "angular.z"),
        (-np.inf,) * 2,
        (np.inf,) * 2,
        (0.26, 1.82),
    ),
}


def test_no_robot_ships_without_facts_of_its_driver() -> None:
    assert {option.name for option in list_options("robot")} == {*DRIVERS, "tabletop"}


def test_the_robot_of_the_documentation_loads(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "robots.md").read_text()
    (tmp_path / "my_arm.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    robot = load_robot(tmp_path / "my_arm.yaml")
    assert [entry.name for entry in robot.state] == ["elbow", "grip", "force"] and robot.state[2].terms[
        0
    ].scale == 0.001


@pytest.mark.parametrize("name", DRIVERS)
def test_a_template_says_that_it_never_ran_and_where_its_facts_come_from(name: str) -> None:
    text = (find_config_folder() / "robot" / f"{name}.yaml").read_text()
    assert load_robot(name).verified == "never run on hardware"
    assert "# Facts from: " in text and "ros-controls/ros2_controllers" in text


@pytest.mark.parametrize("name", DRIVERS)
def test_the_command_is_the_controller_s(name: str) -> None:
    robot, driver = load_robot(name), DRIVERS[name]
    targets = tuple(entry.target for entry in robot.actions)
    assert (robot.command.name, robot.command.type_name) == (driver.topic, driver.type_name)
    assert (robot.command.order or targets) == driver.joints


@pytest.mark.parametrize("name", DRIVERS)
def test_the_limits_lie_within_the_data_sheet_s(name: str) -> None:
    robot, driver = load_robot(name), DRIVERS[name]
    low, high, speed = (np.array(robot.limits.list_values(limit)) for limit in ("low", "high", "speed"))
    assert (low >= np.array(driver.low) - 1e-6).all() and (high <= np.array(driver.high) + 1e-6).all()
    assert (speed <= driver.speed).all() and np.isfinite(robot.limits.list_values("acceleration")).all()


@pytest.mark.parametrize("name", [name for name, driver in DRIVERS.items() if "." not in driver.joints[0]])
def test_joints_are_read_by_name_in_any_order(name: str) -> None:
    robot, joints = load_robot(name), DRIVERS[name].joints
    names = ["other_joint", *sorted(joints)]  # joint_state_broadcaster's order is none of the command's
    position = np.arange(len(names), dtype=float)
    message: Any = MESSAGES.make("sensor_msgs/msg/JointState", name=names, position=position)
    state = ObservationMapping(robot).read_state({"joints": message})
    assert state.tolist() == [names.index(joint) for joint in joints]
    assert [entry.measured for entry in robot.actions] == [entry.name for entry in robot.state]


def test_the_base_reads_its_odometry() -> None:
    odom: Any = MESSAGES.make("nav_msgs/msg/Odometry")
    odom.twist.twist.linear.x, odom.twist.twist.angular.z = 0.1, -0.5
    assert ObservationMapping(load_robot("mobile_base")).read_state({"odom": odom}).tolist() == [0.1, -0.5]
