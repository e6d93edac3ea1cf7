"""What a configured core is made of. Shapes: `A` action entries."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.control_step import StepAccount, find_material
from embodied_rl.deployment.control.guard import Guard
from embodied_rl.deployment.control.intentions import MOST, Intentions
from embodied_rl.deployment.control.probing import MotionProbe
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.safety_filter import SafetyFilter
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import OperatorInput


class CoreParts(NamedTuple):
    """The parts of a core that knows its robot."""

    settings: CoreSettings
    guard: Guard
    intentions: Intentions
    filter: SafetyFilter
    account: StepAccount
    probe: MotionProbe

    def is_measured(self, measured: NDArray[np.float64]) -> bool:
        """Return whether all entries [A] that must be measured are numbers."""
        return bool(np.isfinite(measured[np.array(self.settings.measured)]).all())

    def keep_measured(self, measured: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [A], NaN for the entries that nothing measures."""
        return np.where(self.settings.measured, measured, np.nan)

    def check_teleop(self, operator: OperatorInput) -> tuple[OperatorInput, str]:
        """Return the operator's input without a human's command that cannot be, and in words why it cannot."""
        given, count = operator.teleop, len(self.settings.limits.entries)
        if given is None or (np.shape(given) == (count,) and not (np.abs(given) > MOST).any()):
            return operator, ""
        said = f"a human's command was refused: {count} numbers of at most {MOST:g} are wanted; NaN for none."
        return replace(operator, teleop=None), said


def assemble_parts(
    settings: CoreSettings,
    policy: Settings | None,
    clock: Callable[[], float],
    source_clock: Callable[[], int] | None,
) -> CoreParts:
    """Return the parts for a robot and a policy.

    Raises:
        UserError: the two differ in size or rate.
    """
    if policy is not None:
        settings.check_policy(policy)
    intentions = Intentions(settings, policy, clock)
    account = StepAccount(intentions.units, find_material(settings, policy))
    guard, safety = Guard(settings, source_clock), SafetyFilter(settings.limits, settings.period_s)
    return CoreParts(settings, guard, intentions, safety, account, MotionProbe(settings))
