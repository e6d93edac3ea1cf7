"""Open a transport by name."""

from embodied_rl.deployment.transport.environment import RosEnvironment, read_environment
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError


def open_transport(
    kind: str = "dds", node: str = "embodied_rl", environment: RosEnvironment | None = None
) -> Transport:
    """Open a transport to nodes of ROS 2.

    Args:
        kind: dds, which needs no installation of ROS 2, or rclpy, which uses the installed one.
        node: name of this node.
        environment: by default from this process's environment variables, which rclpy always reads itself.

    Raises:
        UserError: unknown kind, or unsupported environment variables. Unavailable: a package is missing.
    """
    if kind == "dds":
        require("cyclonedds", "transport=dds")
        from embodied_rl.deployment.transport.dds import DdsTransport

        return DdsTransport(environment or read_environment(), node)
    if kind == "rclpy":
        from embodied_rl.deployment.transport.rclpy_node import RclpyTransport

        return RclpyTransport(node)
    raise UserError(f"transport={kind!r} is none of dds, rclpy", code="transport-unknown")
