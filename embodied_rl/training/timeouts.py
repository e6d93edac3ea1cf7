"""Timeouts between the processes of a run, derived from its plan."""

from embodied_rl.runtime.simulators import python_environments
from embodied_rl.schema import Plan, TrainConfig

REPORT = 10.0
"""Seconds between two reports: of a rollout worker to rank 0, and of rank 0, which waits for it, to the other ranks."""

_LEAST = 300.0
"""Least timeout of a rank that waits for another rank, in seconds."""


def worker_silence_timeout(plan: Plan) -> float:
    """Return how long a healthy process that simulates may be silent, in seconds.

    That is the time to detect a hanging simulator, to replace it, and to execute the first call of the new one.
    """
    return plan.start_timeout + 2 * plan.call_timeout


def worker_report_timeout(plan: Plan) -> float:
    """Return the seconds in which a rollout worker must report before it counts as hung and is replaced."""
    return worker_silence_timeout(plan) + REPORT


def rank_timeout(config: TrainConfig) -> float:
    """Return how long ranks wait for each other, in seconds: enough to detect and to replace a hanging simulator."""
    foreign = python_environments.find_interpreter(config.sim) is not None
    apart = foreign or config.plan.allocation == "split"
    return max(_LEAST, worker_silence_timeout(config.plan) if apart else 0.0)
