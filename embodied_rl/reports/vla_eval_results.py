"""Results in the format of vla-eval 0.8 (`BenchmarkResult` of its results/collector.py), with a status by interval."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

from embodied_rl.reports.report import Rate, Report
from embodied_rl.reports.result import EpisodeResult

FILE = "vla_eval.json"
CLOSE = 0.05
"""Largest difference of a success rate outside of the interval that is still close, as in vla-eval's reproductions."""
_METRICS = {"success": "mean"}


def compare_reported(found: Rate, reported: float) -> Literal["reproduced", "close", "differs"]:
    """Compare a published success rate with one's own: whether the 95 % interval holds it, or it is within 5 points."""
    if found.low <= reported <= found.high:
        return "reproduced"
    return "close" if round(abs(found.rate - reported), 9) <= CLOSE else "differs"


def to_vla_eval(report: Report) -> dict[str, Any]:
    """Return a report in vla-eval's format.

    `interval` is Wilson's 95 % interval; `reported` and `status` are there where a published rate was given. They
    and `policies` are no entries of vla-eval. `harness_version` names this package, because it ran the episodes.
    """
    metadata = report.metadata
    numbers = sorted({result.task for result in report.episodes})
    tasks = [
        _summarise_task(name, [result for result in report.episodes if result.task == number])
        for number, name in zip(numbers, report.tasks, strict=True)
    ]
    status = {key: metadata[key] for key in ("reported", "status") if key in metadata}
    return {
        "benchmark": metadata.get("benchmark") or metadata["simulator"],
        "mode": "sync",
        "harness_version": f"embodied-rl {version('embodied-rl')}",
        "created_at": metadata["finished"],
        "tasks": tasks,
        "config": {"simulators": metadata["simulators"], "params": {"seed": metadata["seed"]}},
        "policies": metadata["policies"],
        "num_errors": 0,
        "seed": metadata["seed"],
        "metric_keys": _METRICS,
        "mean_success": round(report.success.rate, 4),
        "num_episodes_total": len(report.episodes),
        "interval": [report.success.low, report.success.high],
        **status,
    }


def _summarise_task(name: str, results: Sequence[EpisodeResult]) -> dict[str, Any]:
    episodes = [
        {
            "episode_id": number if result.initial_state is None else result.initial_state,
            "metrics": {"success": result.success},
            "steps": result.steps,
        }
        for number, result in enumerate(results)
    ]
    return {
        "task": name,
        "episodes": episodes,
        "num_episodes": len(episodes),
        "avg_steps": sum(result.steps for result in results) / len(results),
        "mean_success": round(sum(result.success for result in results) / len(results), 4),
    }
