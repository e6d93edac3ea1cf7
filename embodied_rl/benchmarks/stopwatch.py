"""Time pieces of work in turns, so that a slow moment of the machine affects all of them; and decisions of policies."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from embodied_rl.deployment.execution.settings import CONTINUING
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Observation

MIN_ROUNDS, WARM_UP = 5, 2


@dataclass(frozen=True)
class TurnTimes:
    """Times of several pieces of work that ran in turns, round by round.

    Attributes:
        wall: name → elapsed seconds of each round.
        processor: name → processor seconds of this process in each round.
    """

    wall: dict[str, tuple[float, ...]]
    processor: dict[str, tuple[float, ...]]

    def seconds(self, name: str) -> float:
        """Return the elapsed seconds of the median round."""
        return statistics.median(self.wall[name])

    def ratio(self, slow: str, fast: str) -> float:
        """Compute how many times longer `slow` takes: the median of the rounds' ratios."""
        pairs = zip(self.wall[slow], self.wall[fast], strict=True)
        return statistics.median(first / second for first, second in pairs)

    def processor_ratio(self, slow: str, fast: str) -> float:
        """Compute the ratio of median processor times, which other programs on the same core do not affect."""
        return statistics.median(self.processor[slow]) / statistics.median(self.processor[fast])

    def summary(self) -> dict[str, Any]:
        """Return medians and the number of rounds as a dictionary for the report."""
        medians = {
            key: {name: statistics.median(row) for name, row in rows.items()} for key, rows in asdict(self).items()
        }
        rounds = len(next(iter(self.wall.values())))
        return {"rounds": rounds, "seconds": medians["wall"], "processor_seconds": medians["processor"]}


def take_turns(works: Mapping[str, Callable[[], object]], seconds: float, device: torch.device | str) -> TurnTimes:
    """Run all works in turns for at least `seconds` and `MIN_ROUNDS` rounds, after `WARM_UP` uncounted rounds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    began, rounds = time.perf_counter(), 0
    while rounds < WARM_UP + MIN_ROUNDS or time.perf_counter() - began < seconds:
        order = list(works)[:: 1 if rounds % 2 == 0 else -1]
        for name in order:
            found[name].append(_timed(works[name], torch.device(device)))
        rounds += 1
    wall, processor = (
        {name: tuple(pair[i] for pair in pairs[WARM_UP:]) for name, pairs in found.items()} for i in (0, 1)
    )
    return TurnTimes(wall, processor)


@contextmanager
def hold_one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    _wait(device)
    wall, processor = time.perf_counter(), time.process_time()
    work()
    _wait(device)
    return time.perf_counter() - wall, time.process_time() - processor


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
