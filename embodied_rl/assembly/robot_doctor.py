"""`embodied-rl doctor robot=<yaml> [policy=ws://…]`: what is wrong with a robot and a policy server, and the remedy."""

from embodied_rl.assembly.asked import ask_server
from embodied_rl.config.schema import DoctorConfig
from embodied_rl.deployment.policy_server.exchange import NoPolicyAnswer
from embodied_rl.deployment.policy_server.robot_fit import examine_policy
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.inspection import inspect_robot
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis

ASKING_S = 30.0
"""So long a policy server is asked."""


def examine_robot(config: DoctorConfig) -> list[Diagnosis]:
    """Listen to a robot's topics, ask its policy server, and return what was found.

    Raises:
        UserError: no robot is named, or its file is wrong. Unavailable: an extra is missing.
    """
    if config.robot is None:
        raise UserError("policy= is checked against a robot: add robot=<name or yaml>.")
    robot = load_robot(config.robot)
    with open_transport(config.transport, "embodied_rl_doctor") as transport:
        checks = inspect_robot(robot, transport, config.seconds)
    return checks if config.policy is None else [*checks, *_ask(config, config.policy, robot)]


def _ask(config: DoctorConfig, url: str, robot: RobotDescription) -> list[Diagnosis]:
    try:
        client = ask_server(url, config.server)
    except NoPolicyAnswer as error:
        return [Diagnosis("policy", "fail", str(error), "start it, and open its port to this machine")]
    with client:
        return examine_policy(client, robot, config.questions, ASKING_S)
