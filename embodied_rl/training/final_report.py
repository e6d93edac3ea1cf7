"""The end of a run: evaluation of the best checkpoint on separate episodes, a report and videos."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from embodied_rl.assembly.build import POLICY
from embodied_rl.evaluate.benchmark import describe_simulator
from embodied_rl.evaluate.video import (
    AT_ONCE,
    KEPT,
    choose_pairs,
    film_episodes,
    keep_film,
    read_films,
    record_results,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.audit_section import AuditSummary, make_audit_section, summarise_audit
from embodied_rl.reports.page import format_percent
from embodied_rl.reports.report import Report
from embodied_rl.reports.report_page import write_page
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.scorer_section import describe_cost, describe_head, describe_outages
from embodied_rl.reports.strips import make_strip_section
from embodied_rl.runs import provenance
from embodied_rl.runs.log import RunLog
from embodied_rl.runs.metrics_file import Value, find_first_reached, read_metrics
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.training.trainer import Trainer

PAGE = "report.html"
"""The last file that a run writes; it marks the run as finished."""
BEFORE = "before"
"""Folder of the films of before training, in the run's folder of videos."""
MILESTONES = (0.7, 0.9, 0.95)
_BUSY = ("busy/simulators", "busy/policy", "busy/learner")
_PACE = ("iteration", "iteration_predicted", *_BUSY)


def write_report(trainer: Trainer, results: Sequence[EpisodeResult], name: str) -> Report:
    """Return the report of a run's evaluation, and write it to `eval/<name>/report.json` on the first rank."""
    if trainer.ranks.rank:
        return Report.from_results(results, trainer.spec, {})
    config = trainer.config
    metadata: dict[str, Any] = {
        "kind": "training",
        "run": str(trainer.folder.path),
        "when": name,
        "policy": config.policy.name,
        "algorithm": config.algo.name,
        "simulator": config.sim.name,
        **({} if config.reward.name is None else {"scorer": config.reward.name, "reward": config.reward.mode}),
        **({} if trainer.delay is None else trainer.delay.as_metadata()),
        "split": "eval",
        **({} if config.train.task is None else {"task": config.train.task}),
        "episodes_for": "report",
        "seed": config.seed,
        **provenance.select_for_report(provenance.read_provenance(trainer.folder.path)),
        "finished": provenance.current_time(),
        "load_at_end": provenance.measure_load(),
        "seconds": trainer.totals.seconds,
        "simulators": [describe_simulator(trainer.kind, trainer.spec)],
    }
    found = Report.from_results(results, trainer.spec, metadata)
    folder = trainer.folder.evaluations / name
    with explain_errors(folder):
        folder.mkdir(exist_ok=True)
    found.write(folder)
    return found


def makes_films(trainer: Trainer) -> bool:
    """Return whether a run films. A single robot is not filmed: it is open already and would repeat episodes."""
    return trainer.config.train.film and not trainer.kind.limits.one_robot


def film_before(trainer: Trainer, results: Sequence[EpisodeResult]) -> None:
    """Film some episodes of the evaluation before training; each rank films its share of them."""
    most = trainer.kind.limit_environments(AT_ONCE)
    mine = results[:KEPT][trainer.ranks.rank :: trainer.ranks.size]
    for recording in record_results(
        trainer.actor, trainer.kind.build, mine, seed=0, delay=trainer.delay, at_once=most
    ).values():
        keep_film(trainer.folder.videos / BEFORE, recording, trainer.spec.control_hz)


def finish_run(trainer: Trainer, log: RunLog) -> list[str]:
    """Evaluate the best checkpoint, write the policy, the report and videos. Return the lines of the summary."""
    log.begin_phase("evaluating the best checkpoint", announce=True)
    trainer.load_best()
    results = trainer.evaluate(trainer.config.train.final_episodes, "report")
    after = write_report(trainer, results, "after")
    if trainer.ranks.rank:
        return []
    trainer.export(trainer.folder.path / POLICY)
    before = read_before(trainer, log)
    folder = trainer.folder.path
    after.write(folder)
    videos: list[Path] = []
    if makes_films(trainer):
        log.begin_phase("filming", announce=True)
        old = before.episodes if before else ()
        filmed = read_films(trainer.folder.videos / BEFORE, old)
        videos = film_episodes(
            trainer.actor, trainer.kind.build, trainer.spec, results, trainer.folder.videos,
            before={index: filmed[index] for index in choose_pairs(old, results, filmed)},
            delay=trainer.delay, at_once=trainer.kind.limit_environments(AT_ONCE),
        )  # fmt: skip
    log.write_films(videos)
    settings = trainer.folder.config.read_text(encoding="utf-8")
    audit = summarise_audit(folder)
    write_page(
        folder / PAGE, after, before=before, metrics=trainer.folder.metrics, videos=videos, configuration=settings,
        strips=make_strip_section(folder), robot=make_audit_section(audit),
    )  # fmt: skip
    return summarise_run(before, after, folder, videos, read_metrics(trainer.folder.metrics), audit)


def read_before(trainer: Trainer, log: RunLog) -> Report | None:
    """Read the report of the evaluation before training. Log a note and return None if it is missing or damaged."""
    file = trainer.folder.evaluations / "before" / "report.json"
    try:
        return Report.read(file)
    except (OSError, UserError) as error:
        problem = f"{file} cannot be read: {error.strerror}." if isinstance(error, OSError) else str(error)
        again = f"restore that file, remove {trainer.folder.path / PAGE} and resume"
        log.note(f"{problem} The report goes without the success before training. To have it: {again}.")
        return None


def summarise_run(
    before: Report | None,
    after: Report,
    folder: Path,
    videos: Sequence[Path],
    metrics: Sequence[Mapping[str, Value]],
    audit: AuditSummary | None = None,
) -> list[str]:
    """Return the lines of the summary that the user reads at the end of a run."""
    rows = [(after.metadata.get("task") or "all families", before and before.overall, after.overall)]
    if len(after.families) > 1:
        rows += [(name, before and before.families[name], found) for name, found in after.families.items()]
    lines = [
        f"  {name:14s} {f'{format_percent(old.success)}  →  ' if old else ''}{format_percent(new.success)}"
        for name, old, new in rows
    ]
    when = "before and after" if before else "after training"
    title = f"Success on {after.success.episodes} episodes never trained on, {when} (95 % intervals):"
    for share in MILESTONES:
        if (reached := find_first_reached(metrics, share)) is not None:
            minutes = reached[1] / 60
            lines.append(f"  {share:.0%} first seen after {minutes:.1f} min, at iteration {reached[0]}")
    lines += summarise_pace(metrics)
    lines += [f"  {note}" for note in describe_outages(metrics, after.metadata.get("reward") == "terminal")]
    lines += [f"  {note}" for note in (*describe_head(metrics), *describe_cost(metrics))]
    lines += [] if audit is None else [f"  {line}" for line in audit.describe()]
    return ["", title, *lines, f"Report: {folder / PAGE}", *(f"Video:  {video}" for video in videos)]


def summarise_pace(metrics: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return a line with the median iteration time, its prediction and the busy shares, or no line without data."""
    wanted = {name: [row.get(f"time/{name}") for row in metrics] for name in _PACE}
    numbers = {name: [value for value in values if isinstance(value, float)] for name, values in wanted.items()}
    found = {name: median(values) for name, values in numbers.items() if values}
    if not {"iteration", *_BUSY} <= found.keys():
        return []
    line = f"  an iteration took {found['iteration']:.2f} s"
    if (predicted := found.get("iteration_predicted")) is not None:
        line += f" ({predicted:.2f} s predicted, {found['iteration'] / predicted - 1:+.0%})"
    shares = [f"{name.removeprefix('busy/')} {found[name]:.0%}" for name in _BUSY]
    return [f"{line}; busy: {', '.join(shares)}"]
