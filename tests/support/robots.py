"""Robots of the project, changed for a test, and their messages."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from embodied_rl.config.option_files import find_config_folder
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import read_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.description import PolicyDescription

JOINTS = tuple(f"joint{number}" for number in range(1, 8))


def read_keys(name: str) -> dict[str, Any]:
    """The keys of a robot's file, to be changed."""
    return yaml.safe_load((find_config_folder() / "robot" / f"{name}.yaml").read_text())


def change_keys(keys: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Set keys by their dotted names; None takes one away."""
    for dotted, value in changes.items():
        node, parts = keys, dotted.split(".")
        for part in parts[:-1]:
            node = node[part]
        if value is None:
            del node[parts[-1]]
        else:
            node[parts[-1]] = value
    return keys


def write_robot(folder: Path, base: str = "tabletop", **changes: Any) -> Path:
    """A file of a robot with changed keys; a dot in a key's name is written as two underscores."""
    keys = change_keys(read_keys(base), {key.replace("__", "."): value for key, value in changes.items()})
    keys = json.loads(json.dumps(keys))  # without references, which YAML would write for what stands there twice
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(keys, sort_keys=False, allow_unicode=True))
    return file


def change_robot(folder: Path, base: str = "tabletop", **changes: Any) -> RobotDescription:
    return read_robot(write_robot(folder, base, **changes))


def describe_policy(robot: RobotDescription, **changes: Any) -> PolicyDescription:
    """What a policy that was made for a robot says of itself."""
    body = robot.body
    said = PolicyDescription(
        cameras=dict(body.cameras),
        state_names=body.state_names,
        action_names=body.action_names,
        action_low=body.action_low,
        action_high=body.action_high,
        control_hz=body.control_hz,
        horizon=5,
        executed=5,
        words=(),
        prompt_length=8,
        prefix_trained_to=0,
        normalisation="0" * 64,
    )
    return replace(said, **changes)


def make_tabletop_messages(messages: Messages) -> dict[str, Any]:
    """What the tabletop says, by the short names of its topics."""
    pose = {"position": {"x": 0.5, "y": 0.1, "z": 0.2}}
    goal = {"position": {"x": 0.53, "y": 0.1, "z": 0.17}}
    pixels = np.arange(64 * 64 * 3, dtype=np.uint32).astype(np.uint8)
    return {
        "joints": messages.make(
            "sensor_msgs/msg/JointState",
            name=[*JOINTS, "finger1", "finger2"],
            position=[*np.linspace(-1, 1, 7), 0.011, 0.013],
            velocity=np.zeros(9),
        ),
        "tool": messages.make("geometry_msgs/msg/PoseStamped", pose=pose),
        "commanded": messages.make("geometry_msgs/msg/PoseStamped", pose=goal),
        "front": messages.make(
            "sensor_msgs/msg/Image", height=64, width=64, step=192, encoding="rgb8", data=pixels
        ),
        "front_info": messages.make("sensor_msgs/msg/CameraInfo", height=64, width=64),
    }  # fmt: skip


@dataclass
class TalkingRobot:
    """Says what the tabletop says, in this process, as time passes; a test changes what and how often.

    Attributes:
        periods: milliseconds between the messages of each topic; 0: never. change: of a message before it is sent.
        stamp_offset_s: what is added to stamps; None: stamps are 0. same_stamp: they stand still.
        started_ns: when its time began, by the clock of this process.
    """

    robot: RobotDescription
    bus: Bus
    now_ns: list[int]
    periods: dict[str, int] = field(default_factory=lambda: {"front": 80, "front_info": 80})
    change: Callable[[str, Any], None] = lambda name, message: None
    stamp_offset_s: float | None = 0.0
    same_stamp: bool = False
    started_ns: int = 0

    def __post_init__(self) -> None:
        self.node = InProcessTransport(self.bus, "robot")
        self.messages = make_tabletop_messages(self.bus.messages)
        self.publishers = {
            name: self.node.create_publisher(topic.name, topic.type_name, topic.qos)
            for name, topic in self.robot.topics.items()
        }
        self.clock = self.node.create_publisher("/clock", "rosgraph_msgs/msg/Clock", "clock")

    def pass_time(self, listener: InProcessTransport, seconds: float) -> None:
        """Let so many seconds pass, in steps of 10 ms, while the robot talks and the listener spins."""
        for step in range(round(seconds * 100)):
            self.now_ns[0] += 10_000_000
            self._say_clock()
            for name, message in self.messages.items():
                if (period := self.periods.get(name, 10)) and step * 10 % period == 0 and name in self.publishers:
                    self._say(name, message, step)
            listener.spin_once()

    def _say_clock(self) -> None:
        sec, nanosec = divmod(self.now_ns[0] - self.started_ns, 1_000_000_000)
        self.clock.publish(self.bus.messages.make("rosgraph_msgs/msg/Clock", clock={"sec": sec, "nanosec": nanosec}))

    def _say(self, name: str, message: Any, step: int) -> None:
        if self.stamp_offset_s is not None:
            at = (
                (0 if self.same_stamp else self.now_ns[0] - self.started_ns)
                + int(self.stamp_offset_s * 1e9)
                + self.same_stamp * 10**9
            )
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(at, 1_000_000_000)
        if name == "joints":
            message.velocity[0] = step
        self.change(name, message)
        self.publishers[name].publish(message)
