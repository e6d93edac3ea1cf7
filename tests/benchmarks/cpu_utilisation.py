"""Measure how busy symmetric ranks keep their cores: processor time of each rank as a share of the elapsed time."""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.launch import launch_ranks
from embodied_rl.schema import Plan, TrainConfig
from embodied_rl.training.run_parts import assemble_parts
from embodied_rl.training.trainer import Trainer
from tests.benchmarks.settings import BenchmarkConfig

_SCHEDULER = Path("/proc/thread-self/schedstat")
_WARM_UP = 3
"""Iterations before the clock starts: PPO fits its critic alone in the first two."""


@dataclass(frozen=True)
class Utilisation:
    """Measurement of some training iterations, each with rollout and update.

    Attributes:
        shares: processor time of each rank as a share of the elapsed time, in the order of the ranks.
        demands: `shares` plus the time in which a rank was ready but other programs had its core: an estimate of
            `shares` on an idle machine. Empty if the system does not report it.
        iterations: number of measured iterations.
        seconds: seconds of the median iteration.
        times: seconds of each iteration.
        decisions_per_second: decisions per second of all ranks together.
    """

    shares: tuple[float, ...]
    demands: tuple[float, ...]
    iterations: int
    seconds: float
    times: tuple[float, ...]
    decisions_per_second: float


def measure_utilisation(config: TrainConfig, plan: Plan, seconds: float) -> Utilisation:
    """Train for `seconds`, at least one iteration, under a plan; save nothing."""
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder.create(root, "bench", config.seed)
        return launch_ranks(_train, (replace(config, plan=plan), folder, seconds), plan.ranks)


def _train(job: tuple[TrainConfig, RunFolder, float], ranks: Ranks) -> Utilisation:
    """Run one rank's part of the measurement; return the same result on every rank."""
    config, folder, seconds = job
    parts = assemble_parts(config, folder, ranks)
    trainer = Trainer(parts)
    for _ in range(_WARM_UP):
        trainer.step()
    ranks.barrier()
    times: list[float] = []
    began, busy_before, queued_before = time.perf_counter(), time.process_time(), read_queued_seconds()
    while True:
        started = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - started)
        if ranks.any_(time.perf_counter() - began >= seconds):
            break
    passed, busy, waited = time.perf_counter() - began, time.process_time() - busy_before, read_queued_seconds()
    shares = tuple(ranks.gather(busy / passed))
    told = None if waited is None or queued_before is None else (busy + waited - queued_before) / passed
    demands = tuple(share for share in ranks.gather(told) if share is not None)
    parts.close()
    decisions = len(times) * config.train.decisions * config.sim.num_envs
    return Utilisation(shares, demands, len(times), statistics.median(times), tuple(times), decisions / sum(times))


def read_queued_seconds() -> float | None:
    """Read how many seconds this thread was ready but waited for a core; None if the system does not report it."""
    try:
        return int(_SCHEDULER.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return None


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure colocated ranks, one per core, as many as divide the environments equally."""
    ranks = min(int(provenance.describe_hardware()["cores"]), config.sim.num_envs)
    while config.sim.num_envs % ranks:
        ranks -= 1
    return asdict(measure_utilisation(config, Plan("colocated", ranks), config.seconds))
