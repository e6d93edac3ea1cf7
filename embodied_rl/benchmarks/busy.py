"""How busy symmetric ranks keep their cores: processor time of each rank, as a share of the time that passes."""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from embodied_rl.config.schema import Plan, TrainConfig
from embodied_rl.ranks.collective import Ranks
from embodied_rl.ranks.launch import launch_ranks
from embodied_rl.runs.folder import RunFolder
from embodied_rl.training.parts import assemble_parts
from embodied_rl.training.trainer import Trainer

_SCHEDULER = Path("/proc/thread-self/schedstat")
_WARM_UP = 3
"""Iterations before the clock starts: PPO fits its critic alone in the first two."""


@dataclass(frozen=True)
class Busy:
    """Some iterations of training, rollout and update.

    Attributes:
        shares: processor time of each rank as a share of the time that passed, in order of ranks.
        demands: the same with the time in which a rank had work but other programs had its core; on an idle machine
            equal to `shares`, on a shared one what they would be on an idle one. Empty where the system does not tell.
        iterations: that were measured.
        seconds: of the median iteration.
        times: seconds of each.
        decisions_per_second: of all ranks.
    """

    shares: tuple[float, ...]
    demands: tuple[float, ...]
    iterations: int
    seconds: float
    times: tuple[float, ...]
    decisions_per_second: float

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure_busy(config: TrainConfig, plan: Plan, seconds: float) -> Busy:
    """Train for so many seconds, at least one iteration, under a plan; nothing is saved."""
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder.create(root, "bench", config.seed)
        return launch_ranks(_train, (replace(config, plan=plan), folder, seconds), plan.ranks)


def _train(job: tuple[TrainConfig, RunFolder, float], ranks: Ranks) -> Busy:
    """One rank's part of the measurement; the same result on every rank."""
    config, folder, seconds = job
    parts = assemble_parts(config, folder, ranks)
    trainer = Trainer(parts)
    for _ in range(_WARM_UP):
        trainer.step()
    ranks.barrier()
    began, busy_before, queued_before, times = (
        time.perf_counter(),
        time.process_time(),
        read_queued_seconds(),
        list[float](),
    )
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
    return Busy(shares, demands, len(times), statistics.median(times), tuple(times), decisions / sum(times))


def read_queued_seconds() -> float | None:
    """Seconds that this thread was ready to run and had to wait for a core; None where the system does not tell."""
    try:
        return int(_SCHEDULER.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return None
