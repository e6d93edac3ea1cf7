"""What must hold of a robot's command: its type, its targets, and for trajectories the time that they cover."""

import math

from embodied_rl.deployment.robots.description import CommandTopic, RobotDescription
from embodied_rl.deployment.robots.keys import name_key
from embodied_rl.deployment.transport.names import check_topic, check_type
from embodied_rl.deployment.transport.qos import find_profile
from embodied_rl.interfaces.errors import UserError

TWIST_TYPES = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
ALLOWED_TYPES = {
    "forward": ("std_msgs/msg/Float64MultiArray",),
    "trajectory": ("trajectory_msgs/msg/JointTrajectory",),
    "twist": TWIST_TYPES,
    "pose": ("geometry_msgs/msg/PoseStamped",),
}
TWIST_TARGETS = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")
POSITION_TARGETS = tuple(f"position.{axis}" for axis in "xyz")
ORIENTATION_TARGETS = tuple(f"orientation.{angle}" for angle in ("roll", "pitch", "yaw"))
LEAST_HORIZON_S, LONGEST_HORIZON_S = 0.05, 0.5


def check_command(robot: RobotDescription) -> None:
    """Check the command's topic, type, targets and times.

    Raises:
        UserError: one of them cannot be; the message names the key.
    """
    command = robot.command
    checks = (("topic", check_topic, command.name), ("type", check_type, command.type_name))
    for key, check, value in (*checks, ("qos", find_profile, command.qos)):
        with name_key(f"command.{key}"):
            check(value)
    if command.type_name not in (allowed := ALLOWED_TYPES[command.kind]):
        raise UserError(
            f"command.type={command.type_name}: commands of kind {command.kind} are {' or '.join(allowed)}. Other "
            "types and actions, such as control_msgs, are not sent: choose a controller that takes one of these."
        )
    if not 0 <= command.timeout_s < math.inf:
        raise UserError(f"command.timeout_s={command.timeout_s:g} must be 0 (nobody says) or a time above it.")
    if 0 < command.timeout_s <= 1 / robot.command_hz:
        raise UserError(
            f"command.timeout_s={command.timeout_s:g}: the robot would stop between two commands, which come every "
            f"{1 / robot.command_hz:g} s. Raise command_hz, or the driver's timeout."
        )
    _check_targets(robot)
    if command.kind == "trajectory":
        _check_trajectory(robot)


def _check_targets(robot: RobotDescription) -> None:
    command, targets = robot.command, [entry.target for entry in robot.actions]
    for entry in robot.actions:
        if not entry.target or targets.count(entry.target) > 1:
            raise UserError(f"actions.{entry.name}.target={entry.target!r}: each action needs a target of its own.")
    if command.order and (command.kind != "forward" or sorted(command.order) != sorted(targets)):
        raise UserError(
            f"command.order={list(command.order)}: for kind forward it holds each target once, {', '.join(targets)}; "
            "for other kinds it is left out."
        )
    if command.kind == "twist":
        _allow_targets(robot, TWIST_TARGETS)
        _allow_kinds(robot, ("velocity", "displacement"), "a twist is a speed")
    if command.kind == "pose":
        _allow_targets(robot, (*POSITION_TARGETS, *ORIENTATION_TARGETS))
        _allow_kinds(robot, ("position",), "a pose is a position; for displacements use kind twist")
        _check_pose(command, targets)
    if command.kind == "trajectory":
        _allow_kinds(robot, ("position",), "a trajectory has positions; for speeds use kind forward")


def _allow_targets(robot: RobotDescription, known: tuple[str, ...]) -> None:
    for entry in robot.actions:
        if entry.target not in known:
            raise UserError(
                f"actions.{entry.name}.target={entry.target!r}: a {robot.command.kind} has {', '.join(known)}."
            )


def _allow_kinds(robot: RobotDescription, kinds: tuple[str, ...], why: str) -> None:
    for entry in robot.actions:
        if entry.kind not in kinds:
            raise UserError(
                f"actions.{entry.name}.kind={entry.kind} cannot be sent as command.kind={robot.command.kind}: {why}."
            )


def _check_pose(command: CommandTopic, targets: list[str]) -> None:
    if missing := [name for name in POSITION_TARGETS if name not in targets]:
        raise UserError(f"actions: a pose needs {missing[0]} as the target of an action.")
    turned = [name for name in ORIENTATION_TARGETS if name in targets]
    if turned and len(turned) < 3:
        raise UserError(f"actions: of the orientation {', '.join(turned)} alone are targets: it needs all three.")
    length = math.sqrt(sum(value * value for value in command.orientation))
    if not turned and (len(command.orientation) != 4 or not abs(length - 1) <= 1e-3):
        raise UserError(
            f"command.orientation={list(command.orientation)}: where no action turns the tool it is the fixed "
            "quaternion [x, y, z, w] of length 1, such as [1, 0, 0, 0]."
        )
    if turned and command.orientation:
        raise UserError("command.orientation: actions say the orientation already, leave it out.")


def _check_trajectory(robot: RobotDescription) -> None:
    horizon, period = robot.command.horizon_s, 1 / robot.command_hz
    if not LEAST_HORIZON_S <= horizon <= LONGEST_HORIZON_S:
        raise UserError(f"command.horizon_s={horizon:g} must be {LEAST_HORIZON_S} to {LONGEST_HORIZON_S} s.")
    if not period < horizon <= 4 * period:
        raise UserError(
            f"command.horizon_s={horizon:g}: a trajectory is replaced by the next one after {period:g} s, and may "
            f"reach to 4 times that, so that they hardly overlap: take command_hz={2 / horizon:g} or another horizon."
        )
    for limits in robot.entry_limits:
        if math.isfinite(limits.acceleration) and limits.speed > limits.acceleration * (horizon - period) * (1 + 1e-9):
            raise UserError(
                f"actions.{limits.name}.limits.speed={limits.speed:g}: at the end of a trajectory the joint brakes "
                f"from it within {horizon - period:g} s, and acceleration={limits.acceleration:g} allows "
                f"{limits.acceleration * (horizon - period):.3g}: lower speed, or raise command.horizon_s."
            )
