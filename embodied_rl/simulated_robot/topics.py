"""Topics of a simulated robot: those of its description, and those of every simulated robot."""

import json
from collections.abc import Mapping
from typing import Any

from embodied_rl.deployment.robots.description import RobotDescription, Topic
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS
from embodied_rl.deployment.transport.interface import Callback, Publisher, Subscription, Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError, UserError
from embodied_rl.interfaces.servo import Pose, ServoedRobot
from embodied_rl.simulated_robot.faults import Pictures, States
from embodied_rl.simulated_robot.settings import CLOCK, FAULTS, STATUS

JOINTS, POSE = "sensor_msgs/msg/JointState", "geometry_msgs/msg/PoseStamped"
IMAGE, INFO = "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"
TEXT, BOOL = "std_msgs/msg/String", "std_msgs/msg/Bool"
CLOCK_TYPE = "rosgraph_msgs/msg/Clock"
_POSES = ("tool_pose", "commanded_pose")
_BASE = "base"

Listeners = Mapping[str, tuple[str, QoS | str, Callback]]
"""Topic → (type, QoS, callback)."""


class RobotTopics:
    """The publishers and subscriptions of a simulated robot.

    Args:
        node: the transport.
        description: description of the robot.
        robot: the simulated robot.
        listeners: its subscriptions.
        lockstep: publish images and the clock reliably, because a lost message would stop the episode.

    Attributes:
        unsent: number of messages that could not be sent. last_unsent: error of the last one.
    """

    def __init__(
        self, node: Transport, description: RobotDescription, robot: ServoedRobot, listeners: Listeners, lockstep: bool
    ) -> None:
        self._node, self._description, self._robot = node, description, robot
        self._lockstep = lockstep
        self.unsent, self.last_unsent = 0, ""
        self._publishers: dict[str, Publisher] = {}
        self._subscriptions: list[Subscription] = []
        self._looked = 0
        self._info_of = _find_infos(description)
        self.open(listeners)

    def open(self, listeners: Listeners) -> None:
        """Create all publishers, then all subscriptions."""
        operator = self._description.operator
        for topic in self._description.topics.values():
            self._publishers[topic.name] = self._node.create_publisher(topic.name, topic.type_name, self._offer(topic))
        for name in filter(None, (operator.outcome, operator.instruction, STATUS)):
            self._publishers[name] = self._node.create_publisher(name, TEXT, "latched")
        clock = QoS("reliable", depth=5) if self._lockstep else "clock"
        self._publishers[CLOCK] = self._node.create_publisher(CLOCK, CLOCK_TYPE, clock)
        self._subscriptions = [
            self._node.create_subscription(name, kind, quality, callback)
            for name, (kind, quality, callback) in listeners.items()
        ]

    def close(self) -> None:
        """Close all topics."""
        for end in (*self._publishers.values(), *self._subscriptions):
            end.close()
        self._publishers, self._subscriptions = {}, []

    @property
    def is_open(self) -> bool:
        return bool(self._publishers)

    @property
    def published(self) -> list[tuple[str, str]]:
        """Return (topic, type) of each publisher."""
        return [(end.topic, end.type_name) for end in self._publishers.values()]

    @property
    def subscribed(self) -> list[tuple[str, str]]:
        """Return (topic, type) of each subscription."""
        return [(end.topic, end.type_name) for end in self._subscriptions]

    def find_subscription(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic, or None."""
        return next((end for end in self._subscriptions if end.topic == topic), None)

    def find_fault(self) -> str:
        """Return why messages of a publisher do not arrive, checking one topic per call; empty without a fault."""
        if not self._subscriptions:
            return ""
        self._looked = (self._looked + 1) % len(self._subscriptions)
        return next(iter(self._subscriptions[self._looked].find_mismatches()), "")

    def _offer(self, topic: Topic) -> QoS | str:
        return QoS("reliable", depth=5) if self._lockstep and topic.type_name in (IMAGE, INFO) else topic.qos

    # -- publishing -----------------------------------------------------------------------------------------------

    def send_states(self, states: States) -> None:
        """Publish joint states and poses."""
        poses: dict[str, Pose] = {"tool_pose": states.reading.tool, "commanded_pose": states.reading.commanded}
        for topic in self._description.topics.values():
            if topic.type_name == JOINTS:
                self._send(topic.name, self._make_joints(states))
            elif topic.type_name == POSE:
                self._send(topic.name, self._make_pose(states.stamp_ns, poses[topic.name.rpartition("/")[2]]))

    def send_pictures(self, shown: Pictures) -> None:
        """Publish the images and camera infos."""
        for camera in self._description.cameras:
            header = self._header(shown.stamp_ns, camera.name)
            picture = shown.pictures[camera.name]
            height, width = picture.shape[:2]
            self._send(
                self._description.topics[camera.topic].name,
                self._node.messages.make(
                    IMAGE, header=header, height=height, width=width, encoding="rgb8", step=3 * width,
                    data=picture.reshape(-1),
                ),
            )  # fmt: skip
            if camera.name in self._info_of:
                self._send(self._info_of[camera.name], self._make_info(header, camera.name, height, width))

    def send_clock(self, stamp_ns: int) -> None:
        self._send(CLOCK, self._node.messages.make(CLOCK_TYPE, clock=_time(stamp_ns)))

    def send_instruction(self, text: str) -> None:
        if name := self._description.operator.instruction:
            self._send(name, self._node.messages.make(TEXT, data=text))

    def send_outcome(self, fields: Mapping[str, Any]) -> None:
        if name := self._description.operator.outcome:
            self._send(name, self._node.messages.make(TEXT, data=json.dumps(fields)))

    def send_status(self, fields: Mapping[str, Any]) -> None:
        self._send(STATUS, self._node.messages.make(TEXT, data=json.dumps(fields)))

    # -- messages -------------------------------------------------------------------------------------------------

    def _send(self, topic: str, message: Any) -> None:
        """Publish a message. Errors are counted, so that a blocked reader does not stop the robot."""
        try:
            self._publishers[topic].publish(message)
        except TransportError as error:
            self.unsent += 1
            self.last_unsent = f"{topic}: {error}"

    def _header(self, stamp_ns: int, frame: str) -> dict[str, Any]:
        return {"stamp": _time(stamp_ns), "frame_id": frame}

    def _make_joints(self, states: States) -> Any:
        reading = states.reading
        return self._node.messages.make(
            JOINTS, header=self._header(states.stamp_ns, _BASE), name=list(states.joint_names),
            position=reading.position, velocity=reading.velocity,
        )  # fmt: skip

    def _make_pose(self, stamp_ns: int, pose: Pose) -> Any:
        place, turn = (dict(zip("xyzw", each.tolist(), strict=False)) for each in pose)
        content = {"position": place, "orientation": turn}
        return self._node.messages.make(POSE, header=self._header(stamp_ns, _BASE), pose=content)

    def _make_info(self, header: dict[str, Any], camera: str, height: int, width: int) -> Any:
        focal, middle = self._robot.focal[camera], ((width - 1) / 2, (height - 1) / 2)
        matrix = [focal, 0, middle[0], 0, focal, middle[1], 0, 0, 1]
        projection = [focal, 0, middle[0], 0, 0, focal, middle[1], 0, 0, 0, 1, 0]
        return self._node.messages.make(
            INFO, header=header, height=height, width=width, distortion_model="plumb_bob", d=[0.0] * 5,
            k=matrix, r=[1, 0, 0, 0, 1, 0, 0, 0, 1], p=projection,
        )  # fmt: skip


def check_topics(description: RobotDescription) -> None:
    """Check that a simulated robot can publish all topics of a description.

    Raises:
        UserError: it cannot publish a topic.
    """
    shown = {camera.topic for camera in description.cameras} | {camera.info for camera in description.cameras}
    for key, topic in description.topics.items():
        pose = topic.type_name == POSE and topic.name.rpartition("/")[2] in _POSES
        picture = topic.type_name in (IMAGE, INFO) and key in shown
        if not (pose or picture or topic.type_name == JOINTS):
            raise UserError(
                f"robot={description.name}: a simulated robot does not publish {topic.name} ({topic.type_name}); it "
                f"publishes joint states, {' and '.join(_POSES)}, and cameras' pictures with their camera info.",
                code="topic-unsupported",
            )


def make_listeners(
    description: RobotDescription, callbacks: Mapping[str, Callback], commands: Mapping[str, Callback]
) -> Listeners:
    """Return the subscriptions of a simulated robot.

    Args:
        callbacks: callbacks of "estop", "reset" and "faults".
        commands: callbacks of the command topics by name.
    """
    operator = description.operator
    listened = {
        **{
            topic.name: (topic.type_name, topic.qos, commands[name])
            for name, topic in description.command_topics.items()
        },
        operator.estop: (BOOL, STOP_QOS, callbacks["estop"]),
        operator.reset: (TEXT, "latched", callbacks["reset"]),
        FAULTS: (TEXT, "command", callbacks["faults"]),
    }
    return {name: each for name, each in listened.items() if name}


def _find_infos(description: RobotDescription) -> dict[str, str]:
    """Return the topic of camera info of each camera that has one."""
    return {camera.name: description.topics[camera.info].name for camera in description.cameras if camera.info}


def _time(stamp_ns: int) -> dict[str, int]:
    return {"sec": stamp_ns // 10**9, "nanosec": stamp_ns % 10**9}
