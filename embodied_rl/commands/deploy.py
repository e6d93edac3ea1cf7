"""`embodied-rl deploy`: a policy on a simulated robot over ROS 2, as on a real one: server, bridge and robot."""

from embodied_rl.config.schema import DeployConfig
from embodied_rl.trials.deployment import check_deployment, deploy_policy


def run(config: DeployConfig) -> int:
    """Run episodes, write report and film, and print success and latencies.

    Raises:
        UserError: the policy or the robot does not fit. RunFailed: a process has ended; the message has its last words.
    """
    return deploy_policy(config)


def check_start(config: DeployConfig) -> list[tuple[str, str]]:
    """Check policy, robot and episodes, without starting anything."""
    return check_deployment(config)
