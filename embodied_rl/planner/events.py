"""Jobs that wait for resources, in simulated time."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class SimulatedJob:
    """Seconds of work that hold one unit of every resource they need.

    Attributes:
        role: what it is counted under.
        needs: names of resources.
        seconds: of work.
        then: called when it is done.
    """

    role: str
    needs: tuple[str, ...]
    seconds: float
    then: Callable[[], None]


class EventClock:
    """Runs jobs, first come first served; one that still lacks a resource does not hold up others that do not.

    Args:
        capacities: units of each resource.

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
        """Call something later; no resource is held."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()

    def load(self, name: str) -> float:
        """Share of a resource's time, so far, in which it worked."""
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
