"""Measure training iterations under several allocations of this machine, and compare with the planner's prediction."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied_rl.schema import TrainConfig
from embodied_rl.system.atomic_write import write_text
from embodied_rl.training.planner import plan_selection, profile
from embodied_rl.training.planner.allocation import Allocation, Resources, find_own_resources
from embodied_rl.training.planner.costs import CostFile, Costs
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.search import Candidate, predict_candidate
from tests.benchmarks import cpu_utilisation
from tests.benchmarks.settings import BenchmarkConfig

SYNC, PIPELINED = Allocation("split", 1, 2, 1), Allocation("split", 1, 1, 2)

RIVALS = 4
"""Runners-up that are tried as well."""


@dataclass(frozen=True)
class LiveRun:
    """An allocation, its prediction, and the measured seconds of each iteration."""

    plan: Candidate
    times: tuple[float, ...]

    @property
    def predicted(self) -> float:
        """Return the predicted seconds of an iteration."""
        assert self.plan.prediction is not None
        return self.plan.prediction.seconds

    @property
    def measured(self) -> float:
        """Return the measured seconds of the median iteration."""
        return statistics.median(self.times)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the median's confidence interval by order statistics (binomial): 95 %, or less for few iterations."""
        ordered, count = sorted(self.times), len(self.times)
        tail = next((k for k in range(count // 2 + 1) if binomial_tail(count, k) > 0.025), 0)
        first = max(0, tail - 1)
        return ordered[first], ordered[count - 1 - first]

    def summary(self) -> dict[str, Any]:
        """Return the run as a dictionary for the report."""
        return asdict(self) | {"measured": self.measured, "interval": self.interval, "error": self.error}

    @property
    def error(self) -> float:
        """Return measured over predicted seconds, minus one."""
        return self.measured / self.predicted - 1


def binomial_tail(count: int, most: int) -> float:
    """Compute the probability of at most `most` heads in `count` tosses of a fair coin."""
    return sum(math.comb(count, k) for k in range(most + 1)) / 2**count


def choose_plans(config: TrainConfig, measured: CostFile, resources: Resources) -> list[Candidate]:
    """Choose allocations to measure: the planner's choice, its closest rivals, one without overlap, and two slices."""
    found = plan_selection.decide_plan(config, measured, resources)
    wanted = {item.allocation: item for item in (found.best, *found.others[:RIVALS])}
    for plan in (SYNC, PIPELINED):
        wanted.setdefault(
            plan, predict_candidate(measured.costs, plan, resources, plan_selection.make_workload(config))
        )
    return [item for item in wanted.values() if item.prediction is not None]


def make_remarks(runs: Sequence[LiveRun], costs: Costs, work: Workload) -> list[str]:
    """Compare the chosen allocation with the fastest one, and two slices with one and with the theoretical bound."""
    chosen, best = runs[0], min(runs, key=lambda each: each.measured)
    overlap = chosen.interval[0] <= best.interval[1]
    lines = [
        f"Chosen: {_with_interval(chosen)}. Fastest measured: {_with_interval(best)}, {best.plan.allocation}; "
        f"the intervals {'overlap' if overlap else 'do not overlap'}."
    ]
    seconds = {each.plan.allocation: each.measured for each in runs}
    if SYNC in seconds and PIPELINED in seconds:
        lines.append(
            f"Pipelined over sync: {seconds[SYNC] / seconds[PIPELINED]:.2f} times; the bound for a rollout whose "
            f"stages have devices of their own is 1 + r = {1 + costs.ratio(work.envs):.2f}."
        )
    return lines


def _with_interval(each: LiveRun) -> str:
    low, high = each.interval
    return f"{each.measured:.2f} s [{low:.2f}, {high:.2f}]"


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure the stages, write the predictions, then train under each allocation."""
    resources = find_own_resources()
    costs = profile.measure_stages(config, resources.cores)
    plans, work = choose_plans(config, costs, resources), plan_selection.make_workload(config)
    predicted = {"plans": [asdict(item) for item in plans], "costs": json.loads(costs.text())}
    write_text(Path(config.out) / "plan_validation_predictions.json", json.dumps(predicted, indent=2) + "\n")
    runs = list[LiveRun]()
    for item in plans:
        plan = plan_selection.to_plan(item.allocation, config.plan)
        runs.append(LiveRun(item, cpu_utilisation.measure_utilisation(config, plan, 20.0).times))
    remarks = make_remarks(runs, costs.costs, work)
    return {"predicted": predicted, "plans": [run.summary() for run in runs], "remarks": remarks}
