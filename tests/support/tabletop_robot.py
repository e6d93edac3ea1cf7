"""The tabletop as a robot: its description, and a node that drives it, as tests need them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.deployment.robots.description import (
    ActionEntry,
    CameraEntry,
    CommandTopic,
    OperatorTopics,
    RobotDescription,
    StateEntry,
    Term,
    Topic,
)
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.schema import FaultsNode
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot, Watcher
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.transports import LONG_S

TEXT = "std_msgs/msg/String"
START_NS = 1_700_000_000_000_000_000
HZ = 12.5
TYPES = {
    "/joint_states": "sensor_msgs/msg/JointState",
    "/tool_pose": "geometry_msgs/msg/PoseStamped",
    "/commanded_pose": "geometry_msgs/msg/PoseStamped",
    "/camera/front/image_raw": "sensor_msgs/msg/Image",
    "/camera/front/camera_info": "sensor_msgs/msg/CameraInfo",
    "/clock": "rosgraph_msgs/msg/Clock",
    "/instruction": "std_msgs/msg/String",
    "/simulation/outcome": "std_msgs/msg/String",
    "/simulation/status": "std_msgs/msg/String",
}


def _entry(name: str, *terms: tuple[str, str, float]) -> StateEntry:
    return StateEntry(name, "m", tuple(Term(*term) for term in terms))


def describe_tabletop(**changes: Any) -> RobotDescription:
    """The description of the tabletop, built without a file."""
    place = "pose.position."
    topic = lambda name, kind, qos, hz, age: Topic(name, kind, qos, hz, age, True)  # noqa: E731
    limits = [EntryLimits(f"move_{axis}", "displacement", -1, 1, 0.38, 10, 500) for axis in "xyz"]
    moves = [ActionEntry(f"move_{axis}", "m", "displacement", -0.03, 0.03, f"tool_{axis}", axis) for axis in "xyz"]
    values: dict[str, Any] = {
        "name": "tabletop",
        "verified": "in tests",
        "control_hz": HZ,
        "command_hz": 100.0,
        "topics": {
            "joints": topic("/joint_states", "sensor_msgs/msg/JointState", "state", 100, 0.1),
            "tool": topic("/tool_pose", "geometry_msgs/msg/PoseStamped", "state", 100, 0.1),
            "commanded": topic("/commanded_pose", "geometry_msgs/msg/PoseStamped", "state", 100, 0.1),
            "front": topic("/camera/front/image_raw", "sensor_msgs/msg/Image", "sensor_data", HZ, 0.25),
            "info": topic("/camera/front/camera_info", "sensor_msgs/msg/CameraInfo", "sensor_data", HZ, 0.25),
        },
        "cameras": (CameraEntry("front", "front", 64, 64, "info"),),
        "state": (
            *(_entry(f"tool_{axis}", ("tool", place + axis, 1.0)) for axis in "xyz"),
            _entry("gripper_width", ("joints", "position[finger1]", 1.0), ("joints", "position[finger2]", 1.0)),
            *(
                _entry(f"command_{axis}", ("commanded", place + axis, 1.0), ("tool", place + axis, -1.0))
                for axis in "xyz"
            ),
        ),
        "actions": (*moves, ActionEntry("gripper", "1", "position", -1, 1, "", "gripper", keeps=True)),
        "command": CommandTopic("/command", "forward", "std_msgs/msg/Float64MultiArray", timeout_s=0.1),
        "limits": CommandLimits((*limits, EntryLimits("gripper", "position", -1, 1, 26, 800, 40000))),
        "operator": OperatorTopics(
            estop="/estop",
            reset="/simulation/reset",
            outcome="/simulation/outcome",
            instruction="/instruction",
        ),
        "tracking_error": (math.inf,) * 4,
        "jump": None,
        "use_sim_time": True,
    }
    return RobotDescription(**{**values, **changes})


@dataclass
class Peer:
    """Who commands the robot: everything that it publishes, in order, and what can be asked of it."""

    node: Transport
    received: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        quality = {kind: QoS("best_effort", depth=1000) for kind in TYPES.values()} | {TEXT: "latched"}
        self._subscriptions = [
            self.node.create_subscription(topic, kind, quality[kind], self._note(topic))
            for topic, kind in TYPES.items()
        ]
        self._command = self.node.create_publisher("/command", "std_msgs/msg/Float64MultiArray", "command")
        self._reset = self.node.create_publisher("/simulation/reset", "std_msgs/msg/String", "latched")
        self._faults = self.node.create_publisher("/simulation/faults", "std_msgs/msg/String", "command")
        self._stop = self.node.create_publisher("/estop", "std_msgs/msg/Bool", "latched")

    def _note(self, topic: str) -> Callable[[Any, int, int], None]:
        return lambda message, received_ns, source_ns: self.received.append((topic, message))

    def wait_until(self, robot: Transport, condition: Callable[[], bool]) -> bool:
        """Spin both ends by turns until something holds; False where it does not within half a minute."""
        until = time.monotonic() + LONG_S
        while not condition():
            if time.monotonic() > until:
                return False
            robot.spin_once(0.002)
            self.node.spin_once(0.002)
        return True

    def is_matched(self) -> bool:
        """Whether both ends have found each other on all topics."""
        publishers = (self._command, self._reset, self._faults, self._stop)
        return all(each.count_matched() for each in (*self._subscriptions, *publishers))

    def forget(self, topics: Sequence[str]) -> None:
        """Forget what was received on some topics."""
        self.received = [each for each in self.received if each[0] not in topics]

    def of(self, topic: str) -> list[Any]:
        """Everything that was received on a topic."""
        return [message for name, message in self.received if name == topic]

    def texts(self, topic: str) -> list[Any]:
        """The JSON of a topic."""
        return [json.loads(message.data) for message in self.of(topic)]

    def command(self, values: Sequence[float] | np.ndarray) -> None:
        self._command.publish(self.node.messages.make("std_msgs/msg/Float64MultiArray", data=np.array(values, float)))

    def ask(self, **episode: Any) -> None:
        self.say(json.dumps({"index": 0, "task": 0, "seed": 0, **episode}))

    def say(self, text: str) -> None:
        """Ask for an episode in these words."""
        self._reset.publish(self.node.messages.make("std_msgs/msg/String", data=text))

    def break_it(self, text: str | None = None, **faults: Any) -> None:
        """Ask for faults."""
        self._faults.publish(self.node.messages.make("std_msgs/msg/String", data=text or json.dumps(faults)))

    def stop(self, pressed: bool) -> None:
        self._stop.publish(self.node.messages.make("std_msgs/msg/Bool", data=pressed))

    @property
    def state(self) -> np.ndarray:
        """The policy's state, float32 [7], from what was received last."""
        tool, commanded = (self.of(topic)[-1].pose.position for topic in ("/tool_pose", "/commanded_pose"))
        joints = self.of("/joint_states")[-1]
        width = sum(joints.position[joints.name.index(name)] for name in ("finger1", "finger2"))
        ahead = (getattr(commanded, axis) - getattr(tool, axis) for axis in "xyz")
        return np.array([tool.x, tool.y, tool.z, width, *ahead]).astype(np.float32)

    @property
    def picture(self) -> np.ndarray:
        """The picture that was received last."""
        image = self.of("/camera/front/image_raw")[-1]
        return image.data.reshape(image.height, image.width, 3)


class FakeTime:
    """Seconds that pass only where somebody says so, for the bus and for the robot."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def seconds(self) -> float:
        return (self.now_ns - START_NS) / 1e9


class Bench:
    """A simulated robot and its peer in one process, with a clock that tests turn."""

    def __init__(self, lockstep: bool, faults: FaultsNode | None = None, **settings: Any) -> None:
        self.time, self.lines = FakeTime(), list[str]()
        self.bus = Bus(lambda: self.time.now_ns)
        self.node, self.peer = InProcessTransport(self.bus, "robot"), Peer(InProcessTransport(self.bus, "bridge"))
        self.robot = SimulatedRobot(
            TabletopServo(TabletopConfig()),
            settings.pop("description", None) or describe_tabletop(),
            self.node,
            RobotSettings(lockstep, faults=faults or FaultsNode(), **settings),
            self.time.seconds,
            self.lines.append,
            Watcher(),
        )

    def exchange(self) -> None:
        """Let the robot hear its peer, and the peer the robot."""
        self.node.spin_once()
        self.peer.node.spin_once()

    def run(self, seconds: float, command: Sequence[float] | None = None) -> None:
        """In real time: let so many seconds pass, with a command every 8 ms."""
        for _ in range(round(seconds / self.robot.robot.servo_s)):
            if command is not None:
                self.peer.command(command)
            self.node.spin_once()
            self.robot.tick()
            self.peer.node.spin_once()
            self.time.pass_s(self.robot.robot.servo_s)

    def close(self) -> None:
        self.robot.close()
        self.node.close()
        self.peer.node.close()
