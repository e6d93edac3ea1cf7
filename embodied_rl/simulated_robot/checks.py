"""Find, build and check a simulated robot, and check the commands for it."""

import re
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from embodied_rl.simulated_robot.topics import IMAGE, INFO, JOINTS, POSE, POSES

TOLERANCE = 1e-6
"""Relative tolerance of a limit, for rounding."""


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


def check_fit(description: RobotDescription, robot: ServoedRobot) -> None:
    """Check that the simulated robot equals the description as far as a policy can observe, and has all its topics.

    Raises:
        UserError: they differ; the message names the difference.
    """
    described, simulated = description.body, robot.spec.body
    for what in ("cameras", "state_names", "action_names", "action_low", "action_high", "control_hz"):
        ours, theirs = getattr(described, what), getattr(simulated, what)
        if what in ("action_low", "action_high", "control_hz"):
            same = np.shape(ours) == np.shape(theirs) and bool(np.allclose(ours, theirs, rtol=1e-9, atol=0))
        else:
            same = ours == theirs
        if not same:
            raise UserError(
                f"robot={description.name} does not match the simulator: its {what} are {ours}, those of the simulator "
                f"{theirs}. Choose another robot, or another simulator: sim=<name>.",
                code="robot-simulator-mismatch",
            )
    fields = (term.field for entry in description.state for term in entry.terms)
    for joint in (name for field in fields for name in re.findall(r"\[([^\]]+)\]", field)):
        if joint not in robot.joint_names:
            raise UserError(
                f"robot={description.name} reads the joint {joint}, which the simulated robot does not have; it has "
                f"{', '.join(robot.joint_names)}.",
                code="robot-simulator-mismatch",
            )
    shown = {camera.topic for camera in description.cameras} | {camera.info for camera in description.cameras}
    for key, topic in description.topics.items():
        pose = topic.type_name == POSE and topic.name.rpartition("/")[2] in POSES
        picture = topic.type_name in (IMAGE, INFO) and key in shown
        if not (pose or picture or topic.type_name == JOINTS):
            raise UserError(
                f"robot={description.name}: a simulated robot does not publish {topic.name} ({topic.type_name}); it "
                f"publishes joint states, {' and '.join(POSES)}, and cameras' pictures with their camera info.",
                code="topic-unsupported",
            )


class CommandCheck:
    """Checks commands against a description, and converts them to actions in lockstep.

    Attributes:
        low, high: float64 [A], limits of a command, the wider of the action's range and the robot's limits: speeds for
            displacements and velocities, else actions.
        speeds: bool [A], which entries are speeds.
    """

    def __init__(self, description: RobotDescription) -> None:
        self.names = tuple(entry.name for entry in description.actions)
        self.speeds = np.array([entry.kind != "position" for entry in description.actions])
        self.displacements = np.array([entry.kind == "displacement" for entry in description.actions])
        self._control_hz = description.control_hz
        bounds: list[tuple[float, float]] = []
        for entry, limits in zip(description.actions, description.limits.entries, strict=True):
            low, high, speed = limits.low, limits.high, limits.speed
            factor = description.control_hz if entry.kind == "displacement" else 1.0
            if entry.kind != "position":
                high = speed if np.isfinite(speed) else 0.0
                low = -high
            bounds.append((min(entry.action_low * factor, low), max(entry.action_high * factor, high)))
        self.low, self.high = (np.array(each, np.float64) for each in zip(*bounds, strict=True))

    def check(self, command: NDArray[np.float64]) -> None:
        """Check a command, float64 [A]; raise `UserError` if an entry is out of its limits."""
        slack = TOLERANCE * np.maximum(np.abs(self.low), np.abs(self.high))
        beyond = (command < self.low - slack) | (command > self.high + slack)
        if beyond.any():
            place = int(np.flatnonzero(beyond)[0])
            raise UserError(
                f"{self.names[place]}={command[place]:.6g} of a command is beyond its limits, "
                f"{self.low[place]:.6g} … {self.high[place]:.6g}",
                code="command-out-of-range",
            )

    def find_action(self, command: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the action, float32 [A], of a command that lasts for one control step."""
        return np.where(self.displacements, command / self._control_hz, command).astype(np.float32)

    def rests(self, command: NDArray[np.float64]) -> bool:
        """Return whether all speeds of a command are zero."""
        return not command[self.speeds].any()
