"""Seconds of pieces of work that take turns, so that a slow moment of the machine slows all of them."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

MIN_ROUNDS, WARM_UP = 5, 2


@dataclass(frozen=True)
class TurnTimes:
    """Some pieces of work, one after another, again and again.

    Attributes:
        wall: name → seconds that passed, a round each.
        processor: name → processor seconds of this process.
    """

    wall: dict[str, tuple[float, ...]]
    processor: dict[str, tuple[float, ...]]

    def seconds(self, name: str) -> float:
        """Of the median round."""
        return statistics.median(self.wall[name])

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer `slow` takes: the median of the rounds' ratios."""
        pairs = zip(self.wall[slow], self.wall[fast], strict=True)
        return statistics.median(first / second for first, second in pairs)

    def processor_ratio(self, slow: str, fast: str) -> float:
        """The same in processor time, which other programs on the same core do not stretch."""
        return statistics.median(self.processor[slow]) / statistics.median(self.processor[fast])

    def summary(self) -> dict[str, Any]:
        """For the report: medians, and the number of rounds."""
        medians = {
            key: {name: statistics.median(row) for name, row in rows.items()} for key, rows in asdict(self).items()
        }
        return {
            "rounds": len(next(iter(self.wall.values()))),
            "seconds": medians["wall"],
            "processor_seconds": medians["processor"],
        }


def take_turns(works: Mapping[str, Callable[[], object]], seconds: float, device: torch.device | str) -> TurnTimes:
    """Do all pieces of work for at least so many seconds and `MIN_ROUNDS` rounds, after `WARM_UP` that do not count."""
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
    """Let torch compute on one core in here."""
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
