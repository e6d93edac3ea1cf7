"""How long the processes of a run wait for each other: every such deadline follows from the plan, here."""

from embodied_rl.config.schema import Plan, TrainConfig
from embodied_rl.runtime.simulators import python_environments

REPORT = 10.0
"""Seconds after which a rollout worker tells that it goes on, and rank 0 tells the other ranks that it still waits."""

_LEAST = 300.0
"""Seconds that ranks wait for each other at least."""


def derive_silence(plan: Plan) -> float:
    """Return how long a sound process that simulates may be silent, in seconds.

    That is the time to notice that its simulator hangs, to replace it, and to execute the first call of the new one.
    """
    return plan.start_timeout + 2 * plan.call_timeout


def derive_worker_deadline(plan: Plan) -> float:
    """Return the seconds in which a rollout worker must report; then it counts as hung and is replaced."""
    return derive_silence(plan) + REPORT


def derive_patience(config: TrainConfig) -> float:
    """Return how many seconds ranks wait for each other: enough to detect a hanging simulator, and to replace it."""
    foreign = python_environments.find_interpreter(config.sim) is not None
    apart = foreign or config.plan.allocation == "split"
    return max(_LEAST, derive_silence(config.plan) if apart else 0.0)
