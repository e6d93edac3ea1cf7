"""`embodied-rl doctor robot=`: examine a robot's topics and its policy server, and print the remedies."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from embodied_rl.cli.json_output import offer_json
from embodied_rl.cli.text import make_console
from embodied_rl.deployment.configuration import RobotDoctorConfig
from embodied_rl.deployment.policy_client.client import connect
from embodied_rl.deployment.policy_client.client_messages import NoPolicyAnswer
from embodied_rl.deployment.policy_client.policy_check import check_served_policy
from embodied_rl.deployment.robots.inspection import inspect_robot
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl.system.untrusted_files import make_printable

POLICY_TEST_S = 30.0
"""Seconds for which a policy server is measured."""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def run(config: RobotDoctorConfig) -> int:
    """Print every check; return exit code 1 if one failed, else 0."""
    return print_checks(examine_robot(config), "ready to move")


def examine_robot(config: RobotDoctorConfig) -> list[Diagnosis]:
    """Check a robot's topics, and the policy server if one is given.

    Raises:
        UserError: no robot is named, or its file is wrong. Unavailable: an extra is missing.
    """
    if config.robot is None:
        raise UserError(
            "doctor examines a robot, and policy= is checked against it: add robot=<name or yaml>.",
            code="robot-missing",
        )
    robot = load_robot(config.robot)
    with open_transport(config.transport, "embodied_rl_doctor") as transport:
        checks = inspect_robot(robot, transport, config.seconds)
    if config.policy is None:
        return checks
    try:
        client = connect(config.policy, config.server)
    except NoPolicyAnswer as error:
        return [*checks, Diagnosis("policy", "fail", str(error), "start it, and open its port to this machine")]
    with client:
        return [*checks, *check_served_policy(client, robot, config.questions, POLICY_TEST_S)]


def print_checks(checks: Sequence[Diagnosis], ready: str) -> int:
    """Print checks, and `ready` if none failed; return the exit code."""
    offer_json([asdict(check) for check in checks])
    table = Table("", "check", "found", box=None, pad_edge=False)
    table.add_column("remedy", overflow="fold")  # a command to type is shown whole
    for check in checks:
        table.add_row(
            Text(check.status, _COLOURS[check.status]),
            *(Text(make_printable(each)) for each in (check.name, check.found, check.remedy)),
        )
    make_console().print(table)
    failed = [check.name for check in checks if check.status == "fail"]
    print(f"\n{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}" if failed else f"\n{ready}")
    return 1 if failed else 0
