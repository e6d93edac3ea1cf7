"""Convert a robot file to a contract of rosetta (github.com/iblnkn/rosetta, doc/reference/contract.md, August 2026).

The contract contains the whole robot file under `x-embodied-rl`, which rosetta ignores. If a contract cannot express
the robot's observations and commands, an error names the key.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import split_field
from embodied_rl.deployment.robots.reading import read_robot
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.transport.qos import QoS, find_profile
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import name_file

OURS = "x-embodied-rl"
"""Key of a contract that contains the robot file."""
IMAGE, STATE, ACTION = "observation.images.", "observation.state", "action"
JOINT_STATE, STAMPED_TWIST = "sensor_msgs/msg/JointState", "geometry_msgs/msg/TwistStamped"
STAMPED = (
    JOINT_STATE, "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Imu",
    "nav_msgs/msg/Odometry", STAMPED_TWIST, "trajectory_msgs/msg/JointTrajectory",
)  # fmt: skip
"""Types with a header, which have the timeline `header` in rosetta."""
DOTTED = ("sensor_msgs/msg/Imu", "nav_msgs/msg/Odometry", "geometry_msgs/msg/Twist", STAMPED_TWIST)
"""Types that rosetta reads by dotted paths."""
NOTE = """\
# A contract of rosetta. rosetta ignores x-embodied-rl, which embodied-rl reads: limits of speed, acceleration and jerk,
# boxes, rates, ages and the operator's topics.
"""
REMEDY = (
    "Change that in a copy of the file if the robot allows it, or use the robot file directly: embodied-rl record, "
    "collect from=<recording> and bridge read it."
)


class _Dumper(yaml.SafeDumper):
    """Dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_yaml(keys: Mapping[str, Any]) -> str:
    """Return keys as YAML in their order."""
    return yaml.dump(dict(keys), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write_contract(file: Path) -> str:
    """Return the contract of a robot file.

    Raises:
        UserError: the file is invalid, or a contract cannot express it; the message names the key.
    """
    with name_file(file):
        robot = read_robot(file)
    try:
        contract = make_contract(robot)
    except UserError as error:
        raise UserError(f"{file}: {error} {REMEDY}", code=error.code) from None
    return NOTE + write_yaml({**contract, OURS: read_strict_yaml(file)})


def make_contract(robot: RobotDescription) -> dict[str, Any]:
    """Return the sections of a robot's contract.

    Raises:
        UserError: a contract cannot express the robot.
    """
    if not robot.control_hz.is_integer():
        raise _inexpressible(
            f"control_hz={robot.control_hz:g}: fps must be an integer, such as "
            f"{max(1, math.floor(robot.control_hz))} or {math.ceil(robot.control_hz)}, if the policy allows it."
        )
    observations: dict[str, Any] = {}
    for camera in robot.cameras:
        where = f"cameras.{camera.name}"
        if camera.resize not in ("none", "nearest") or (camera.resize == "nearest" and camera.fit == "crop"):
            raise _inexpressible(
                f"{where}: resize: {camera.resize}, fit: {camera.fit} differ from rosetta, which has resize: nearest "
                "with fit: stretch, or resize: none."
            )
        applied = {"apply": [{"resize": [camera.height, camera.width]}]}
        observations[IMAGE + camera.name] = {**_write_source(robot, camera.topic, where), **applied}
    made: dict[str, Any] = {
        "robot_type": robot.name,
        "robot_interface": "ros2",
        "fps": int(robot.control_hz),
        "observations": {**observations, STATE: _write_state(robot)},
        "actions": {ACTION: _write_action(robot)},
    }
    if robot.operator.instruction:
        channel = {"topic": robot.operator.instruction, "type": "std_msgs/msg/String"}
        made["tasks"] = {"task": {"channel": {**channel, "qos": _write_qos(find_profile("latched").requested)}}}
    return made


def _inexpressible(message: str) -> UserError:
    return UserError(message, code="contract-not-expressible")


def _write_state(robot: RobotDescription) -> Any:
    sources: list[dict[str, Any]] = []
    topics: list[str] = []
    for entry in robot.state:
        where = f"state.{entry.name}"
        (term, *more) = entry.terms
        if more or term.scale != 1:
            raise _inexpressible(f"{where}.reads: contracts have no sums and factors: publish the result.")
        steps, type_name = split_field(term.field), robot.topics[term.topic].type_name
        if type_name == JOINT_STATE and len(steps) == 1 and steps[0][1] is not None:
            selected = f"{steps[0][0]}.{steps[0][1]}"
        elif type_name in DOTTED and all(place is None for _, place in steps):
            selected = term.field
        else:
            raise _inexpressible(f"{where}.reads: rosetta does not read {term.field} of {type_name}.")
        if not topics or topics[-1] != term.topic:
            if term.topic in topics:
                raise _inexpressible(f"{where}: the entries of {term.topic} must be adjacent.")
            topics.append(term.topic)
            sources.append({**_write_source(robot, term.topic, where), "select": []})
        sources[-1]["select"].append(selected)
    return sources[0] if len(sources) == 1 else sources


def _write_source(robot: RobotDescription, name: str, where: str) -> dict[str, Any]:
    topic = robot.topics[name]
    tolerance_ms = topic.max_age_s * 1e3
    if abs(tolerance_ms - round(tolerance_ms)) > 1e-6:
        raise _inexpressible(f"topics.{name}.max_age_s={topic.max_age_s:g} ({where}) must be whole milliseconds.")
    timeline = "header" if topic.type_name in STAMPED else "receive"
    return {
        "channel": {"topic": topic.name, "type": topic.type_name, "qos": _write_qos(find_profile(topic.qos).requested)},
        "align": {"strategy": "asof", "timeline": timeline, "tolerance_ms": round(tolerance_ms)},
    }


def _write_qos(qos: QoS) -> dict[str, Any]:
    return {"reliability": qos.reliability, "durability": qos.durability, "depth": qos.depth}


def _write_action(robot: RobotDescription) -> dict[str, Any]:
    if robot.commands:
        raise _inexpressible(f"commands.{next(iter(robot.commands))}: a contract has all actions on one topic.")
    command, targets = robot.command, tuple(entry.target for entry in robot.actions)
    if command.kind == "pose":
        raise _inexpressible("command.kind=pose: rosetta does not send geometry_msgs/msg/PoseStamped.")
    if command.order not in ((), targets):
        raise _inexpressible("command.order: a contract has actions in the order of the policy: reorder actions.")
    kinds = {entry.kind for entry in robot.actions}
    if "displacement" in kinds:
        name = next(entry.name for entry in robot.actions if entry.kind == "displacement")
        raise _inexpressible(f"actions.{name}.kind=displacement is sent as a velocity, which a contract lacks.")
    prefix = {"trajectory_msgs/msg/JointTrajectory": "position.", STAMPED_TWIST: "twist."}.get(command.type_name, "")
    if len(kinds) > 1:
        raise _inexpressible("actions: positions and velocities in one command have no common safety in a contract.")
    channel = {
        "topic": command.name,
        "type": command.type_name,
        "qos": _write_qos(find_profile(command.qos).offered),
        "safety": "hold" if kinds == {"position"} else "zeros",
    }
    timeline = "header" if command.type_name in STAMPED else "receive"
    return {
        "channel": channel,
        "align": {"strategy": "hold", "timeline": timeline},
        "select": [f"{prefix}{target}" for target in targets],
    }
