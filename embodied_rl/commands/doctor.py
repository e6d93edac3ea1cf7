"""`embodied-rl doctor`: check this machine for problems, and print the remedies."""

from pathlib import Path

from embodied_rl.assembly.machine_doctor import examine_machine
from embodied_rl.deployment.commands.doctor import examine_robot, print_checks
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl.runtime.simulators.installation import is_current
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.runtime.simulators.python_environments import find_recipe_file
from embodied_rl.schema import DoctorConfig, SimNode


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
