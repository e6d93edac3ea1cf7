"""`embodied-rl bridge`: drive a robot over ROS 2 with a policy behind a server."""

from embodied_rl.bridge.running import check_bridge, run_bridge
from embodied_rl.config.schema import BridgeConfig


def run(config: BridgeConfig) -> int:
    """Check everything, then drive the robot until Ctrl-C or SIGTERM; it comes to rest first.

    Raises:
        UserError: something does not fit; the robot has not moved.
    """
    return run_bridge(config)


def check_start(config: BridgeConfig) -> list[tuple[str, str]]:
    """Check the robot's file and the settings, without a robot and without a server."""
    return check_bridge(config)
