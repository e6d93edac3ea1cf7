"""`embodied-rl bridge`: drive a robot over ROS 2 with a policy behind a server."""

from embodied_rl.deployment.bridge.running import check_bridge, run_bridge

run, check_start = run_bridge, check_bridge
