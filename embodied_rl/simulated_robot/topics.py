"""Topics of a simulated robot: those of its description, and those of every simulated robot."""

import json
from collections.abc import Mapping
from typing import Any

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS
from embodied_rl.deployment.transport.interface import Callback, Publisher, Subscription, Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.simulated_robot.faults import Pictures, States

FAULTS, STATUS, CLOCK = "/simulation/faults", "/simulation/status", "/clock"
"""Topics of every simulated robot; its description names the others."""
JOINTS, POSE = "sensor_msgs/msg/JointState", "geometry_msgs/msg/PoseStamped"
IMAGE, INFO = "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"
TEXT, BOOL = "std_msgs/msg/String", "std_msgs/msg/Bool"
CLOCK_TYPE = "rosgraph_msgs/msg/Clock"
POSES = ("tool_pose", "commanded_pose")


class RobotTopics:
    """The publishers and subscriptions of a simulated robot.

    In lockstep images and the clock are published reliably, because a lost message would stop the episode.

    Args:
        callbacks: by topic: the commands', the operator's stop and reset, and `FAULTS`.

    Attributes:
        unsent: number of messages that could not be sent. last_unsent: error of the last one.
    """

    def __init__(
        self,
        node: Transport,
        description: RobotDescription,
        robot: ServoedRobot,
        callbacks: Mapping[str, Callback],
        lockstep: bool,
    ) -> None:
        self._node, self._description, self._robot = node, description, robot
        self._lockstep = lockstep
        self._listened: list[tuple[str, str, QoS | str]] = [
            *((each.name, each.type_name, each.qos) for each in description.command_topics.values()),
            (description.operator.estop, BOOL, STOP_QOS),
            (description.operator.reset, TEXT, "latched"),
            (FAULTS, TEXT, "command"),
        ]
        self._callbacks = callbacks
        self.unsent, self.last_unsent = 0, ""
        self._publishers: dict[str, Publisher] = {}
        self._subscriptions: list[Subscription] = []
        self._looked = 0
        self.open()

    def open(self) -> None:
        """Create all publishers, then all subscriptions."""
        operator, surely = self._description.operator, QoS("reliable", depth=5)
        for topic in self._description.topics.values():
            quality = surely if self._lockstep and topic.type_name in (IMAGE, INFO) else topic.qos
            self._publishers[topic.name] = self._node.create_publisher(topic.name, topic.type_name, quality)
        for name in filter(None, (operator.outcome, operator.instruction, STATUS)):
            self._publishers[name] = self._node.create_publisher(name, TEXT, "latched")
        clock = surely if self._lockstep else "clock"
        self._publishers[CLOCK] = self._node.create_publisher(CLOCK, CLOCK_TYPE, clock)
        self._subscriptions = [
            self._node.create_subscription(*each, self._callbacks[each[0]]) for each in self._listened if each[0]
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

    def send_states(self, states: States) -> None:
        """Publish joint states and poses."""
        reading, header = states.reading, _make_header(states.stamp_ns, "base")
        for topic in self._description.topics.values():
            if topic.type_name == JOINTS:
                content = {"name": list(states.joint_names), "position": reading.position, "velocity": reading.velocity}
                self._send(topic.name, JOINTS, header=header, **content)
            elif topic.type_name == POSE:
                pose = reading.tool if topic.name.rpartition("/")[2] == "tool_pose" else reading.commanded
                place, turn = (dict(zip("xyzw", each.tolist(), strict=False)) for each in pose)
                self._send(topic.name, POSE, header=header, pose={"position": place, "orientation": turn})

    def send_pictures(self, shown: Pictures) -> None:
        """Publish the images and camera infos."""
        for camera in self._description.cameras:
            picture = shown.pictures[camera.name]
            height, width = picture.shape[:2]
            about = {"header": _make_header(shown.stamp_ns, camera.name), "height": height, "width": width}
            name = self._description.topics[camera.topic].name
            self._send(name, IMAGE, **about, encoding="rgb8", step=3 * width, data=picture.reshape(-1))
            if camera.info:
                focal, across, down = self._robot.focal[camera.name], (width - 1) / 2, (height - 1) / 2
                self._send(
                    self._description.topics[camera.info].name, INFO, **about, distortion_model="plumb_bob",
                    d=[0.0] * 5, k=[focal, 0, across, 0, focal, down, 0, 0, 1], r=[1, 0, 0, 0, 1, 0, 0, 0, 1],
                    p=[focal, 0, across, 0, 0, focal, down, 0, 0, 0, 1, 0],
                )  # fmt: skip

    def send_clock(self, stamp_ns: int) -> None:
        self._send(CLOCK, CLOCK_TYPE, clock=_make_time(stamp_ns))

    def send_instruction(self, text: str) -> None:
        self._send(self._description.operator.instruction, TEXT, data=text)

    def send_outcome(self, fields: Mapping[str, Any]) -> None:
        self._send(self._description.operator.outcome, TEXT, data=json.dumps(fields))

    def send_status(self, fields: Mapping[str, Any]) -> None:
        self._send(STATUS, TEXT, data=json.dumps(fields))

    def _send(self, topic: str, type_name: str, **fields: Any) -> None:
        """Publish a message unless the topic is unnamed.

        Errors are counted, so that a blocked reader does not stop the robot.
        """
        if not topic:
            return
        message = self._node.messages.make(type_name, **fields)
        try:
            self._publishers[topic].publish(message)
        except TransportError as error:
            self.unsent += 1
            self.last_unsent = f"{topic}: {error}"


def _make_time(stamp_ns: int) -> dict[str, int]:
    return {"sec": stamp_ns // 10**9, "nanosec": stamp_ns % 10**9}


def _make_header(stamp_ns: int, frame: str) -> dict[str, Any]:
    return {"stamp": _make_time(stamp_ns), "frame_id": frame}
