"""Compare the planner's predictions with the measured time of `collect`.

Stages sleep for a known time, so that they overlap even on few cores, and move real pictures. All predictions are made
and written before the first run; the jitter of the runs has other seeds than the jitter of the predictions.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.handle import Deadlines, Handle, NodeShare, Runtime
from embodied_rl.runtime.processes.local import LocalRuntime
from embodied_rl.system.atomic_write import write_text
from embodied_rl.training.planner.allocation import Allocation, Order, Resources
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import DRAWS, Workload, predict_rollout
from tests.benchmarks.settings import BenchmarkConfig
from tests.benchmarks.sleeping_stages import EXECUTED, SleepingActor, SleepingConfig, SleepingSimulator

DECISIONS = 24
REPEATS = 3
_FACTORY = "tests.benchmarks.sleeping_stages:SleepingSimulator"
_MANY = Resources(cores=1024)  # a sleeping stage needs no core


@dataclass(frozen=True)
class PipelineCase:
    """Stage costs and an allocation.

    Attributes:
        name: name in the table.
        simulate, infer: seconds (fixed, per environment) of one simulator's chunk, and of one call of the policy.
        slices, workers: number of slices, and of simulator processes per slice.
        jitter: σ of a chunk's log-normal factor.
        order: "exact" or "ready".
        envs: environments of all simulators together.
    """

    name: str
    simulate: tuple[float, float]
    infer: tuple[float, float]
    slices: int
    workers: int = 1
    jitter: float = 0.0
    order: Order = "exact"
    envs: int = 32


BALANCED = ((0.002, 0.0031), (0.002, 0.0031))
LIGHT, HEAVY = (0.004, 0.001), (0.01, 0.003)
JITTERY = ((0.06, 0.0), (0.006, 0.0006))

CASES = (
    PipelineCase("balanced, one slice", *BALANCED, 1),
    PipelineCase("balanced, two slices", *BALANCED, 2),
    PipelineCase("balanced, four slices", *BALANCED, 4),
    PipelineCase("slow simulators, one slice", HEAVY, LIGHT, 1),
    PipelineCase("slow simulators, two slices", HEAVY, LIGHT, 2),
    PipelineCase("slow simulators, two of two", HEAVY, LIGHT, 2, workers=2),
    PipelineCase("slow policy, one slice", LIGHT, HEAVY, 1),
    PipelineCase("slow policy, two slices", LIGHT, HEAVY, 2),
    PipelineCase("large fixed cost, two slices", (0.04, 0.0005), (0.05, 0.0005), 2),
    PipelineCase("jitter 0.6, lockstep", *JITTERY, 1, workers=8, jitter=0.6),
    PipelineCase("jitter 0.6, exact order", *JITTERY, 2, workers=4, jitter=0.6),
    PipelineCase("jitter 0.6, ready order", *JITTERY, 2, workers=4, jitter=0.6, order="ready"),
)


@dataclass(frozen=True)
class PipelineOutcome:
    """Predicted and measured median seconds of a rollout."""

    case: PipelineCase
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return measured over predicted seconds, minus one."""
        return self.measured / self.predicted - 1

    def summary(self) -> dict[str, Any]:
        """Return the outcome as a dictionary for the report."""
        return asdict(self) | {"error": self.error}


@dataclass(frozen=True)
class Overhead:
    """The cost of the stages beyond their sleep.

    Attributes:
        transfer: seconds of a chunk's way to a simulator process and back.
        rank: seconds for which a decision keeps the rank busy (send, receive, store), by number of environments.
    """

    transfer: float
    rank: LinearCost


def measure_overhead() -> Overhead:
    """Measure rounds in which nothing sleeps: their time is the transfer there and back, and the rank's own work."""
    hop, sizes = measure_transfer(), (8, 32)
    rounds = [
        measure_case(PipelineCase("nothing", (0.0, 0.0), (0.0, 0.0), 1, envs=envs), seed=0) / DECISIONS
        for envs in sizes
    ]
    return Overhead(hop, LinearCost.fit(sizes, [max(1e-6, seconds - hop) for seconds in rounds]))


def measure_transfer(envs: int = 16) -> float:
    """Measure the seconds of a chunk's way to a simulator process and back, without the simulation itself."""
    case = PipelineCase("transfer", (0.0, 0.0), (0.0, 0.0), 1, envs=envs)
    with make_simulators(case, seed=0) as (handle,):
        episodes = [_sampler(case).episode(index) for index in range(envs)]
        handle.submit("reset", episodes).result()
        still, seconds = np.zeros((envs, EXECUTED, 2), np.float32), list[float]()
        for _ in range(40):
            began = time.perf_counter()
            future = handle.submit("step", still, episodes)
            future.result()
            seconds.append(time.perf_counter() - began - future.seconds)
    return statistics.median(seconds)


def predict_case(case: PipelineCase, extra: Overhead) -> float:
    """Predict the median seconds of a rollout with the planner's model."""
    fixed, per_env = case.infer[0] + extra.rank.fixed, case.infer[1] + extra.rank.per_item
    costs = Costs(
        step=LinearCost(*case.simulate),
        inference=LinearCost(fixed, per_env),
        update=LinearCost(),
        transfer=LinearCost(extra.transfer),
        jitter=case.jitter,
    )
    plan = Allocation("split", 1, case.workers, case.slices, case.order)
    work = Workload(case.envs, DECISIONS)
    return statistics.median(predict_rollout(costs, plan, _MANY, work, seed).seconds for seed in range(DRAWS))


def measure_case(case: PipelineCase, seed: int, runtime: Runtime | None = None) -> float:
    """Measure the median seconds of some calls of `collect`, after one warm-up call."""
    spec = SleepingSimulator.spec_of(SleepingConfig())
    actor = SleepingActor(spec, *case.infer)
    with make_simulators(case, seed, runtime) as handles:
        buffer = Rollout.allocate(actor, DECISIONS, case.envs)
        per_slice = case.envs // case.slices
        collector = Collector(handles, spec, per_slice, _sampler(case), buffer, seed, order=case.order)
        collector.collect(actor)
        times: list[float] = []
        for _ in range(REPEATS):
            collector.collect(actor)
            times.append(collector.timeline.total)
    return statistics.median(times)


@contextmanager
def make_simulators(case: PipelineCase, seed: int, runtime: Runtime | None = None) -> Iterator[Sequence[Handle]]:
    """Start the simulator processes of a case (default: on this machine), yield their handles, and close them."""
    count, runtime = case.slices * case.workers, runtime or LocalRuntime()
    handles: list[Handle] = []
    try:
        for part in range(count):
            config = SleepingConfig(*case.simulate, jitter=case.jitter, seed=1000 * seed + part)
            kwargs = {"config": config, "num_envs": case.envs // count}
            name = f"sleeping simulator {part}"
            handles.append(runtime.worker(_FACTORY, kwargs, name=name, deadlines=Deadlines(), share=NodeShare()))
        yield handles
    finally:
        for handle in handles:
            handle.close()


def make_remarks(outcomes: Sequence[PipelineOutcome]) -> list[str]:
    """Compare the gain from slices with its bound, and report the gain from ready order."""
    seconds = {each.case.name: each.measured for each in outcomes}
    gain = seconds["balanced, one slice"] / seconds["balanced, two slices"]
    case = next(case for case in CASES if case.name == "balanced, two slices")
    costs = Costs(step=LinearCost(*case.simulate), inference=LinearCost(*case.infer), update=LinearCost())
    bound = (1 + costs.ratio(case.envs)) / (1 + costs.fixed_share(case.envs))
    ready = seconds["jitter 0.6, exact order"] / seconds["jitter 0.6, ready order"]
    return [
        f"Two slices over one, balanced: {gain:.2f} times, {gain / bound:.1%} of (1 + r) / (1 + f) = {bound:.2f}.",
        f"Ready order over exact order under jitter: {ready:.2f} times.",
    ]


def _sampler(case: PipelineCase) -> EpisodeSampler:
    return EpisodeSampler(SleepingSimulator.spec_of(SleepingConfig()), 0)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Predict all cases, write the predictions, then measure."""
    extra = measure_overhead()
    predicted = [predict_case(case, extra) for case in CASES]
    write_text(Path(config.out) / "pipeline_predictions.json", json.dumps(predicted) + "\n")
    cases = [  # their jitter has a seed that no prediction used
        PipelineOutcome(case, seconds, measure_case(case, seed=DRAWS + 1))
        for case, seconds in zip(CASES, predicted, strict=True)
    ]
    return {"cases": [case.summary() for case in cases], "remarks": make_remarks(cases)}
