"""Opens a transport by its name, and imports then what it needs."""

from importlib.util import find_spec
from typing import Literal

from embodied_rl.deployment.transport.environment import RosEnvironment, read_environment
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError

Kind = Literal["dds", "rclpy"]
KINDS = ("dds", "rclpy")


def open_transport(
    kind: str = "dds", node: str = "embodied_rl", environment: RosEnvironment | None = None
) -> Transport:
    """Open a transport to nodes of ROS 2.

    Args:
        kind: dds, which needs no ROS 2; rclpy, which uses the one that is installed.
        node: the name of this node.
        environment: what ROS 2's variables say; this process's own by default. rclpy reads them itself.

    Raises:
        UserError: an unknown kind, or variables that this kind cannot follow. Unavailable: what it needs is missing.
    """
    if kind == "dds":
        require("cyclonedds", "transport=dds")
        from embodied_rl.deployment.transport.dds import DdsTransport

        return DdsTransport(environment or read_environment(), node)
    if kind == "rclpy":
        from embodied_rl.deployment.transport.rclpy_node import RclpyTransport

        return RclpyTransport(node)
    raise UserError(f"transport={kind!r} is none of {', '.join(KINDS)}")


def has_ros() -> bool:
    """Whether ROS 2's own Python package can be imported here."""
    return find_spec("rclpy") is not None
