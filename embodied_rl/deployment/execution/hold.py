"""How a robot holds still: an action that moves nothing, with some entries as they were commanded last."""

from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec


@dataclass(frozen=True)
class Hold:
    """The rule of one robot.

    Attributes:
        action: float32 [A], holds still a robot that has not been commanded yet.
        kept: bool [A], entries that repeat the last command, such as a gripper's.
    """

    action: Array
    kept: Array

    def choose(self, last: Array | None) -> Array:
        """Return the action float32 [A] that holds still after the command `last` [A]; None: there was none."""
        return self.action.copy() if last is None else np.where(self.kept, last, self.action).astype(np.float32)


def make_hold(spec: SimulatorSpec, given: tuple[float, ...] | None = None) -> Hold:
    """Return how a simulated robot holds still.

    Args:
        spec: of the simulator.
        given: action that the user gave, for a simulator that does not say; the whole of it is repeated.

    Raises:
        UserError: neither the simulator nor the user says, or the given action does not fit.
    """
    action = spec.hold if given is None else given
    names = ", ".join(spec.action_names)
    if action is None:
        raise UserError(
            "delay: this simulator does not say with which action its robot holds still, as it does while it waits for "
            f"its first chunk. Give it: hold=[…], {len(spec.action_names)} numbers for {names}."
        )
    inside = [low <= value <= high for low, value, high in zip(spec.action_low, action, spec.action_high, strict=False)]
    if len(action) != len(spec.action_names) or not all(inside):
        limits = f"{list(spec.action_low)} to {list(spec.action_high)}"
        raise UserError(f"hold={list(action)}: {len(spec.action_names)} numbers, for {names}, within {limits}.")
    kept = [given is None and name in spec.kept_while_holding for name in spec.action_names]
    return Hold(np.array(action, np.float32), np.array(kept))
