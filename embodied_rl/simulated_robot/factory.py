"""Find and build the simulator of a robot."""

from importlib import import_module
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


def find_servo_class(node: SimNode) -> tuple[str, Any]:
    """Return the path "module:Class" of the robot of a `sim` node, and the options for it; nothing is imported.

    Raises:
        UserError: the simulator does not exist, cannot be controlled as a robot, or its settings are invalid.
    """
    kind = SimulatorKind.find(node)
    path: str | None = getattr(kind.simulator, "servo", None)
    if path is None:
        raise UserError(
            f"sim={node.name} cannot be controlled as a robot: its class has no `servo` (docs/simulated_robot.md). "
            "sim=tabletop can.",
            code="simulator-without-servo",
        )
    if kind.interpreter is not None:
        raise UserError(
            f"sim={node.name} runs in another Python environment, where it cannot be controlled as a robot.",
            code="simulator-without-servo",
        )
    return path, kind.options


def build_servoed_robot(node: SimNode) -> ServoedRobot:
    """Build the robot of a `sim` node; raise `UserError` as `find_servo_class` does."""
    path, options = find_servo_class(node)
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(options)
