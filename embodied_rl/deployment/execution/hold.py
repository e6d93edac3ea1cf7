"""Hold actions: an action without motion, in which some entries repeat their last command."""

from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec


@dataclass(frozen=True)
class Hold:
    """Hold action of one robot.

    Attributes:
        action: float32 [A], for a robot without a last command.
        kept: bool [A], entries that repeat the last command, such as a gripper's.
    """

    action: Array
    kept: Array

    def choose(self, last: Array | None) -> Array:
        """Return the hold action float32 [A] after the command `last` [A]; None: there was none."""
        return self.action.copy() if last is None else np.where(self.kept, last, self.action).astype(np.float32)


def make_hold(spec: SimulatorSpec, given: tuple[float, ...] | None = None) -> Hold:
    """Return the hold action of a simulated robot.

    Args:
        spec: of the simulator.
        given: action of the user, for a simulator that defines none; no entry repeats its last command.

    Raises:
        UserError: neither the simulator nor the user defines it, or the given action does not fit.
    """
    action = spec.hold if given is None else given
    names = ", ".join(spec.action_names)
    if action is None:
        raise UserError(
            "delay: this simulator does not say with which action its robot holds still, as it does while it waits for "
            f"its first chunk. Give it: hold=[…], {len(spec.action_names)} numbers for {names}.",
            code="hold-missing",
        )
    inside = [low <= value <= high for low, value, high in zip(spec.action_low, action, spec.action_high, strict=False)]
    if len(action) != len(spec.action_names) or not all(inside):
        limits = f"{list(spec.action_low)} to {list(spec.action_high)}"
        raise UserError(
            f"hold={list(action)}: {len(spec.action_names)} numbers, for {names}, within {limits}.", code="hold-invalid"
        )
    kept = [given is None and name in spec.kept_while_holding for name in spec.action_names]
    return Hold(np.array(action, np.float32), np.array(kept))
