"""The interface of a robot body, simulated or real, that a policy controls. Imports the standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Body:
    """The cameras, state and action space of a robot, simulated or real.

    Attributes:
        cameras: name → (height, width) of its images.
        state_names: names of the S state entries, SI units.
        action_names: names of the A entries of an action.
        action_low, action_high: limits of an action, length A.
        control_hz: control steps per second.
    """

    cameras: Mapping[str, tuple[int, int]]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
