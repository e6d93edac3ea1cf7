"""Comparison of rewards: success during training after equal numbers of decisions, and decisions to a target.

The runs differ only in the reward, with the same seeds; see `embodied_rl.benchmarks.arms`. Success is that of the
training episodes, by the simulator's criterion.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from embodied_rl.benchmarks.arms import ArmRun, list_shared, run_arms
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.statistics import Z95, mean_interval, wilson_interval
from embodied_rl.runs.metrics_file import read_metrics
from embodied_rl.schema import BenchConfig

LATE = 1 / 3
"""The last part of the compared iterations, which "success" is of."""
WINDOW = 5
"""Iterations whose episodes are pooled to say when a success rate was reached."""
SPARSE = "sparse"
_ALL_SCORES = ("reward.wait_share=null", "reward.deadline=60")  # a busy machine must not decide which scores count
ARMS: dict[str, tuple[str, ...]] = {
    SPARSE: (),
    "oracle": ("reward=oracle", *_ALL_SCORES),
    "embedded": ("reward=embedded", *_ALL_SCORES),
    "inverted": ("reward=inverted", *_ALL_SCORES),
    "hackable": ("reward=hackable", "reward.weight=3", *_ALL_SCORES),
    "rises": ("reward=hackable", "reward.weight=3", "reward.mode=rises", "reward.guard=false", *_ALL_SCORES),
}
"""What each arm changes. "hackable" and "rises" have the same critic, which can be fooled, with the same weight: one
shapes by it, the other pays its rises, which changes what is optimal."""


def list_runs(config: BenchConfig, root: Path) -> list[ArmRun]:
    """List the runs of the comparison, all arms of a seed before the next seed.

    All runs are equally long, and report progress to scorers.

    Raises:
        UserError: an arm is unknown, or a typed key is one that the arms or the comparison set.
    """
    for arm in config.arms:
        if arm not in ARMS:
            raise UserError(
                f"arms: there is no arm '{arm}'.{suggest_name(arm, [*ARMS])} They are {', '.join(ARMS)}.",
                code="reward-arm-unknown",
            )
    if SPARSE not in config.arms:
        raise UserError(
            f"arms: all others are compared with '{SPARSE}', so it has to be among them.", code="reward-arm-missing"
        )
    shared = list_shared(config, groups=("reward",), keys=("train.iterations", "resume", "sim.progress"))
    iterations = math.ceil(config.decisions / (config.sim.num_envs * config.train.decisions))
    shared += [f"train.iterations={iterations}", "sim.progress=true"]
    return [
        ArmRun(arm, seed, (*shared, *ARMS[arm]), root, f"{config.run.experiment}_{arm}")
        for seed in range(config.seed, config.seed + config.seeds)
        for arm in config.arms
    ]


@dataclass(frozen=True)
class SuccessCurve:
    """A run's course: for each iteration decisions since the start, episodes that ended, and successes among them."""

    arm: str
    seed: int
    decisions: tuple[int, ...]
    episodes: tuple[int, ...]
    successes: tuple[int, ...]

    @staticmethod
    def read(arm: str, seed: int, rows: Sequence[Mapping[str, Any]]) -> "SuccessCurve":
        """Read the rows of a run's metrics, which are one at least; iterations in which no episode ended count none."""
        known = [row for row in rows if "total/decisions" in row]
        if not known:
            raise UserError(
                f"The run of arm {arm}, seed {seed}, has no metrics of an iteration.", code="metrics-missing"
            )
        decisions = tuple(int(row["total/decisions"]) for row in known)
        episodes = tuple(int(row.get("rollout/episodes", 0)) for row in known)
        shares = [row.get("rollout/success", 0.0) for row in known]
        successes = tuple(round(share * n) for share, n in zip(shares, episodes, strict=True))
        return SuccessCurve(arm, seed, decisions, episodes, successes)

    def late(self) -> tuple[int, int]:
        """Return successes and episodes of the last `LATE` of the iterations."""
        first = len(self.decisions) - max(1, round(LATE * len(self.decisions)))
        return sum(self.successes[first:]), sum(self.episodes[first:])

    def reach(self, success: float) -> int | None:
        """Return the decisions after which the last `WINDOW` iterations together had this success; None if never."""
        for end in range(WINDOW, len(self.decisions) + 1):
            episodes = sum(self.episodes[end - WINDOW : end])
            if episodes and sum(self.successes[end - WINDOW : end]) >= success * episodes:
                return self.decisions[end - 1]
        return None


@dataclass(frozen=True)
class ArmResult:
    """An arm's figures over all seeds.

    Attributes:
        success, low, high: while exploring, of the last `LATE` of the iterations, with Wilson's interval over episodes.
        gain, gain_low, gain_high: over the sparse arm: mean over seeds with Student's interval; with one seed, the
            interval is over episodes alone. None for the sparse arm itself.
        reached: per seed, decisions to the target; None if it was not reached.
    """

    arm: str
    seeds: int
    episodes: int
    success: float
    low: float
    high: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    reached: tuple[int | None, ...]


def compare_arms(curves: Sequence[SuccessCurve], target: float) -> tuple[int, list[ArmResult]]:
    """Compare the arms after as many decisions as the shortest run has; return these and the results.

    All arms have the same seeds; `target` is the success to be reached, 0…1.
    """
    decisions = min(curve.decisions[-1] for curve in curves)
    by_arm: dict[str, list[SuccessCurve]] = {curve.arm: [] for curve in curves}
    for curve in sorted(curves, key=lambda curve: curve.seed):
        n = sum(total <= decisions for total in curve.decisions)
        cut = replace(curve, decisions=curve.decisions[:n], episodes=curve.episodes[:n], successes=curve.successes[:n])
        by_arm[curve.arm].append(cut)
    results: list[ArmResult] = []
    for arm, own in by_arm.items():
        successes, episodes = (sum(part) for part in zip(*(curve.late() for curve in own), strict=True))
        low, high = wilson_interval(successes, episodes)
        gain = (None, None, None) if arm == SPARSE else _compare(own, by_arm[SPARSE])
        reached = tuple(curve.reach(target) for curve in own)
        rate = successes / episodes if episodes else 0.0
        results.append(ArmResult(arm, len(own), episodes, rate, low, high, *gain, reached))
    return decisions, results


def _compare(curves: Sequence[SuccessCurve], sparse: Sequence[SuccessCurve]) -> tuple[float, float, float]:
    """Return the mean gain over the sparse runs of the same seeds, with its 95 % interval."""
    pairs = [(mine.late(), other.late()) for mine, other in zip(curves, sparse, strict=True)]
    rates = [[won / max(n, 1) for won, n in pair] for pair in pairs]
    found = mean_interval([mine - other for mine, other in rates])
    if found.low is not None and found.high is not None:
        return found.mean, found.low, found.high
    variance = sum(rate * (1 - rate) / max(n, 1) for rate, (_, n) in zip(rates[0], pairs[0], strict=True))
    return found.mean, found.mean - Z95 * math.sqrt(variance), found.mean + Z95 * math.sqrt(variance)


def make_comparison_table(decisions: int, results: Sequence[ArmResult], target: float) -> Table:
    """Make the table for the console."""

    def points(low: float | None, high: float | None) -> str:
        return f"{100 * (low or 0):.1f}, {100 * (high or 0):.1f}"

    seeds = results[0].seeds
    over = "over seeds" if seeds > 1 else "over episodes alone (one seed)"
    caption = (
        f"Success while exploring, last third of {decisions:,} decisions, 95 % intervals.\n"
        f"Gain over {SPARSE}: interval {over}.\nLast column: decisions to {target:.0%}, per seed."
    )
    table = Table(title="bench potentials", caption=caption, box=SIMPLE_HEAD, min_width=60)
    table.add_column("arm")
    for heading in ("success", "95 %", "gain", f"to {target:.0%}"):
        table.add_column(heading, justify="right")
    for each in results:
        gain = "" if each.gain is None else f"{100 * each.gain:+.1f} [{points(each.gain_low, each.gain_high)}]"
        reached = ", ".join("–" if n is None else f"{n / 1000:.0f}k" for n in each.reached)
        table.add_row(each.arm, f"{100 * each.success:.1f}", points(each.low, each.high), gain, reached)
    return table


def compare_rewards(config: BenchConfig, root: Path) -> tuple[Table, dict[str, Any]]:
    """Run what is missing of the comparison below `root`; return its table for the console and its content for a file.

    Raises:
        UserError: a run did not finish, an arm is unknown, or a key is one that the comparison sets.
    """
    done = run_arms(list_runs(config, root))
    curves = [SuccessCurve.read(run.arm, run.seed, read_metrics(folder.metrics)) for run, folder in done]
    decisions, results = compare_arms(curves, config.target)
    found = {"decisions": decisions, "arms": [asdict(r) for r in results], "curves": [asdict(c) for c in curves]}
    return make_comparison_table(decisions, results, config.target), found
