"""Robots of the project, changed for a test, and their messages."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from embodied_rl.config.compose import find_config_folder
from embodied_rl.robots.description import RobotDescription
from embodied_rl.robots.reading import read_robot
from embodied_rl.transport.messages import Messages

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
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(keys, sort_keys=False, allow_unicode=True))
    return file


def change_robot(folder: Path, base: str = "tabletop", **changes: Any) -> RobotDescription:
    return read_robot(write_robot(folder, base, **changes))


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
