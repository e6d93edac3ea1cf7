"""Comparison of rewards: success during training after equal numbers of decisions, and decisions to a target.

Success is that of the training episodes, by the simulator's own criterion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from embodied_rl.critic.evaluation.reward_arms import SPARSE, list_runs, run_arms
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.statistics import Z95, mean_interval, wilson_interval
from embodied_rl.runs.metrics_file import read_metrics
from embodied_rl.schema import BenchConfig

LATE = 1 / 3
"""The last part of the compared iterations, which "success" is of."""
WINDOW = 5
"""Iterations whose episodes are pooled to say when a success rate was reached."""


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
        """Read the rows of a run's metrics; iterations in which no episode ended count none.

        Raises:
            UserError: there are none.
        """
        told = [row for row in rows if "total/decisions" in row]
        if not told:
            raise UserError(
                f"The run of arm {arm}, seed {seed}, has no metrics of an iteration.", code="metrics-missing"
            )
        episodes = [int(row.get("rollout/episodes", 0)) for row in told]
        successes = [round(row.get("rollout/success", 0.0) * n) for row, n in zip(told, episodes, strict=True)]
        return SuccessCurve(
            arm, seed, tuple(int(row["total/decisions"]) for row in told), tuple(episodes), tuple(successes)
        )

    def cut(self, decisions: int) -> "SuccessCurve":
        """Return the part within a number of decisions."""
        n = sum(total <= decisions for total in self.decisions)
        return SuccessCurve(self.arm, self.seed, self.decisions[:n], self.episodes[:n], self.successes[:n])

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

    Args:
        curves: of all arms, and of the same seeds in each. target: success that is to be reached, 0…1.
    """
    decisions = min(curve.decisions[-1] for curve in curves)
    equal = [curve.cut(decisions) for curve in curves]
    arms = list(dict.fromkeys(curve.arm for curve in equal))
    by_arm = {arm: sorted((c for c in equal if c.arm == arm), key=lambda curve: curve.seed) for arm in arms}
    return decisions, [_summarise(by_arm[arm], by_arm[SPARSE], target) for arm in arms]


def _summarise(curves: Sequence[SuccessCurve], sparse: Sequence[SuccessCurve], target: float) -> ArmResult:
    successes, episodes = (sum(part) for part in zip(*(curve.late() for curve in curves), strict=True))
    low, high = wilson_interval(successes, episodes)
    gain = (None, None, None) if curves[0].arm == SPARSE else _compare(curves, sparse)
    reached = tuple(curve.reach(target) for curve in curves)
    rate = successes / episodes if episodes else 0.0
    return ArmResult(curves[0].arm, len(curves), episodes, rate, low, high, *gain, reached)


def _compare(curves: Sequence[SuccessCurve], sparse: Sequence[SuccessCurve]) -> tuple[float, float, float]:
    """Return the mean gain over the sparse runs of the same seeds, with its 95 % interval."""
    pairs = [(mine.late(), other.late()) for mine, other in zip(curves, sparse, strict=True)]
    rates = [[won / max(n, 1) for won, n in pair] for pair in pairs]
    found = mean_interval([mine - other for mine, other in rates])
    if found.low is not None and found.high is not None:
        return found.mean, found.low, found.high
    variance = sum(rate * (1 - rate) / max(n, 1) for rate, (_, n) in zip(rates[0], pairs[0], strict=True))
    return found.mean, found.mean - Z95 * sqrt(variance), found.mean + Z95 * sqrt(variance)


def make_comparison_table(decisions: int, results: Sequence[ArmResult], target: float) -> Table:
    """Make the table for the console."""
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
        gain = "" if each.gain is None else f"{100 * each.gain:+.1f} [{_points(each.gain_low, each.gain_high)}]"
        reached = ", ".join("–" if n is None else f"{n / 1000:.0f}k" for n in each.reached)
        table.add_row(each.arm, f"{100 * each.success:.1f}", _points(each.low, each.high), gain, reached)
    return table


def compare_rewards(config: BenchConfig, root: Path) -> tuple[Table, dict[str, Any]]:
    """Run what is missing of the comparison, and return its table for the console and all of it for a file.

    Args:
        config: says which arms, seeds, decisions and target. root: folder of the runs.

    Raises:
        UserError: a run did not finish, an arm is unknown, or a key is one that the comparison sets.
    """
    done = run_arms(list_runs(config, root))
    curves = [SuccessCurve.read(run.arm, run.seed, read_metrics(folder.metrics)) for run, folder in done]
    decisions, results = compare_arms(curves, config.target)
    found = {"decisions": decisions, "arms": [asdict(r) for r in results], "curves": [asdict(c) for c in curves]}
    return make_comparison_table(decisions, results, config.target), found


def _points(low: float | None, high: float | None) -> str:
    return f"{100 * (low or 0):.1f}, {100 * (high or 0):.1f}"
