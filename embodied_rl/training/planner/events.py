"""Simulate jobs that compete for resources, as discrete events."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class SimulatedJob:
    """A job that holds one unit of every resource it needs for some seconds.

    Attributes:
        role: the name under which its work is counted.
        needs: names of the resources.
        seconds: seconds of work.
        then: called when the job is done.
    """

    role: str
    needs: tuple[str, ...]
    seconds: float
    then: Callable[[], None]


class EventClock:
    """An event simulator that runs jobs, first come first served; a job that waits for a resource blocks no other.

    Args:
        capacities: number of units of each resource.

    Attributes:
        now: seconds of simulated time.
        busy: seconds of work done, by role.
        held: unit-seconds that jobs held, by resource.
    """

    def __init__(self, capacities: Mapping[str, int]):
        self.now = 0.0
        self.busy: dict[str, float] = {}
        self.held = dict.fromkeys(capacities, 0.0)
        self._capacities, self._free = dict(capacities), dict(capacities)
        self._waiting: list[SimulatedJob] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def submit(self, job: SimulatedJob) -> None:
        """Start a job as soon as everything it needs is free."""
        self._waiting.append(job)
        self._start()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` after some simulated seconds, without holding a resource."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self) -> None:
        """Process events until none is left."""
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()

    def load(self, name: str) -> float:
        """Return the utilisation of a resource so far, as a share of its capacity."""
        return self.held[name] / (self._capacities[name] * self.now)

    def _start(self) -> None:
        still: list[SimulatedJob] = []
        for job in self._waiting:
            if all(self._free[name] > 0 for name in job.needs):
                for name in job.needs:
                    self._free[name] -= 1
                    self.held[name] += job.seconds
                self.busy[job.role] = self.busy.get(job.role, 0.0) + job.seconds
                self.after(job.seconds, lambda job=job: self._finish(job))
            else:
                still.append(job)
        self._waiting = still

    def _finish(self, job: SimulatedJob) -> None:
        for name in job.needs:
            self._free[name] += 1
        job.then()
        self._start()
