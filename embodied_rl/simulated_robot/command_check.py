"""Validation of commands for a simulated robot, and their conversion to actions in lockstep."""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.robots.description import ActionEntry, RobotDescription
from embodied_rl.interfaces.errors import UserError

TOLERANCE = 1e-6
"""Relative tolerance of a limit, for rounding."""


class CommandCheck:
    """Checks commands against a description.

    Args:
        description: description of the robot.

    Attributes:
        low, high: float64 [A], limits of a command: speeds for displacements and velocities, else actions.
        speeds: bool [A], which entries are speeds.
    """

    def __init__(self, description: RobotDescription) -> None:
        self.names = tuple(entry.name for entry in description.actions)
        self.speeds = np.array([entry.kind != "position" for entry in description.actions])
        self.displacements = np.array([entry.kind == "displacement" for entry in description.actions])
        bounds = [_find_bounds(entry, description, place) for place, entry in enumerate(description.actions)]
        self.low, self.high = (np.array(each, np.float64) for each in zip(*bounds, strict=True))
        self._control_hz = description.control_hz

    def check(self, command: NDArray[np.float64]) -> None:
        """Check a command, float64 [A].

        Raises:
            UserError: an entry is out of its limits.
        """
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


def _find_bounds(entry: ActionEntry, description: RobotDescription, place: int) -> tuple[float, float]:
    """Return the limits of an entry: the wider of its action range and its limits."""
    factor = description.control_hz if entry.kind == "displacement" else 1.0
    limits = description.limits.entries[place]
    if entry.kind == "position":
        return min(entry.action_low, limits.low), max(entry.action_high, limits.high)
    speed = limits.speed if np.isfinite(limits.speed) else 0.0
    return min(entry.action_low * factor, -speed), max(entry.action_high * factor, speed)
