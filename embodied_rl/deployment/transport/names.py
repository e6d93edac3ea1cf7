"""Names of topics and types: how ROS 2 writes them, and what DDS makes of them. Imports the standard library only."""

import re

from embodied_rl.interfaces.errors import UserError

_TOPIC = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
_TYPE = re.compile(r"[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*")
_NODE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST = 200
"""Characters of a topic; DDS allows 256 bytes with its prefix."""


def check_topic(topic: str) -> str:
    """Return `topic` if it is a full name, such as /camera/image_raw.

    Raises:
        UserError: it is relative, or contains what ROS 2 does not allow.
    """
    if len(topic) > LONGEST or not _TOPIC.fullmatch(topic) or "__" in topic:
        raise UserError(
            f"{topic[:LONGEST]!r} is no topic: write its full name, such as /camera/image_raw, of letters, digits and "
            "single underscores; no part begins with a digit"
        )
    return topic


def check_type(type_name: str) -> str:
    """Return `type_name` if it is written as ROS 2 writes types: sensor_msgs/msg/JointState.

    Raises:
        UserError: it is not.
    """
    if not _TYPE.fullmatch(type_name):
        raise UserError(f"{type_name[:LONGEST]!r} is no type of message: write it as sensor_msgs/msg/JointState")
    return type_name


def check_node(name: str) -> str:
    """Return `name` if a node may be called so.

    Raises:
        UserError: it contains what ROS 2 does not allow.
    """
    if len(name) > LONGEST or not _NODE.fullmatch(name):
        raise UserError(f"{name[:LONGEST]!r} is no name of a node: letters, digits and underscores, no digit first")
    return name


def name_dds_topic(topic: str) -> str:
    """Return the DDS topic of a ROS 2 topic: rt/joint_states for /joint_states."""
    return "rt" + topic


def name_dds_type(type_name: str) -> str:
    """Return the DDS type of a ROS 2 type: sensor_msgs::msg::dds_::JointState_."""
    package, kind, name = type_name.split("/")
    return f"{package}::{kind}::dds_::{name}_"


def read_dds_type(dds_type: str) -> str:
    """Return the ROS 2 type of a DDS type; one that does not come from ROS 2 as it is."""
    parts = dds_type.split("::")
    if len(parts) == 4 and parts[2] == "dds_" and parts[3].endswith("_"):
        return f"{parts[0]}/{parts[1]}/{parts[3][:-1]}"
    return dds_type
