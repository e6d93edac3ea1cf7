"""Names of topics, types and nodes in ROS 2 and in DDS. Imports the standard library only."""

import re

from embodied_rl.interfaces.errors import UserError

_TOPIC = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
_TYPE = re.compile(r"[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*")
_NODE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_NAME = 200
"""Characters of a name; DDS allows 256 bytes, including its prefix."""


def check_topic(topic: str) -> str:
    """Return `topic` if it is a full and valid name, such as /camera/image_raw; raise `UserError` if not."""
    if len(topic) > MAX_NAME or not _TOPIC.fullmatch(topic) or "__" in topic:
        raise UserError(
            f"{topic[:MAX_NAME]!r} is not a topic name: write a full name, such as /camera/image_raw, of letters, "
            "digits and single underscores, in which no part begins with a digit",
            code="topic-invalid",
        )
    return topic


def check_type(type_name: str) -> str:
    """Return `type_name` if it is a full type name, such as sensor_msgs/msg/JointState; raise `UserError` if not."""
    if not _TYPE.fullmatch(type_name):
        raise UserError(
            f"{type_name[:MAX_NAME]!r} is not a message type: write it as sensor_msgs/msg/JointState",
            code="message-type-invalid",
        )
    return type_name


def check_node(name: str) -> str:
    """Return `name` if it is a valid node name; raise `UserError` if not."""
    if len(name) > MAX_NAME or not _NODE.fullmatch(name):
        raise UserError(
            f"{name[:MAX_NAME]!r} is not a node name: use letters, digits and underscores, no digit first",
            code="node-name-invalid",
        )
    return name


def name_dds_topic(topic: str) -> str:
    """Return the DDS topic of a ROS 2 topic: rt/joint_states for /joint_states."""
    return "rt" + topic


def name_dds_type(type_name: str) -> str:
    """Return the DDS type of a ROS 2 type: sensor_msgs::msg::dds_::JointState_."""
    package, kind, name = type_name.split("/")
    return f"{package}::{kind}::dds_::{name}_"


def read_dds_type(dds_type: str) -> str:
    """Return the ROS 2 type of a DDS type; a DDS type that is not from ROS 2 is returned unchanged."""
    parts = dds_type.split("::")
    if len(parts) == 4 and parts[2] == "dds_" and parts[3].endswith("_"):
        return f"{parts[0]}/{parts[1]}/{parts[3][:-1]}"
    return dds_type
