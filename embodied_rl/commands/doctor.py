"""`embodied-rl doctor`: check this machine for problems, and print the remedies."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from embodied_rl.assembly.machine_doctor import examine_machine
from embodied_rl.assembly.policy_server_client import connect
from embodied_rl.cli.text import make_console
from embodied_rl.deployment.policy_server.exchange import NoPolicyAnswer
from embodied_rl.deployment.policy_server.robot_fit import examine_policy
from embodied_rl.deployment.robots.inspection import inspect_robot
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl.runtime.simulators.installation import is_current
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.runtime.simulators.python_environments import find_recipe_file
from embodied_rl.schema import DoctorConfig, SimNode
from embodied_rl.system.untrusted_files import make_printable

POLICY_TEST_S = 30.0
"""Seconds for which a policy server is measured."""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def run(config: DoctorConfig) -> int:
    """Print every check; return exit code 1 if one failed, else 0."""
    if config.robot is not None or config.policy is not None:
        if config.sim is not None:
            raise UserError(
                f"doctor checks a robot or a simulator: leave out sim={config.sim.name}, or robot=.",
                code="keys-contradict",
            )
        return print_checks(examine_robot(config), "ready to move")
    checks = examine_machine(Path(config.run.root).expanduser().absolute())
    if config.sim is not None:
        checks += examine_simulator(config.sim)
    return print_checks(checks, "ready to train")


def examine_robot(config: DoctorConfig) -> list[Diagnosis]:
    """Check a robot's topics, and the policy server if one is given.

    Raises:
        UserError: no robot is named, or its file is wrong. Unavailable: an extra is missing.
    """
    if config.robot is None:
        raise UserError("policy= is checked against a robot: add robot=<name or yaml>.", code="robot-missing")
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
        return [*checks, *examine_policy(client, robot, config.questions, POLICY_TEST_S)]


def print_checks(checks: Sequence[Diagnosis], ready: str) -> int:
    """Print checks, and `ready` if none failed; return the exit code."""
    table = Table("", "check", "found", "remedy", box=None, pad_edge=False)
    for check in checks:
        table.add_row(
            Text(check.status, _COLOURS[check.status]),
            *(Text(make_printable(each)) for each in (check.name, check.found, check.remedy)),
        )
    make_console().print(table)
    failed = [check.name for check in checks if check.status == "fail"]
    print(f"\n{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}" if failed else f"\n{ready}")
    return 1 if failed else 0


def examine_simulator(node: SimNode) -> list[Diagnosis]:
    """Check a simulator's Python environment and the simulator, including its own diagnosis."""
    kind = SimulatorKind.find(node)
    checks = [check_environment(kind)]
    try:
        spec = kind.spec
        shown = f"{len(spec.tasks)} tasks, {len(spec.cameras)} cameras, {spec.action_dim} actions"
        checks.append(Diagnosis(node.name, "ok", shown))
    except (Unavailable, RunFailed) as error:
        problem, _, remedy = str(error).partition(". ")
        checks.append(Diagnosis(node.name, "fail", problem, remedy))
    try:
        own = kind.ask("diagnose") if hasattr(kind.simulator, "diagnose") else []
    except Exception as error:  # noqa: BLE001 - plug-ins and their drivers raise anything; each failure is a failed check
        problem, _, remedy = str(error).partition(". ")
        own = [Diagnosis(f"{node.name}: diagnosis", "fail", problem or type(error).__name__, remedy)]
    return [*checks, *own]


def check_environment(kind: SimulatorKind) -> Diagnosis:
    """Check whether a simulator has its own environment, made with the current pins."""
    name = kind.node.name
    if kind.interpreter is None:
        remedy = (
            "" if find_recipe_file(name) is None else f"embodied-rl sim install {name}, unless it is installed here"
        )
        return Diagnosis("environment", "ok" if not remedy else "warn", "this one", remedy)
    if kind.node.python is None and not is_current(name):
        again = f"embodied-rl sim install {name} replace=true"
        return Diagnosis("environment", "warn", f"{kind.interpreter.python}, made with other pins", again)
    return Diagnosis("environment", "ok", kind.interpreter.python)
