"""Checks of a robot's command topics: types, targets, timeouts, and horizons of trajectories."""

import math

from embodied_rl.deployment.robots.description import CommandTopic, RobotDescription
from embodied_rl.deployment.robots.keys import check_known, check_positive, name_command, name_key
from embodied_rl.deployment.transport.names import check_topic, check_type
from embodied_rl.deployment.transport.qos import find_profile
from embodied_rl.interfaces.errors import UserError

TWIST_TYPES = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
ALLOWED_TYPES = {
    "forward": ("std_msgs/msg/Float64MultiArray",),
    "trajectory": ("trajectory_msgs/msg/JointTrajectory",),
    "twist": TWIST_TYPES,
    "pose": ("geometry_msgs/msg/PoseStamped",),
    "gripper": ("control_msgs/msg/GripperCommand",),
}
TWIST_TARGETS = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")
POSITION_TARGETS = tuple(f"position.{axis}" for axis in "xyz")
ORIENTATION_TARGETS = tuple(f"orientation.{angle}" for angle in ("roll", "pitch", "yaw"))
GRIPPER_TARGETS = ("position",)
LEAST_HORIZON_S, LONGEST_HORIZON_S = 0.05, 0.5


def check_command(robot: RobotDescription) -> None:
    """Check the type, targets and times of each command topic.

    Raises:
        UserError: one of them is invalid; the message names the key.
    """
    if "" in robot.commands:
        raise UserError("commands: each topic needs a name.", code="command-name-missing")
    for entry in robot.actions:
        check_known(entry.command, robot.command_topics, f"actions.{entry.name}.command", "a topic of commands")
    for name, command in robot.command_topics.items():
        _TopicCheck(robot, name_command(name), command, robot.list_commanded(name)).check()


class _TopicCheck:
    """Checks of one command topic, with the key `where`, and of its action entries."""

    def __init__(self, robot: RobotDescription, where: str, command: CommandTopic, places: list[int]) -> None:
        self._robot, self._where, self._command = robot, where, command
        self._entries = [robot.actions[place] for place in places]
        self._limits = [robot.entry_limits[place] for place in places]
        self._targets = [entry.target for entry in self._entries]

    def check(self) -> None:
        """Run all checks; raises `UserError`."""
        command, where = self._command, self._where
        if "/action/" in command.type_name:
            raise UserError(
                f"{where}.type={command.type_name}: actions are not supported; use a topic of a controller that takes "
                "one, such as control_msgs/msg/GripperCommand with kind: gripper.",
                code="command-type-unsupported",
            )
        checks = (("topic", check_topic, command.name), ("type", check_type, command.type_name))
        for key, check, value in (*checks, ("qos", find_profile, command.qos)):
            with name_key(f"{where}.{key}"):
                check(value)
        if command.type_name not in (allowed := ALLOWED_TYPES[command.kind]):
            raise UserError(
                f"{where}.type={command.type_name}: commands of kind {command.kind} are {' or '.join(allowed)}. Other "
                "types are not sent: choose a controller that takes one of these.",
                code="command-type-unsupported",
            )
        self._check_timeout()
        self._check_targets()
        if command.kind == "trajectory":
            self._check_trajectory()

    def _check_timeout(self) -> None:
        timeout_s, period_s = self._command.timeout_s, 1 / self._robot.command_hz
        if not 0 <= timeout_s < math.inf:
            raise UserError(
                f"{self._where}.timeout_s={timeout_s:g} must be 0 (unknown) or more.",
                code="value-out-of-range",
            )
        if 0 < timeout_s <= period_s:
            raise UserError(
                f"{self._where}.timeout_s={timeout_s:g}: the robot would stop between two commands, which come every "
                f"{period_s:g} s. Raise command_hz, or the driver's timeout.",
                code="command-timeout-too-short",
            )

    def _check_targets(self) -> None:
        command, targets = self._command, self._targets
        if not targets:
            raise UserError(
                f"{self._where}: no action uses this topic: name it in actions.<entry>.command, or leave it out.",
                code="command-without-actions",
            )
        for entry in self._entries:
            if not entry.target or targets.count(entry.target) > 1:
                raise UserError(
                    f"actions.{entry.name}.target={entry.target!r}: each action needs a different target.",
                    code="action-target-invalid",
                )
        if command.order and (command.kind != "forward" or sorted(command.order) != sorted(targets)):
            raise UserError(
                f"{self._where}.order={list(command.order)}: for kind forward it holds each target once, "
                f"{', '.join(targets)}; for other kinds it is left out.",
                code="command-order-invalid",
            )
        if command.kind == "twist":
            self._allow_targets(TWIST_TARGETS)
            self._allow_kinds(("velocity", "displacement"), "a twist is a speed")
        if command.kind == "pose":
            self._allow_targets((*POSITION_TARGETS, *ORIENTATION_TARGETS))
            self._allow_kinds(("position",), "a pose is a position; for displacements use kind twist")
            self._check_pose()
        if command.kind == "trajectory":
            self._allow_kinds(("position",), "a trajectory has positions; for speeds use kind forward")
        self._check_gripper()

    def _check_gripper(self) -> None:
        effort = self._command.max_effort
        if self._command.kind == "gripper":
            self._allow_targets(GRIPPER_TARGETS)
            self._allow_kinds(("position",), "a gripper takes a position")
            check_positive(effort, f"{self._where}.max_effort")
        elif effort:
            raise UserError(
                f"{self._where}.max_effort={effort:g}: kind {self._command.kind} does not use it, leave it out.",
                code="key-unused",
            )

    def _allow_targets(self, known: tuple[str, ...]) -> None:
        for entry in self._entries:
            if entry.target not in known:
                raise UserError(
                    f"actions.{entry.name}.target={entry.target!r}: a {self._command.kind} has {', '.join(known)}.",
                    code="action-target-invalid",
                )

    def _allow_kinds(self, kinds: tuple[str, ...], why: str) -> None:
        for entry in self._entries:
            if entry.kind not in kinds:
                raise UserError(
                    f"actions.{entry.name}.kind={entry.kind} cannot be sent as {self._where}.kind="
                    f"{self._command.kind}: {why}.",
                    code="action-kind-unsupported",
                )

    def _check_pose(self) -> None:
        command, targets = self._command, self._targets
        if missing := [name for name in POSITION_TARGETS if name not in targets]:
            raise UserError(
                f"actions: a pose needs {missing[0]} as the target of an action.", code="action-target-missing"
            )
        turned = [name for name in ORIENTATION_TARGETS if name in targets]
        if turned and len(turned) < 3:
            raise UserError(
                f"actions: of the orientation {', '.join(turned)} alone are targets: it needs all three.",
                code="action-target-missing",
            )
        length = math.sqrt(sum(value * value for value in command.orientation))
        if not turned and (len(command.orientation) != 4 or not abs(length - 1) <= 1e-3):
            raise UserError(
                f"{self._where}.orientation={list(command.orientation)}: without orientation targets it is the "
                "fixed quaternion [x, y, z, w] of length 1, such as [1, 0, 0, 0].",
                code="orientation-invalid",
            )
        if turned and command.orientation:
            raise UserError(f"{self._where}.orientation: actions set the orientation, leave it out.", code="key-unused")

    def _check_trajectory(self) -> None:
        horizon, period = self._command.horizon_s, 1 / self._robot.command_hz
        if not LEAST_HORIZON_S <= horizon <= LONGEST_HORIZON_S:
            raise UserError(
                f"{self._where}.horizon_s={horizon:g} must be {LEAST_HORIZON_S} to {LONGEST_HORIZON_S} s.",
                code="value-out-of-range",
            )
        if not period < horizon <= 4 * period:
            raise UserError(
                f"{self._where}.horizon_s={horizon:g}: a trajectory is replaced by the next one after {period:g} s, "
                "and may reach to 4 times that, so that they hardly overlap: take command_hz="
                f"{2 / horizon:g} or another horizon.",
                code="trajectory-horizon-invalid",
            )
        for limits in self._limits:
            if math.isfinite(limits.acceleration) and limits.speed > limits.acceleration * (horizon - period) * (
                1 + 1e-9
            ):
                raise UserError(
                    f"actions.{limits.name}.limits.speed={limits.speed:g}: at the end of a trajectory the joint brakes "
                    f"from it within {horizon - period:g} s, and acceleration={limits.acceleration:g} allows "
                    f"{limits.acceleration * (horizon - period):.3g}: lower speed, or raise {self._where}.horizon_s.",
                    code="trajectory-speed-too-high",
                )
