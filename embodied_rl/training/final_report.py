"""The end of a run: evaluation of the best checkpoint on separate episodes, a report and videos."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from embodied_rl.assembly.build import POLICY
from embodied_rl.evaluate.benchmark import describe_simulator
from embodied_rl.evaluate.page import format_percent, write_page
from embodied_rl.evaluate.protocol import EpisodeResult
from embodied_rl.evaluate.report import Report
from embodied_rl.evaluate.video import film_episodes
from embodied_rl.runs.atomic_write import explain_errors
from embodied_rl.runs.log import RunLog
from embodied_rl.runs.metrics_file import Value, find_first_reached, read_metrics
from embodied_rl.training.trainer import Trainer

PAGE = "report.html"
"""The last thing that a run writes: where it stands, nothing is left to do."""
MILESTONES = (0.7, 0.9, 0.95)
_BUSY = ("busy/simulators", "busy/policy", "busy/learner")
_PACE = ("iteration", "iteration_predicted", *_BUSY)


def write_report(trainer: Trainer, results: Sequence[EpisodeResult], name: str) -> Report:
    """Return the report of a run's evaluation, and write it to `eval/<name>/report.json` on the first rank."""
    described = [describe_simulator(trainer.kind, trainer.spec)] if trainer.ranks.rank == 0 else []
    where = {"run": str(trainer.folder.path), "when": name}
    told = {**where, "split": "eval", "episodes_for": "report", "simulators": described}
    found = Report.from_results(results, trainer.spec, told)
    if trainer.ranks.rank == 0:
        folder = trainer.folder.evaluations / name
        with explain_errors(folder):
            folder.mkdir(exist_ok=True)
        found.write(folder)
    return found


def finish_run(trainer: Trainer, log: RunLog) -> list[str]:
    """Evaluate the best checkpoint, write the policy, the report and videos. Return the lines of the summary."""
    log.begin_phase("evaluating the best checkpoint", announce=True)
    trainer.load_best()
    results = trainer.evaluate(trainer.config.train.final_episodes, "report")
    after = write_report(trainer, results, "after")
    if trainer.ranks.rank:
        return []
    trainer.export(trainer.folder.path / POLICY)
    before = Report.read(trainer.folder.evaluations / "before" / "report.json")
    folder = trainer.folder.path
    after.write(folder)
    log.begin_phase("filming", announce=True)
    videos = film_episodes(trainer.actor, trainer.kind.build, trainer.spec, results, folder / "videos")
    write_page(folder / PAGE, after, before=before, metrics=trainer.folder.metrics, videos=videos)
    return summarise_run(before, after, folder, videos, read_metrics(trainer.folder.metrics))


def summarise_run(
    before: Report, after: Report, folder: Path, videos: Sequence[Path], metrics: Sequence[Mapping[str, Value]]
) -> list[str]:
    """Return the lines of the summary that the user reads at the end of a run."""
    rows = [("all families", before.overall.success, after.overall.success)]
    rows += [(name, before.families[name].success, found.success) for name, found in after.families.items()]
    lines = [f"  {name:14s} {format_percent(old)}  →  {format_percent(new)}" for name, old, new in rows]
    title = f"Success on {after.success.episodes} episodes never trained on, before and after (95 % intervals):"
    lines += [*find_milestones(metrics), *summarise_pace(metrics)]
    return ["", title, *lines, f"Report: {folder / PAGE}", *(f"Video:  {video}" for video in videos)]


def find_milestones(metrics: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return lines that say when evaluations during training first reached each success rate of `MILESTONES`."""
    reached = {share: find_first_reached(metrics, share) for share in MILESTONES}
    known = {share: when for share, when in reached.items() if when is not None}
    return [
        f"  {share:.0%} first seen after {seconds / 60:.1f} min, at iteration {iteration}"
        for share, (iteration, seconds) in known.items()
    ]


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
