"""The metrics of a training iteration: those that the seed determines, and measured times under `time/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.scorers.cost import Prices, describe_cost
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import wilson_interval
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.timeline import Timeline, summarise_utilisation


@dataclass
class RunTotals:
    """Totals since the run began, over all ranks and restarts.

    Attributes:
        best: highest success rate of an evaluation that chooses a checkpoint.
        best_iteration: the newest iteration that was as good within chance: the checkpoint `best`.
        tokens_read, tokens_written, tokens_uncounted: of a scorer's server; the last counts answers.
    """

    control_steps: int = 0
    decisions: int = 0
    episodes: int = 0
    seconds: float = 0.0
    best: float = -1.0
    best_iteration: int = -1
    tokens_read: int = 0
    tokens_written: int = 0
    tokens_uncounted: int = 0


@dataclass(frozen=True)
class CollectorReport:
    """The figures of a rank's, or a rollout worker's, collection in an iteration.

    Attributes:
        control_steps, decisions: of this rollout.
        restarts, lost_episodes: of its processes, since the run began.
        memory: resident bytes of its process, and of the largest process of its simulators.
        memory_total: resident bytes of all its processes.
        scores: counts of its writers, such as that of scores.
        notes: warnings for the user, such as that a simulator died.
        trouble: problems that persist at the end, such as that a scorer cannot be reached; empty if there are none.
    """

    control_steps: int
    decisions: int
    restarts: int
    lost_episodes: int
    memory: tuple[int, int]
    memory_total: int
    finished: tuple[EpisodeRecord, ...]
    timeline: Timeline
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trouble: str = ""

    @staticmethod
    def of_rollout(collector: Collector, rollout: Rollout, policy_restarts: int = 0) -> "CollectorReport":
        """Return the report of a collector's last rollout; `policy_restarts` counts replaced policy workers so far."""
        main, workers = collector.memory
        return CollectorReport(
            control_steps=int(rollout.steps[rollout.valid].sum()),
            decisions=int(rollout.valid.sum()),
            restarts=collector.restarts + policy_restarts,
            lost_episodes=collector.lost_episodes,
            memory=(main, max(workers, default=0)),
            memory_total=main + sum(workers),
            finished=tuple(rollout.finished),
            timeline=collector.timeline,
            scores=add_counts([writer.figures() for writer in collector.writers]),
            notes=collector.pop_warnings(),
            trouble="; ".join(filter(None, (writer.trouble() for writer in collector.writers))),
        )


def join_reports(reports: Sequence[CollectorReport]) -> CollectorReport:
    """Join the reports of one collector's consecutive rollouts into one report."""
    last = reports[-1]
    timeline = Timeline(
        [span for report in reports for span in report.timeline.spans],
        reports[0].timeline.began,
        sum(report.timeline.total for report in reports),
    )
    return replace(
        last,
        control_steps=sum(report.control_steps for report in reports),
        decisions=sum(report.decisions for report in reports),
        memory=(max(report.memory[0] for report in reports), max(report.memory[1] for report in reports)),
        memory_total=max(report.memory_total for report in reports),
        finished=tuple(list_finished(reports)),
        timeline=timeline,
        scores=add_counts([report.scores for report in reports]),
        notes=tuple(note for report in reports for note in report.notes),
    )


def add_counts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up the counts of several collectors, or of several rollouts."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def list_finished(reports: Sequence[CollectorReport]) -> list[EpisodeRecord]:
    """Return the episodes that ended, in the order of the reports."""
    return [record for report in reports for record in report.finished]


def worker_warnings(reports: Sequence[CollectorReport]) -> dict[str, str]:
    """Return the collectors' persistent problems as the metric `reward/trouble`, each once; empty if there are none."""
    causes = dict.fromkeys(report.trouble for report in reports if report.trouble)
    return {"reward/trouble": "; ".join(causes)} if causes else {}


def count_cost(scores: Mapping[str, float], totals: RunTotals, prices: Prices | None) -> dict[str, float | str]:
    """Add the tokens of an iteration's scores to the totals, and return what the scorer has cost so far."""
    for name in ("tokens_read", "tokens_written", "tokens_uncounted"):
        setattr(totals, name, getattr(totals, name) + int(scores.get(name, 0)))
    return describe_cost(totals.tokens_read, totals.tokens_written, totals.tokens_uncounted, prices)


def count_totals(reports: Sequence[CollectorReport], totals: RunTotals) -> dict[str, float]:
    """Add an iteration to the totals, and return the totals as figures."""
    totals.control_steps += sum(report.control_steps for report in reports)
    totals.decisions += sum(report.decisions for report in reports)
    totals.episodes += len(list_finished(reports))
    return {
        "total/control_steps": totals.control_steps,
        "total/decisions": totals.decisions,
        "total/episodes": totals.episodes,
        "workers/restarts": sum(report.restarts for report in reports),
        "workers/lost_episodes": sum(report.lost_episodes for report in reports),
    }


def measure_times(
    reports: Sequence[CollectorReport],
    ranks: Sequence[Timeline],
    resident: Sequence[int],
    seconds: Mapping[str, float],
    totals: RunTotals,
    *,
    cores: int,
    inline: bool,
) -> dict[str, float]:
    """Compute the times, rates and memory of an iteration, and add its seconds to the totals.

    Args:
        reports: of all collectors: the ranks, or rollout workers.
        ranks: timeline of each rank.
        resident: resident bytes of each rank, if the ranks do not collect themselves.
        seconds: of the "iteration" and its parts, on this rank.
        cores, inline: see `summarise_utilisation`.
    """
    totals.seconds += seconds["iteration"]
    lines = [report.timeline for report in reports]
    figures = {
        **seconds,
        **{name: float(np.mean([getattr(line, name) for line in lines])) for name in ("inference", "waiting")},
        "simulating": float(np.mean([line.simulating for line in lines])),
        **summarise_utilisation(lines, ranks, cores, inline),
        "memory_bytes": sum(resident) + sum(report.memory_total for report in reports),
        "memory/rank": max(resident or [report.memory[0] for report in reports]),
        "memory/worker": max(max(report.memory) if resident else report.memory[1] for report in reports),
        "elapsed": totals.seconds,
        "steps_per_second": sum(report.control_steps for report in reports) / seconds["iteration"],
        "decisions_per_second": sum(report.decisions for report in reports) / seconds["iteration"],
        "collected_per_second": sum(each.decisions / each.timeline.total for each in reports if each.timeline.total),
    }
    return {f"time/{name}": value for name, value in figures.items()}


def summarise_outcomes(records: Sequence[EpisodeRecord], spec: SimulatorSpec) -> dict[str, float]:
    """Compute figures of the episodes that ended in this rollout, those that began late apart; none if none ended."""
    late, records = [record for record in records if record.late], [record for record in records if not record.late]
    apart: dict[str, float] = {}
    if late:
        success = float(np.mean([record.success_once for record in late]))
        apart = {"rollout/late_success": success, "rollout/late_episodes": len(late)}
    if not records:
        return apart
    figures = apart | {
        "rollout/success": float(np.mean([record.success_once for record in records])),
        "rollout/return": float(np.mean([record.reward for record in records])),
        "rollout/length": float(np.mean([record.steps for record in records])),
        "rollout/episodes": len(records),
    }
    for family in spec.families:
        successes = [record.success_once for record in records if spec.tasks[record.task].family == family]
        if successes:
            figures[f"rollout/success/{family}"] = float(np.mean(successes))
    return figures


def summarise_evaluation(results: list[EpisodeResult], spec: SimulatorSpec) -> dict[str, float]:
    """Compute the success rate of the deployed policy with its 95 % interval, and that of each family."""
    successes = sum(result.success for result in results)
    low, high = wilson_interval(successes, len(results))
    figures = {"eval/success": successes / len(results), "eval/low": low, "eval/high": high}
    for family in spec.families:
        outcomes = [result.success for result in results if spec.tasks[result.task].family == family]
        if outcomes:
            figures[f"eval/success/{family}"] = sum(outcomes) / len(outcomes)
    return figures
