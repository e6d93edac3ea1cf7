"""Which commands a robot takes: of the right length, finite, within its limits."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_rl.interfaces.errors import UserError
from embodied_rl.robots.description import ActionEntry, RobotDescription

TOLERANCE = 1e-6
"""Of a limit; rounding may carry a command as far beyond it."""


class CommandCheck:
    """Checks commands against a description.

    Args:
        description: of the robot, which is commanded by std_msgs/msg/Float64MultiArray.

    Attributes:
        low, high: float64 [A], limits of a command: of speeds for displacements and velocities, else of actions.
        speeds: bool [A], which entries are speeds.
    """

    def __init__(self, description: RobotDescription) -> None:
        self.names = tuple(entry.name for entry in description.actions)
        self.speeds = np.array([entry.kind != "position" for entry in description.actions])
        self.displacements = np.array([entry.kind == "displacement" for entry in description.actions])
        bounds = [_find_bounds(entry, description, place) for place, entry in enumerate(description.actions)]
        self.low, self.high = (np.array(each, np.float64) for each in zip(*bounds, strict=True))
        self._control_hz = description.control_hz

    def read(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return a command, float64 [A].

        Raises:
            UserError: it has another length, a number that is not finite, or one beyond its limits.
        """
        command = np.asarray(values, np.float64)
        if command.shape != self.low.shape:
            raise UserError(f"a command has {len(self.low)} numbers ({', '.join(self.names)}), not {command.size}")
        if not np.isfinite(command).all():
            raise UserError(f"{self._name(~np.isfinite(command))} of a command is not finite")
        slack = TOLERANCE * np.maximum(np.abs(self.low), np.abs(self.high))
        beyond = (command < self.low - slack) | (command > self.high + slack)
        if beyond.any():
            place = int(np.flatnonzero(beyond)[0])
            raise UserError(
                f"{self.names[place]}={command[place]:.6g} of a command is beyond its limits, "
                f"{self.low[place]:.6g} … {self.high[place]:.6g}"
            )
        return command

    def find_action(self, command: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the action, float32 [A], that a command means when it lasts for one control step."""
        return np.where(self.displacements, command / self._control_hz, command).astype(np.float32)

    def rests(self, command: NDArray[np.float64]) -> bool:
        """Whether nothing moves by a command, as far as speeds are concerned."""
        return not command[self.speeds].any()

    def _name(self, where: NDArray[np.bool_]) -> str:
        return self.names[int(np.flatnonzero(where)[0])]


def _find_bounds(entry: ActionEntry, description: RobotDescription, place: int) -> tuple[float, float]:
    """Return the limits of an entry: those of the action's range, or its limits where these are wider."""
    factor = description.control_hz if entry.kind == "displacement" else 1.0
    limits = description.limits.entries[place]
    if entry.kind == "position":
        return min(entry.action_low, limits.low), max(entry.action_high, limits.high)
    speed = limits.speed if np.isfinite(limits.speed) else 0.0
    return min(entry.action_low * factor, -speed), max(entry.action_high * factor, speed)
