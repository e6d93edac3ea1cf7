"""Cost of a decision that continues committed actions relative to a plain one: one row, one thread, in turns."""

from functools import partial

from embodied_rl.benchmarks.stopwatch import TurnTimes, hold_one_thread, take_turns
from embodied_rl.deployment.execution.settings import CONTINUING
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Observation

PLAIN = "plain"


def measure_cost(policy: Actor, observation: Observation, committed: int, seconds: float) -> TurnTimes:
    """Time decisions on one row: plain, and each strategy that continues `committed` actions, if the policy can.

    The actions are those that the policy itself chose.
    """
    keys = NoiseKeys.none(1)
    prefix = policy.infer(observation, keys, whole=True)[:, :committed]
    works = {PLAIN: partial(policy.infer, observation, keys)}
    for strategy in CONTINUING:
        if strategy != "prefix" or policy.prefix_trained_to >= committed:
            works[strategy] = partial(policy.infer, observation, keys, prefix, strategy=strategy)
    with hold_one_thread():
        return take_turns(works, seconds, policy.device)


def describe_cost(times: TurnTimes) -> str:
    """Format each decision's milliseconds and its ratio to a plain decision."""
    said = [f"{name} {1e3 * times.seconds(name):.2f} ms ({times.ratio(name, PLAIN):.2f}x)" for name in times.wall]
    return f"One decision, one row, one thread: {', '.join(said)}."
