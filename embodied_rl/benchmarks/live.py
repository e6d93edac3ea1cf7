"""Whole training iterations under several allocations of this machine, beside what the planner predicted of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from embodied_rl.benchmarks import busy
from embodied_rl.planner import choice
from embodied_rl.planner.allocation import Allocation
from embodied_rl.planner.costs import CostFile, Costs
from embodied_rl.planner.model import Workload
from embodied_rl.planner.resources import Resources
from embodied_rl.planner.search import Candidate, candidate
from embodied_rl.schema import TrainConfig

SYNC, PIPELINED = Allocation("split", 1, 2, 1), Allocation("split", 1, 1, 2)


@dataclass(frozen=True)
class Run:
    """An allocation, its prediction, and the median iteration that was measured."""

    plan: Candidate
    measured: float

    @property
    def predicted(self) -> float:
        """Seconds of an iteration."""
        assert self.plan.prediction is not None
        return self.plan.prediction.seconds

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self) | {"error": self.measured / self.predicted - 1}


def plans(config: TrainConfig, measured: CostFile, resources: Resources) -> list[Candidate]:
    """What the planner would choose, and what it is held against: nothing overlapped, and two slices."""
    best = choice.decide(config, measured, resources).best
    found = {best.allocation: best}
    for plan in (SYNC, PIPELINED):
        found.setdefault(plan, candidate(measured.costs, plan, resources, choice.workload(config)))
    return [item for item in found.values() if item.prediction is not None]


def run(config: TrainConfig, item: Candidate, seconds: float = 20.0) -> Run:
    """Train for a while under an allocation."""
    return Run(item, busy.measure(config, choice.to_plan(item.allocation, config.plan), seconds).seconds)


def table(runs: Sequence[Run], costs: Costs, work: Workload) -> Table:
    """Each allocation beside its prediction."""
    shares = f"r = {costs.ratio(work.envs):.2f}, f = {costs.fixed_share(work.envs):.2f}"
    found = Table(title="training", caption=f"Seconds of the median iteration; {shares}.", box=SIMPLE_HEAD)
    found.add_column("allocation")
    for heading in ("predicted", "measured", "error"):
        found.add_column(heading, justify="right", no_wrap=True)
    for each in runs:
        error = each.measured / each.predicted - 1
        found.add_row(str(each.plan.allocation), f"{each.predicted:.2f} s", f"{each.measured:.2f} s", f"{error:+.1%}")
    return found
