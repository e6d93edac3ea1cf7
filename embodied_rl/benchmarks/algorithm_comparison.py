"""Comparison of algorithms from the same start: success after equally many episodes, and after equal time.

Each algorithm runs with the same environments and its own settings in `configs/algo`, and makes as many decisions, but
for those that learn from replay, which may have a number of their own. `embodied_rl.benchmarks.arms` says how the runs
take place. Success is that of the deployed policy in the evaluations during training, whose episodes are never trained
on, and of the best checkpoint on the episodes of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from embodied_rl.benchmarks.arms import REPORT, ArmRun, list_shared, run_arms
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.report import Report
from embodied_rl.reports.statistics import Mean, mean_interval
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import read_metrics
from embodied_rl.schema import BenchConfig


def list_shared_words(config: BenchConfig) -> list[str]:
    """Return the words typed for all runs.

    Raises:
        UserError: a key of the algorithm was typed, or one that says how long runs are or where one of them stores.
    """
    return list_shared(config, groups=("algo",), keys=("train.iterations", "resume", "replay.root"))


def list_runs(config: BenchConfig, root: Path, iterations: Mapping[str, int]) -> list[ArmRun]:
    """List the runs, all algorithms of a seed before the next seed.

    Args:
        config: of the benchmark.
        root: folder of all runs.
        iterations: of each algorithm.
    """
    shared = list_shared_words(config)
    return [
        ArmRun(
            name, seed, (*shared, f"algo={name}", f"train.iterations={count}"), root,
            f"{config.run.experiment}_{name}",
        )
        for seed in range(config.seed, config.seed + config.seeds)
        for name, count in iterations.items()
    ]  # fmt: skip


@dataclass(frozen=True)
class AlgorithmCurve:
    """A run's course: of each evaluation episodes and seconds since the start, and the deployed policy's success.

    Attributes:
        before, best: success on the episodes of the report, before training and of the best checkpoint.
    """

    algorithm: str
    seed: int
    episodes: tuple[int, ...]
    seconds: tuple[float, ...]
    success: tuple[float, ...]
    before: float
    best: float

    @staticmethod
    def read(algorithm: str, seed: int, folder: RunFolder) -> "AlgorithmCurve":
        """Read a finished run; raise `UserError` if it was never evaluated while it trained."""
        rows = [row for row in read_metrics(folder.metrics) if "eval/success" in row]
        if not rows:
            raise UserError(
                f"{folder.path} has no evaluation during training: give train.eval_every.", code="eval-missing"
            )
        files = folder.evaluations / "before" / REPORT, folder.path / REPORT
        before, best = (Report.read(file).success.rate for file in files)
        columns = [tuple(row[name] for row in rows) for name in ("total/episodes", "time/elapsed", "eval/success")]
        return AlgorithmCurve(algorithm, seed, *columns, before=before, best=best)  # type: ignore[arg-type]

    def after(self, amounts: Sequence[float], most: float) -> float:
        """Return the success of the last evaluation with at most this amount of episodes or seconds, or `before`."""
        known = [success for amount, success in zip(amounts, self.success, strict=True) if amount <= most]
        return known[-1] if known else self.before


@dataclass(frozen=True)
class AlgorithmResult:
    """An algorithm's figures over all seeds: success in [0, 1], and the mean seconds of a run."""

    algorithm: str
    at_episodes: Mean
    at_seconds: Mean
    best: Mean
    episodes: float
    seconds: float


def compare_curves(curves: Sequence[AlgorithmCurve]) -> tuple[int, float, list[AlgorithmResult]]:
    """Compare algorithms at the episodes, and at the seconds, that every run reached; return these and the results."""
    episodes, seconds = min(curve.episodes[-1] for curve in curves), min(curve.seconds[-1] for curve in curves)
    results = list[AlgorithmResult]()
    for name in dict.fromkeys(curve.algorithm for curve in curves):
        own = [curve for curve in curves if curve.algorithm == name]
        results.append(
            AlgorithmResult(
                name,
                mean_interval([curve.after(curve.episodes, episodes) for curve in own]),
                mean_interval([curve.after(curve.seconds, seconds) for curve in own]),
                mean_interval([curve.best for curve in own]),
                sum(curve.episodes[-1] for curve in own) / len(own),
                sum(curve.seconds[-1] for curve in own) / len(own),
            )
        )
    return episodes, seconds, sorted(results, key=lambda each: -each.best.mean)


def make_comparison_table(episodes: int, seconds: float, results: Sequence[AlgorithmResult]) -> Table:
    """Make the table for the console, the best algorithm first."""
    seeds = results[0].best.count
    over = "95 % intervals over seeds" if seeds > 1 else "one seed, so no interval"
    caption = (
        f"Success of the deployed policy after {episodes:,} episodes, after {seconds / 60:.1f} min of training, and\n"
        f"of the best checkpoint on the episodes of the report; {over}."
    )
    table = Table(title="bench algorithms", caption=caption, box=SIMPLE_HEAD, min_width=60)
    table.add_column("algorithm")
    for heading in (f"{episodes:,} episodes", f"{seconds / 60:.1f} min", "best", "episodes", "minutes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        cells = (format_mean(mean) for mean in (each.at_episodes, each.at_seconds, each.best))
        table.add_row(each.algorithm, *cells, f"{each.episodes:,.0f}", f"{each.seconds / 60:.1f}")
    return table


def format_mean(mean: Mean) -> str:
    """Return a mean of shares in percent, with its interval if it has one."""
    interval = "" if mean.low is None or mean.high is None else f" [{100 * mean.low:.1f}, {100 * mean.high:.1f}]"
    return f"{100 * mean.mean:.1f}{interval}"


def compare_algorithms(config: BenchConfig, root: Path, iterations: Mapping[str, int]) -> tuple[Table, dict[str, Any]]:
    """Run what is missing below `root`; return the table for the console and its content for a file; see `list_runs`.

    Raises:
        UserError: a run did not finish or was not evaluated, or a key is one that the comparison sets.
    """
    done = run_arms(list_runs(config, root, iterations))
    curves = [AlgorithmCurve.read(run.arm, run.seed, folder) for run, folder in done]
    episodes, seconds, results = compare_curves(curves)
    found = {"episodes": episodes, "seconds": seconds, "algorithms": [asdict(each) for each in results]}
    return make_comparison_table(episodes, seconds, results), found | {"curves": [asdict(curve) for curve in curves]}
