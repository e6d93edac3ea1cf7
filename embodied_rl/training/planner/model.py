"""Predict the duration of an iteration from the stage costs, with a discrete-event model of an allocation.

It follows `Collector.collect`: every rank infers the slices in turn (or, in ready order, the simulators that are
done). A slice's simulators work while other slices are inferred. On cores, all running processes share the cores.

Symbols: N environments, T decisions of each.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from embodied_rl.training.planner.allocation import Allocation, Resources
from embodied_rl.training.planner.costs import Costs

SETTLED = 24
"""Rounds after which a rollout's rate has settled; longer ones are predicted from it."""

DRAWS = 5
"""Number of draws of the jitter."""

_CORE, _RANK = "core", "rank"


@dataclass(frozen=True)
class Workload:
    """The workload of an iteration: N environments, T decisions of each.

    Attributes:
        envs, decisions: N and T.
        staleness: number of versions that collectors may run ahead of the learner; 0 for none.
        segments: equal parts of a rollout; learning from one overlaps with collecting the next; 1 for no parts.
        early: share of the update that needs only the current segment: the update's first epoch.
    """

    envs: int
    decisions: int
    staleness: int = 0
    segments: int = 1
    early: float = 1.0

    @property
    def ahead(self) -> bool:
        """Return whether collecting and learning run at the same time."""
        return self.staleness > 0 or self.segments > 1

    @property
    def rows(self) -> int:
        """Return the number of decisions to learn from."""
        return self.envs * self.decisions


@dataclass(frozen=True)
class PredictedRollout:
    """The predicted timing of one rollout.

    Attributes:
        seconds: duration of the rollout.
        busy: seconds of simulation and of inference per second; above 1 if several processes simulate at once.
        bubble: idle share of the time of the busiest resource among rank, cores and accelerators.
    """

    seconds: float
    busy: dict[str, float]
    bubble: float


@dataclass(frozen=True)
class Prediction:
    """The predicted timing of one iteration.

    Attributes:
        seconds: duration of the whole iteration.
        rollout, update: seconds of its parts; the rest is switching and synchronising.
        busy, bubble: those of the rollout, see `PredictedRollout`.
        decisions_per_second: throughput of the whole iteration.
        collected_per_second: decisions per second of the rollout alone, as collectors reach it that never wait.
    """

    seconds: float
    rollout: float
    update: float
    busy: dict[str, float]
    bubble: float
    decisions_per_second: float
    collected_per_second: float


def predict_iteration(costs: Costs, plan: Allocation, resources: Resources, workload: Workload) -> Prediction:
    """Predict one iteration: the rollout, then the update. Both overlap if rollout workers may run ahead, by versions
    or by segments, on their own cores or accelerators. With jitter, take the median of several draws.
    """
    rounds = min(workload.decisions, SETTLED)
    short = replace(workload, decisions=rounds)
    draws = [predict_rollout(costs, plan, resources, short, seed) for seed in range(DRAWS if costs.jitter else 1)]
    middle = sorted(draws, key=lambda draw: draw.seconds)[len(draws) // 2]
    seconds = middle.seconds * workload.decisions / rounds
    update = costs.update(workload.rows / count_learners(plan))
    extra = costs.switch if plan.mode != "split" else 0.0
    extra += costs.synchronise if plan.mode != "colocated" else 0.0
    if plan.rollout_workers:
        extra = costs.synchronise
    ahead = plan.rollout_workers and workload.ahead and (resources.devices or resources.cores) > plan.ranks
    total = seconds + update + extra
    if ahead and workload.staleness:
        total = max(seconds, update) + extra
    elif ahead:  # by segments, a pipeline of two stages
        segment, learned = seconds / workload.segments, update * workload.early / workload.segments
        waiting = (workload.segments - 1) * max(segment, learned)
        total = (segment + waiting + learned + update * (1 - workload.early)) + extra
    return Prediction(
        total, seconds, update, middle.busy, middle.bubble, workload.rows / total, workload.rows / seconds
    )


def count_learners(plan: Allocation) -> int:
    """Return the number of ranks or accelerators that share the update."""
    return plan.ranks + (plan.workers if plan.mode == "hybrid" else 0)


def predict_rollout(
    costs: Costs, plan: Allocation, resources: Resources, workload: Workload, seed: int = 0
) -> PredictedRollout:
    """Predict a rollout, until the T decisions of every environment are executed.

    All ranks are alike, so only one is simulated.
    """
    place = _on_devices if resources.devices else _on_cores
    if plan.rollout_workers:
        resources = replace(resources, cores=max(1, resources.cores - (plan.ranks if workload.ahead else 0)))
    rank = place(costs, plan.collecting, resources, workload, random.Random(seed))
    rank.begin()
    rank.clock.run()
    clock = rank.clock
    busy = {role: seconds / clock.now for role, seconds in clock.busy.items()}
    return PredictedRollout(clock.now, busy, 1 - max(clock.load(name) for name in clock.held))


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


@dataclass(eq=False)
class _Simulator:
    """A simulator that steps all its environments at once: `row` is the next decision, `execute` runs a chunk."""

    envs: int
    execute: Callable[[Callable[[], None]], None]
    row: int = 0


@dataclass
class _Rank:
    """A rank that infers for its simulators until each has executed all its decisions.

    Attributes:
        infer: runs the inference of a number of environments, then calls a function.
        send: seconds until an inferred chunk reaches its simulator.
    """

    clock: EventClock
    slices: list[list[_Simulator]]
    decisions: int
    exact: bool
    infer: Callable[[int, Callable[[], None]], None]
    send: float
    ready: deque[_Simulator] = field(default_factory=deque)
    turn: int = 0
    inferring: bool = False

    def begin(self) -> None:
        self.ready.extend(simulator for group in self.slices for simulator in group)
        self._next()

    def _next(self) -> None:
        batch = None if self.inferring else self._batch()
        if not batch:
            return
        self.inferring = True
        self.infer(sum(simulator.envs for simulator in batch), lambda: self._decided(batch))

    def _batch(self) -> list[_Simulator]:
        """Return the simulators to infer now; empty if the rank has to wait for simulators."""
        if not self.exact:
            most = len(self.slices[0])
            return [self.ready.popleft() for _ in range(min(most, len(self.ready)))]
        group = self.slices[self.turn]
        if any(simulator not in self.ready for simulator in group):
            return []
        for simulator in group:
            self.ready.remove(simulator)
        self.turn = (self.turn + 1) % len(self.slices)
        return group

    def _decided(self, batch: list[_Simulator]) -> None:
        self.inferring = False
        for simulator in batch:
            executed = partial(self.clock.after, self.send, partial(self._executed, simulator))
            self.clock.after(self.send, partial(simulator.execute, executed))
        self._next()

    def _executed(self, simulator: _Simulator) -> None:
        simulator.row += 1
        if simulator.row < self.decisions:
            self.ready.append(simulator)
            self._next()


def _on_cores(costs: Costs, plan: Allocation, resources: Resources, workload: Workload, draw: random.Random) -> _Rank:
    """Model a rank on cores: it shares its part of the cores with its simulator processes; colocated is one process."""
    cores = max(1, resources.cores // plan.ranks)
    clock = EventClock({_CORE: cores, _RANK: 1})
    envs = workload.envs // plan.ranks // plan.slices // max(1, plan.workers)

    def simulate(then: Callable[[], None]) -> None:
        needs = (_CORE,) if plan.workers else (_CORE, _RANK)
        clock.submit(SimulatedJob("simulation", needs, costs.simulate(envs) * _jitter(costs, draw), then))

    def infer(count: int, then: Callable[[], None]) -> None:
        clock.submit(SimulatedJob("inference", (_CORE, _RANK), costs.inference(count), then))

    slices = _slices(plan.slices, max(1, plan.workers), envs, simulate)
    send = costs.transfer(envs) / 2 if plan.workers else 0.0
    return _Rank(clock, slices, workload.decisions, plan.order == "exact", infer, send)


def _on_devices(costs: Costs, plan: Allocation, resources: Resources, workload: Workload, draw: random.Random) -> _Rank:
    """Model one accelerator per role, as all of a role are alike; `costs.step_on` says where chunks are executed."""
    colocated = plan.mode == "colocated"
    simulators = plan.workers or plan.ranks
    policy, pictures = "policy", "policy" if colocated else "simulator"
    clock = EventClock({policy: 1, pictures: 1, _CORE: 1})
    envs = math.ceil(workload.envs / plan.slices / simulators)

    def simulate(then: Callable[[], None]) -> None:
        step, render = costs.step(envs) * _jitter(costs, draw), costs.render(envs)
        if costs.step_on == "device":
            clock.submit(SimulatedJob("simulation", (pictures,), step + render, then))
        else:
            following = SimulatedJob("simulation", (pictures,), render, then)
            clock.submit(
                SimulatedJob("simulation", (_CORE,), step, lambda: clock.submit(following) if render else then())
            )

    def infer(count: int, then: Callable[[], None]) -> None:
        clock.submit(
            SimulatedJob("inference", (policy,), costs.inference(math.ceil(count * simulators / plan.ranks)), then)
        )

    slices = _slices(plan.slices, 1, envs, simulate)
    send = 0.0 if colocated else costs.transfer(envs) / 2
    return _Rank(clock, slices, workload.decisions, plan.order == "exact", infer, send)


def _slices(
    count: int, workers: int, envs: int, execute: Callable[[Callable[[], None]], None]
) -> list[list[_Simulator]]:
    return [[_Simulator(envs, execute) for _ in range(workers)] for _ in range(count)]


def _jitter(costs: Costs, draw: random.Random) -> float:
    """Draw a log-normal factor of mean 1."""
    sigma = costs.jitter
    return draw.lognormvariate(-(sigma**2) / 2, sigma) if sigma else 1.0
