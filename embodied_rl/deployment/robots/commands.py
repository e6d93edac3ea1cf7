"""Conversion between commands and messages.

Shapes: `A` action entries, in the robot's order; positions, or speeds for velocities and displacements.
"""

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.robots.command_checks import TWIST_TARGETS
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.deployment.transport.messages import Messages

Command = NDArray[np.float64]

STAMPED = "geometry_msgs/msg/TwistStamped"


class CommandMapping:
    """Converts commands to messages of one of the robot's command topics, and back.

    Args:
        robot: its description. messages: the types of messages, those of the transport.
        name: of the topic in `robot.commands`; empty: the main one.
    """

    def __init__(self, robot: RobotDescription, messages: Messages, name: str = "") -> None:
        self.robot, self._messages, self._topic = robot, messages, robot.command_topics[name]
        self.type_name = self._topic.type_name
        self._entries = robot.list_commanded(name)
        self._targets = tuple(robot.actions[place].target for place in self._entries)
        order = self._topic.order or self._targets
        self._places = [self._targets.index(target) for target in order]  # message entry → action entry
        self._kinds = {name: messages.find_class(name) for name in _NEEDED[self._topic.kind]}
        self._low = np.array(robot.limits.list_values("low"))[self._entries]
        self._high = np.array(robot.limits.list_values("high"))[self._entries]

    def encode(self, command: Command, previous: Command | None = None, stamp_ns: int = 0) -> Any:
        """Return the message of a command, with the entries of this topic.

        Args:
            command: [A]. previous: [A], command of the previous tick, which gives the speeds of a trajectory; None: the
                robot is at rest. stamp_ns: of a stamped message.

        Raises:
            ValueError: wrong shape, or a number is not finite.
        """
        if command.shape != (count := len(self.robot.actions),) or not np.isfinite(command).all():
            raise ValueError(f"command {command} is not a command of {count} finite numbers.")
        command = command[self._entries]
        match self._topic.kind:
            case "forward":
                return self._encode_forward(command)
            case "trajectory":
                return self._encode_trajectory(command, command if previous is None else previous[self._entries])
            case "twist":
                return self._encode_twist(command, stamp_ns)
            case "pose":
                return self._encode_pose(command, stamp_ns)
            case "gripper":
                return self._kinds[self.type_name](position=float(command[0]), max_effort=self._topic.max_effort)

    def decode(self, message: Any) -> Command:
        """Return the command of a message, float64 [A]; NaN for entries of other topics.

        Raises:
            UnusableMessageError: its entries are not this robot's.
        """
        match self._topic.kind:
            case "forward":
                found = self._decode_forward(message)
            case "trajectory":
                found = self._decode_trajectory(message)
            case "twist":
                found = self._decode_twist(message)
            case "pose":
                found = self._decode_pose(message)
            case "gripper":
                found = np.array([message.position])
        if not np.isfinite(found).all():
            raise self._refuse(f"a number of the command is not finite: {found}")
        command = np.full(len(self.robot.actions), np.nan)
        command[self._entries] = found
        return command

    # -- std_msgs/msg/Float64MultiArray ---------------------------------------------------------------------------

    def _encode_forward(self, command: Command) -> Any:
        layout = self._kinds["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        return self._kinds[self.type_name](layout=layout, data=command[self._places])

    def _decode_forward(self, message: Any) -> Command:
        if len(message.data) != len(self._places):
            raise self._refuse(f"{len(message.data)} numbers came, and the robot takes {len(self._places)}")
        command = np.empty(len(self._places))
        command[self._places] = message.data
        return command

    # -- trajectory_msgs/msg/JointTrajectory ------------------------------------------------------------------------

    def _encode_trajectory(self, command: Command, previous: Command) -> Any:
        """Return a trajectory of two points: at the time of the next message, and at rest if no message follows.

        With stamp 0 it starts on arrival. The last speed is 0, as ros2_controllers requires by default.
        """
        period = 1 / self.robot.command_hz
        tail = self._topic.horizon_s - period
        speed = (command - previous) / period
        rest = np.clip(command + speed * tail / 2, self._low, self._high)
        points = [self._make_point(command, speed, period), self._make_point(rest, np.zeros_like(speed), period + tail)]
        header = self._make_header(0)
        return self._kinds[self.type_name](header=header, joint_names=list(self._targets), points=points)

    def _make_point(self, positions: Command, velocities: Command, at_s: float) -> Any:
        sec, nanosec = divmod(round(at_s * 1e9), 1_000_000_000)
        return self._kinds["trajectory_msgs/msg/JointTrajectoryPoint"](
            positions=positions.copy(),
            velocities=velocities,
            accelerations=np.empty(0),
            effort=np.empty(0),
            time_from_start=self._kinds["builtin_interfaces/msg/Duration"](sec=sec, nanosec=nanosec),
        )

    def _decode_trajectory(self, message: Any) -> Command:
        names = list(message.joint_names)
        if sorted(names) != sorted(self._targets):
            raise self._refuse(
                f"it commands the joints {', '.join(names)}, and the robot has {', '.join(self._targets)}"
            )
        if not message.points or len(message.points[0].positions) != len(names):
            raise self._refuse("its first point has not a position for each joint")
        return np.array([message.points[0].positions[names.index(target)] for target in self._targets], np.float64)

    # -- geometry_msgs/msg/Twist, TwistStamped ------------------------------------------------------------------------

    def _encode_twist(self, command: Command, stamp_ns: int) -> Any:
        said = dict(zip(self._targets, command.tolist(), strict=True))
        vector, twist = self._kinds["geometry_msgs/msg/Vector3"], self._kinds["geometry_msgs/msg/Twist"]
        parts = {
            part: vector(**{axis: said.get(f"{part}.{axis}", 0.0) for axis in "xyz"}) for part in ("linear", "angular")
        }
        made = twist(**parts)
        if self.type_name != STAMPED:
            return made
        return self._kinds[STAMPED](header=self._make_header(stamp_ns), twist=made)

    def _decode_twist(self, message: Any) -> Command:
        twist = message.twist if self.type_name == STAMPED else message
        said = {target: operator.attrgetter(target)(twist) for target in TWIST_TARGETS}
        for target, value in said.items():
            if value != 0 and target not in self._targets:
                raise self._refuse(f"{target}={value:g} moves what no action of the robot moves")
        return np.array([said[target] for target in self._targets], np.float64)

    # -- geometry_msgs/msg/PoseStamped ------------------------------------------------------------------------------

    def _encode_pose(self, command: Command, stamp_ns: int) -> Any:
        said = dict(zip(self._targets, command.tolist(), strict=True))
        place = self._kinds["geometry_msgs/msg/Point"](*(said[f"position.{axis}"] for axis in "xyz"))
        fixed = self._topic.orientation
        turned = fixed or make_quaternion(*(said[f"orientation.{angle}"] for angle in ("roll", "pitch", "yaw")))
        pose = self._kinds["geometry_msgs/msg/Pose"](
            position=place, orientation=self._kinds["geometry_msgs/msg/Quaternion"](*map(float, turned))
        )
        return self._kinds[self.type_name](header=self._make_header(stamp_ns), pose=pose)

    def _decode_pose(self, message: Any) -> Command:
        place, turned = message.pose.position, message.pose.orientation
        quaternion = (turned.x, turned.y, turned.z, turned.w)
        if not abs(math.hypot(*quaternion) - 1) <= 1e-3:  # also where one is no number
            raise self._refuse(f"its orientation {quaternion} is no quaternion of length 1")
        angles = find_angles(*quaternion)
        said = {f"position.{axis}": getattr(place, axis) for axis in "xyz"}
        said |= dict(zip((f"orientation.{angle}" for angle in ("roll", "pitch", "yaw")), angles, strict=True))
        return np.array([said[target] for target in self._targets], np.float64)

    def _make_header(self, stamp_ns: int) -> Any:
        sec, nanosec = divmod(stamp_ns, 1_000_000_000)
        stamp = self._kinds["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
        return self._kinds["std_msgs/msg/Header"](stamp=stamp, frame_id=self._topic.frame)

    def _refuse(self, problem: str) -> UnusableMessageError:
        return UnusableMessageError(f"{self._topic.name}: {problem}.")


_HEADER = ("std_msgs/msg/Header", "builtin_interfaces/msg/Time")
_NEEDED = {
    "forward": ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/MultiArrayLayout"),
    "trajectory": (
        "trajectory_msgs/msg/JointTrajectory",
        "trajectory_msgs/msg/JointTrajectoryPoint",
        "builtin_interfaces/msg/Duration",
        *_HEADER,
    ),
    "twist": ("geometry_msgs/msg/Twist", "geometry_msgs/msg/Vector3", STAMPED, *_HEADER),
    "pose": (
        "geometry_msgs/msg/PoseStamped",
        "geometry_msgs/msg/Pose",
        "geometry_msgs/msg/Point",
        "geometry_msgs/msg/Quaternion",
        *_HEADER,
    ),
    "gripper": ("control_msgs/msg/GripperCommand",),
}


def make_quaternion(roll: float, pitch: float, yaw: float) -> tuple[float, float, float, float]:
    """Return the unit quaternion (x, y, z, w) of angles in radians about the fixed axes x, y, z (REP 103)."""
    sr, cr = math.sin(roll / 2), math.cos(roll / 2)
    sp, cp = math.sin(pitch / 2), math.cos(pitch / 2)
    sy, cy = math.sin(yaw / 2), math.cos(yaw / 2)
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )


def find_angles(x: float, y: float, z: float, w: float) -> tuple[float, float, float]:
    """Return roll, pitch and yaw in radians of a unit quaternion; pitch within ±π/2."""
    roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return roll, pitch, yaw
