"""Conversion between commands and messages, and their publication.

Shapes: `A` action entries, in the robot's order; positions, or speeds for velocities and displacements.
"""

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.tick import Tick
from embodied_rl.deployment.robots.consistency import ORIENTATION_TARGETS, TWIST_TARGETS
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import TransportError

Command = NDArray[np.float64]
STAMPED = "geometry_msgs/msg/TwistStamped"


class CommandMapping:
    """Converts commands to messages of one topic of `robot.command_topics`, and back."""

    def __init__(self, robot: RobotDescription, messages: Messages, name: str = "") -> None:
        self.robot, self._messages, self._topic = robot, messages, robot.command_topics[name]
        self.type_name = self._topic.type_name
        messages.find_class(self.type_name)
        self._entries = robot.list_commanded(name)
        self._targets = tuple(robot.actions[place].target for place in self._entries)
        order = self._topic.order or self._targets
        self._places = [self._targets.index(target) for target in order]  # message entry → action entry
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
        numbers = dict(zip(self._targets, command.tolist(), strict=True))
        header = {"stamp": _split_time(stamp_ns), "frame_id": self._topic.frame}
        match self._topic.kind:
            case "forward":
                fields = {"data": command[self._places]}
            case "trajectory":
                points = self._make_points(command, command if previous is None else previous[self._entries])
                header["stamp"] = _split_time(0)  # it starts on arrival
                fields = {"header": header, "joint_names": self._targets, "points": points}
            case "twist":
                parts = ("linear", "angular")
                twist = {part: {axis: numbers.get(f"{part}.{axis}", 0.0) for axis in "xyz"} for part in parts}
                fields = {"header": header, "twist": twist} if self.type_name == STAMPED else twist
            case "pose":
                fixed = self._topic.orientation
                turned = fixed or make_quaternion(*(numbers[target] for target in ORIENTATION_TARGETS))
                position = {axis: numbers[f"position.{axis}"] for axis in "xyz"}
                orientation = dict(zip("xyzw", map(float, turned), strict=True))
                fields = {"header": header, "pose": {"position": position, "orientation": orientation}}
            case "gripper":
                fields = {"position": numbers["position"], "max_effort": self._topic.max_effort}
        return self._messages.make(self.type_name, **fields)

    def _make_points(self, command: Command, previous: Command) -> list[dict[str, Any]]:
        """Return a trajectory of two points: at the time of the next message, and at rest if no message follows.

        The last speed is 0, as ros2_controllers requires by default.
        """
        period = 1 / self.robot.command_hz
        tail = self._topic.horizon_s - period
        speed = (command - previous) / period
        rest = np.clip(command + speed * tail / 2, self._low, self._high)
        points = ((command, speed, period), (rest, np.zeros_like(speed), period + tail))
        return [
            {"positions": positions, "velocities": speeds, "time_from_start": _split_time(round(at_s * 1e9))}
            for positions, speeds, at_s in points
        ]

    def decode(self, message: Any) -> Command:
        """Return the command of a message, [A], NaN for entries of other topics; raises UnusableMessageError."""
        numbers = {}
        match self._topic.kind:
            case "forward":
                if len(message.data) != len(self._places):
                    raise self._refuse(f"{len(message.data)} numbers came, and the robot takes {len(self._places)}")
                numbers = {self._targets[place]: each for place, each in zip(self._places, message.data, strict=True)}
            case "trajectory":
                numbers = self._read_first_point(message)
            case "twist":
                twist = message.twist if self.type_name == STAMPED else message
                numbers = {target: operator.attrgetter(target)(twist) for target in TWIST_TARGETS}
                for target, value in numbers.items():
                    if value != 0 and target not in self._targets:
                        raise self._refuse(f"{target}={value:g} moves what no action of the robot moves")
            case "pose":
                place, turned = message.pose.position, message.pose.orientation
                quaternion = (turned.x, turned.y, turned.z, turned.w)
                if not abs(math.hypot(*quaternion) - 1) <= 1e-3:  # also where one is no number
                    raise self._refuse(f"its orientation {quaternion} is no quaternion of length 1")
                numbers = dict(zip(ORIENTATION_TARGETS, find_angles(*quaternion), strict=True))
                numbers |= {f"position.{axis}": getattr(place, axis) for axis in "xyz"}
            case "gripper":
                numbers = {"position": message.position}
        found = np.array([numbers[target] for target in self._targets], np.float64)
        if not np.isfinite(found).all():
            raise self._refuse(f"a number of the command is not finite: {found}")
        command = np.full(len(self.robot.actions), np.nan)
        command[self._entries] = found
        return command

    def _read_first_point(self, message: Any) -> dict[str, float]:
        names, known = list(message.joint_names), ", ".join(self._targets)
        if sorted(names) != sorted(self._targets):
            raise self._refuse(f"it commands the joints {', '.join(names)}, and the robot has {known}")
        if not message.points or len(message.points[0].positions) != len(names):
            raise self._refuse("its first point has not a position for each joint")
        return dict(zip(names, message.points[0].positions, strict=True))

    def _refuse(self, problem: str) -> UnusableMessageError:
        return UnusableMessageError(f"{self._topic.name}: {problem}.")


def _split_time(ns: int) -> dict[str, int]:
    return dict(zip(("sec", "nanosec"), divmod(ns, 1_000_000_000), strict=True))


class CommandPublisher:
    """Publishes the command of each tick on all command topics; `publishers` has their names in the description."""

    def __init__(self, robot: RobotDescription, node: Transport) -> None:
        self._node = node
        self._mappings = {name: CommandMapping(robot, node.messages, name) for name in robot.command_topics}
        self.publishers = {
            name: node.create_publisher(topic.name, topic.type_name, topic.qos)
            for name, topic in robot.command_topics.items()
        }
        self._previous: Command | None = None

    def publish(self, made: Tick) -> None:
        """Publish the command of a tick, if it has one; after a failure on one topic the other topics are still sent.

        Raises:
            ValueError: a number is not finite; nothing was published.
            TransportError: a message could not be sent; the first error.
        """
        if made.command is None:
            return
        previous, stamp_ns = None if made.restarted else self._previous, self._node.now()
        messages = {name: each.encode(made.command, previous, stamp_ns) for name, each in self._mappings.items()}
        self._previous = made.command
        failures: list[TransportError] = []
        for name, message in messages.items():
            try:
                self.publishers[name].publish(message)
            except TransportError as error:
                failures.append(error)
        if failures:
            raise failures[0]


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
