"""Compare collecting ahead of the learner, by versions or by segments, with the planner's prediction.

Stages sleep for a known time and move real pictures. The learner, rollout processes, boards, gates and the transport
between them are the same as in training; only `update` is a sleep.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.runtime.processes.handle import BoardReader, Deadlines, NodeShare, Runtime
from embodied_rl.runtime.processes.local import InlineHandle, LocalRuntime
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.planner.allocation import Allocation, Resources
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Workload, predict_iteration
from embodied_rl.training.rollout_worker import RolloutWorker
from embodied_rl.training.sources import SharedExperience
from embodied_rl.training.worker_pool import RolloutWorkers
from tests.benchmarks.settings import BenchmarkConfig
from tests.benchmarks.sleeping_stages import SleepingActor, SleepingConfig, SleepingSimulator

DECISIONS, ENVS = 16, 16
WARM, MEASURED = 2, 8
"""Numbers of warm-up iterations and of measured iterations."""
_MANY = Resources(cores=1024)  # a sleeping stage needs no core


@dataclass(frozen=True)
class AheadCase:
    """Stage times of a case, and how far its workers may be ahead of the learner.

    Attributes:
        name: name in the table.
        simulate, infer: seconds of a worker's simulated chunk, and of one call of its policy.
        update: seconds of an update.
        staleness: allowed lag in versions; 0 collects and learns in turn.
        workers: number of rollout workers.
        segments: number of segments of an iteration; the learner updates after each one.
    """

    name: str
    simulate: float
    infer: float
    update: float
    staleness: int
    workers: int = 1
    segments: int = 1


_ROLLOUT = (0.05, 0.02, 0.6)
_UPDATE = (0.02, 0.01, 1.0)
CASES = (
    AheadCase("rollout-bound, in turn", *_ROLLOUT, staleness=0),
    AheadCase("rollout-bound, in four segments", *_ROLLOUT, staleness=0, segments=4),
    AheadCase("rollout-bound, one ahead", *_ROLLOUT, staleness=1),
    AheadCase("train-bound, in turn", *_UPDATE, staleness=0),
    AheadCase("train-bound, in four segments", *_UPDATE, staleness=0, segments=4),
    AheadCase("train-bound, one ahead", *_UPDATE, staleness=1),
    AheadCase("train-bound, two workers ahead", *_UPDATE, staleness=1, workers=2),
)


@dataclass(frozen=True)
class AheadOutcome:
    """Predicted and measured median seconds of an iteration, and the share of decisions older than the learner."""

    case: AheadCase
    predicted: float
    measured: float
    behind: float

    @property
    def share(self) -> float:
        """Return the measured throughput as a share of the predicted throughput."""
        return self.predicted / self.measured

    def summary(self) -> dict[str, Any]:
        """Return the outcome as a dictionary for the report."""
        return asdict(self) | {"share": self.share}


def predict_case(case: AheadCase, extra: float) -> float:
    """Predict the seconds of an iteration with the planner's model."""
    step, inference, update = (LinearCost(seconds) for seconds in (case.simulate, case.infer, case.update))
    costs = Costs(step=step, inference=inference, update=update, synchronise=extra)
    plan = Allocation("colocated", 1, rollout_workers=case.workers)
    return predict_iteration(costs, plan, _MANY, Workload(ENVS, DECISIONS, case.staleness, case.segments)).seconds


def measure_case(case: AheadCase, runtime: Runtime) -> tuple[float, float]:
    """Measure the median seconds of an iteration, and the share of decisions with older weights than the learner's."""
    seconds, behind = list[float](), list[float]()
    actor = SleepingActor(SleepingSimulator.spec_of(SleepingConfig()), 0.0, 0.0)
    with make_experience(case, runtime, actor) as source:
        source.offer()
        for _ in range(WARM + MEASURED):
            began = time.perf_counter()
            for _ in range(case.segments):
                rollout = source.collect()
                behind.append(float((rollout.version < actor.version).float().mean()))
                time.sleep(case.update / case.segments)
            actor.version += 1
            source.offer()
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM:]), statistics.mean(behind[WARM * case.segments :])


@contextmanager
def make_experience(case: AheadCase, runtime: Runtime, actor: SleepingActor) -> Iterator[SharedExperience]:
    """Start the rollout workers of a case; yield the shared experience of one rank, and close it at the end."""
    board = runtime.board()
    handles = [
        runtime.worker(
            f"{__name__}:{make_sleeping_worker.__name__}",
            {"case": case, "number": number, "board": board.reader()},
            name=f"rollout worker {number}",
            deadlines=Deadlines(),
            share=NodeShare(),
        )
        for number in range(case.workers)
    ]
    spec = SleepingSimulator.spec_of(SleepingConfig())
    workers = RolloutWorkers(board, handles, case.staleness, case.segments)
    rollouts = [Rollout.allocate(actor, DECISIONS // case.segments, ENVS) for _ in range(case.segments)]
    source = SharedExperience(actor, Ranks(), rollouts, EpisodeSampler(spec, 0), workers)
    try:
        yield source
    finally:
        source.close()


def make_sleeping_worker(case: AheadCase, number: int, board: BoardReader) -> RolloutWorker:
    """Build a rollout worker with sleeping stages."""
    config, envs = SleepingConfig(case.simulate), ENVS // case.workers
    spec = SleepingSimulator.spec_of(config)
    actor, sampler = SleepingActor(spec, case.infer, 0.0), EpisodeSampler(spec, 0)
    actor.version = -1
    handles = [InlineHandle(lambda: SleepingSimulator(config, envs))]
    rollout = Rollout.allocate(actor, DECISIONS // case.segments, envs)
    collector = Collector(
        handles, spec, envs, sampler, rollout, 0, env_offset=number * envs, env_total=ENVS
    )  # fmt: skip
    return RolloutWorker(PolicyWorker(actor), board, collector, sampler, handles)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure all cases; the configuration has no effect."""
    runtime = LocalRuntime()
    overhead = measure_case(AheadCase("nothing", 0.0, 0.0, 0.0, 0), runtime)[0]  # weights and rollouts on their way
    found = [AheadOutcome(case, predict_case(case, overhead), *measure_case(case, runtime)) for case in CASES]
    return {"overhead": overhead, "cases": [each.summary() for each in found]}
