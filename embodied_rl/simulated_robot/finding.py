"""Finds who simulates a robot."""

from importlib import import_module

from embodied_rl.config.plugins import list_names
from embodied_rl.config.schema import SimNode
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.simulators.kind import SimulatorKind


def build_servoed_robot(node: SimNode) -> ServoedRobot:
    """Build the robot of a `sim` node.

    Raises:
        UserError: the simulator does not exist, cannot be driven like a robot, or does not take its settings.
    """
    kind = SimulatorKind.find(node)
    path: str | None = getattr(kind.simulator, "servo", None)
    if path is None:
        raise UserError(
            f"sim={node.name} cannot be driven like a robot: its class has no `servo`. "
            f"sim=tabletop can; known: {', '.join(list_names('sims'))}."
        )
    if kind.interpreter is not None:
        raise UserError(f"sim={node.name} lives in another Python environment, where it cannot be driven like a robot.")
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(kind.options)
