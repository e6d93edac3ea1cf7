"""What a policy is attached to: the body of a simulated robot or of a real one. The standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Body:
    """What a robot shows and takes, whoever runs it.

    Attributes:
        cameras: name → (height, width) of its pictures.
        state_names: the S entries of its state, SI units.
        action_names: the A entries of an action.
        action_low, action_high: limits of an action, length A.
        control_hz: control steps per second.
    """

    cameras: Mapping[str, tuple[int, int]]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
