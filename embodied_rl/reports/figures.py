"""Plots and tables of the documentation, drawn from the tracked runs in `results/`.

`results/figures.yaml` lists them: name → `Figure`; `embodied_rl.reports.relations` makes one more table. A plot is an
SVG file. A table replaces what stands between `<!-- table: <name> -->` and `<!-- end of table -->` in a Markdown file.
The same runs give the same bytes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from embodied_rl.config.freeze import freeze_config, read_text
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.reports import relations, tracked_evaluation
from embodied_rl.reports.aggregates import interquartile_mean, performance_profile
from embodied_rl.reports.audit_section import split_in_quarters
from embodied_rl.reports.chart import Series, draw_chart_file
from embodied_rl.reports.statistics import mean_interval
from embodied_rl.reports.tracked_evaluation import TrackedEvaluation
from embodied_rl.reports.tracked_run import OF_FAMILY, TrackedRun
from embodied_rl.schema.config_file import read_config
from embodied_rl.system.untrusted_files import check_inside

LIST = "figures.yaml"
_AMOUNTS = {"episodes": ("total/episodes", 1.0), "minutes": ("time/elapsed", 60.0), "iterations": ("iteration", 1.0)}
"""What an x-axis may show: its metric and the unit in terms of that metric."""
_END = "<!-- end of table -->"
Added = Mapping[str, TrackedRun | TrackedEvaluation]
"""What is to be tracked, by its file below `results`."""


@dataclass(frozen=True)
class Figure:
    """A plot, a table, or both, of some groups of tracked runs.

    Attributes:
        title: of the plot.
        runs: label → folder of the tracked runs below `results/`, one file for each seed.
        plot: file of the plot, relative to the folder that holds `results/`; null for none.
        x: what the plot's x-axis shows.
        table: Markdown file of the table, likewise; null for none.
        families: whether the table has a column for each family, and where a group has several seeds, one for the
            interquartile mean of the families of all seeds, IQM (`embodied_rl.reports.aggregates`).
        levels: successes; the table has a column for each, with the minutes until an evaluation reached it, the median
            of the seeds.
        steps: whether the table of evaluations has the control steps to success, mean over the successes.
        interventions: whether the table has the interventions of a human an episode, in the first and in the last
            quarter of the training episodes.
        family_plot: file of a plot with a curve for each family, of one group alone; null for none.
        profile: file of a plot of the share of families and seeds above each success; null for none.
        evaluations: label → folder of a tracked evaluation below `results/`; in place of runs, for a table.
    """

    title: str
    runs: Mapping[str, str] = field(default_factory=dict)
    plot: str | None = None
    x: Literal["episodes", "minutes", "iterations"] = "episodes"
    table: str | None = None
    families: bool = False
    levels: tuple[float, ...] = ()
    steps: bool = False
    interventions: bool = False
    family_plot: str | None = None
    profile: str | None = None
    evaluations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Figures:
    """The content of `results/figures.yaml`: name → figure."""

    figures: Mapping[str, Figure]


def read_figures(results: Path) -> Mapping[str, Figure]:
    """Read the list of figures, name → figure; raise `UserError` if it is missing or damaged."""
    return freeze_config(_Figures, {"figures": read_config(results / LIST)}).figures


def redraw(results: Path, added: Added | None = None) -> dict[Path, str]:
    """Draw every figure of `results/figures.yaml`; return file → its new content, and write nothing.

    Args:
        results: the folder of tracked runs.
        added: further runs and evaluations, or those in place of others, by their files in it.

    Raises:
        UserError: the list, a tracked run or a place for a table is missing or damaged, or runs do not fit together.
    """
    files: dict[Path, str] = {}
    for name, figure in read_figures(results).items():
        groups = {label: read_group(results, group, added) for label, group in figure.runs.items()}
        if missing := [figure.runs[label] for label, runs in groups.items() if not runs]:
            message = f"{results / missing[0]} has no tracked run, which {LIST} names."
            raise UserError(message, code="tracked-run-missing")
        check_figure(name, figure, groups)
        for place in (figure.plot, figure.family_plot, figure.table, figure.profile):
            check_inside(results.parent, results.parent / (place or ""))
        if figure.plot is not None:
            curves = [draw_curve(label, runs, figure.x) for label, runs in groups.items()]
            drawn = draw_chart_file(figure.title, curves, x_label=figure.x, percent=True)
            files[results.parent / figure.plot] = drawn
        if figure.family_plot is not None:
            (runs,) = groups.values()
            curves = [draw_curve(family, runs, figure.x, family) for family in runs[0].after.families]
            drawn = draw_chart_file(figure.title + ": families", curves, x_label=figure.x, percent=True)
            files[results.parent / figure.family_plot] = drawn
        if figure.profile is not None:
            curves = [draw_profile(label, runs) for label, runs in groups.items()]
            drawn = draw_chart_file(figure.title + ": profile", curves, x_label="success, %", percent=True)
            files[results.parent / figure.profile] = drawn
        if figure.table is not None:
            page = results.parent / figure.table
            found = {label: read_evaluation(results, group, added) for label, group in figure.evaluations.items()}
            table = make_evaluations_table(found, figure.steps) if found else make_table(groups, figure)
            files[page] = replace_table(files.get(page) or read_page(page), name, table, page)
    if (results / relations.LIST).is_file():
        place, listed = relations.read_relations(results)
        page = results.parent / place
        check_inside(results.parent, page)
        sides = {group for each in listed.values() for group in (each.first, each.second)}
        table = relations.make_relations_table({group: read_group(results, group, added) for group in sides}, listed)
        files[page] = replace_table(files.get(page) or read_page(page), relations.PLACE, table, page)
    return files


def check_figure(name: str, figure: Figure, groups: Mapping[str, Sequence[TrackedRun]]) -> None:
    """Check that a figure has runs and a place, and that runs to be compared by family have the same families.

    Raises:
        UserError: it is not so.
    """
    places = (figure.plot, figure.family_plot, figure.table, figure.profile)
    if not any(places) or "" in places or bool(groups) == bool(figure.evaluations):
        message = (
            f"{LIST}: {name} needs runs or evaluations, and at least one file: plot, family_plot, table or profile."
        )
        raise UserError(message, code="figure-incomplete")
    if figure.evaluations and (
        any((figure.plot, figure.family_plot, figure.profile)) or figure.levels or figure.interventions
    ):
        raise UserError(f"{LIST}: {name}: evaluations have a table of success alone.", code="figure-incomplete")
    if figure.steps and groups:
        raise UserError(f"{LIST}: {name}: steps are a column of evaluations alone.", code="figure-incomplete")
    for label, runs in groups.items():
        if figure.interventions and not all(run.interventions for run in runs):
            message = f"{LIST}: {name}: a run of {label} has no interventions of a human: leave interventions out."
            raise UserError(message, code="tracked-runs-unequal")
    if figure.family_plot is not None and len(groups) > 1:
        raise UserError(f"{LIST}: {name}: family_plot is of one group alone.", code="figure-incomplete")
    if figure.families or figure.profile is not None or figure.family_plot is not None:
        found = {label: {tuple(run.after.families) for run in runs} for label, runs in groups.items()}
        if len(different := set.union(*found.values())) > 1:
            message = f"{LIST}: {name}: runs of {', '.join(found)} have different families: {sorted(different)}."
            raise UserError(f"{message} Give families: false, and no profile.", code="tracked-runs-unequal")


def read_group(results: Path, group: str, added: Added | None = None) -> list[TrackedRun]:
    """Read the tracked runs of a group, in the order of their seeds; none if there is no such folder.

    `added` are runs by their files, which take the place of those that are there.
    """
    check_folder_name(group, "runs")
    runs = {path.name: TrackedRun.read(path) for path in results.joinpath(group).glob("s*.json")}
    for place, run in (added or {}).items():
        if Path(place).parent.name == group and isinstance(run, TrackedRun):
            runs[Path(place).name] = run
    return sorted(runs.values(), key=lambda run: run.seed)


def read_evaluation(results: Path, group: str, added: Added | None = None) -> TrackedEvaluation:
    """Read the tracked evaluation of a group, or take it from `added`; raise `UserError` if there is none."""
    check_folder_name(group, "evaluations")
    place = f"{group}/{tracked_evaluation.FILE}"
    given = (added or {}).get(place)
    if isinstance(given, TrackedEvaluation):
        return given
    if not (results / place).is_file():
        raise UserError(f"{results / place} is missing, which {LIST} names.", code="tracked-run-missing")
    return TrackedEvaluation.read(results / place)


def draw_curve(label: str, runs: Sequence[TrackedRun], x: str, family: str | None = None) -> Series:
    """Return the success of the deployed policy in evaluations, averaged over seeds, with Student's interval.

    The first point is the report before training. All runs are evaluated at the same iterations. With a `family` it is
    that of its episodes.

    Raises:
        UserError: a run lacks evaluations that another has, or the success of the family.
    """
    metric, unit = _AMOUNTS[x]
    success = "eval/success" if family is None else OF_FAMILY + family
    if any(success not in run.course for run in runs):
        raise UserError(f"a run of {label} was tracked without {success}: track it again.", code="tracked-runs-unequal")
    courses = [[(0.0, run.before.rate(family).rate), *_list_evaluations(run, metric, unit, success)] for run in runs]
    if len({len(course) for course in courses}) > 1:
        message = f"the runs of {label} were not evaluated equally often: {[len(course) for course in courses]}."
        raise UserError(message, code="tracked-runs-unequal")
    points = [list(zip(*column, strict=True)) for column in zip(*courses, strict=True)]
    means = [mean_interval(success) for _, success in points]
    banded = len(runs) > 1
    return Series(
        label,
        [fmean(amounts) for amounts, _ in points],
        [mean.mean for mean in means],
        [max(0.0, mean.low or 0.0) for mean in means] if banded else (),
        [min(1.0, mean.high or 1.0) for mean in means] if banded else (),
    )


def draw_profile(label: str, runs: Sequence[TrackedRun]) -> Series:
    """Return the share of families and seeds whose success after training is above 0, 2, …, 100 %."""
    levels = [level / 50 for level in range(51)]
    shares = performance_profile(_list_scores(runs), levels)
    banded = len(runs) > 1
    return Series(
        label,
        [100 * level for level in levels],
        [share.value for share in shares],
        [share.low for share in shares] if banded else (),
        [share.high for share in shares] if banded else (),
    )


def make_table(groups: Mapping[str, Sequence[TrackedRun]], figure: Figure) -> str:
    """Make a Markdown table: of each group its seeds, success before and after, and what training took."""
    names = list(next(iter(groups.values()))[0].after.families) if figure.families else []
    middle = ["IQM"] * (bool(names) and any(len(runs) > 1 for runs in groups.values()))
    last = [f"minutes to {100 * level:g} %" for level in figure.levels]
    last += ["interventions an episode, first quarter", "last quarter"] * figure.interventions
    rows = [("", "seeds", "before", "after", *middle, *names, "episodes", "decisions", "minutes", *last)]
    rows += [("---",) * len(rows[0])]
    for label, runs in groups.items():
        cells = [f"{100 * fmean(run.before.rate().rate for run in runs):.1f} %"]
        mean = mean_interval([run.after.rate().rate for run in runs])
        cells += [_format_percent(mean.mean, mean.low, mean.high)]
        if middle:
            half = interquartile_mean(_list_scores(runs))
            cells += [_format_percent(half.value, half.low, half.high)]
        cells += [f"{100 * fmean(run.after.rate(name).rate for run in runs):.1f}" for name in names]
        amounts = [
            fmean(run.course[metric][-1] or 0.0 for run in runs) for metric in ("total/episodes", "total/decisions")
        ]
        minutes = fmean((run.course["time/elapsed"][-1] or 0.0) / 60 for run in runs)
        cells += [f"{amount:,.0f}" for amount in amounts] + [f"{minutes:.1f}"]
        cells += [_format_minutes(runs, level) for level in figure.levels]
        cells += _format_interventions(runs) if figure.interventions else []
        rows.append((label, _list_seeds(runs), *cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def make_evaluations_table(evaluations: Mapping[str, TrackedEvaluation], steps: bool = False) -> str:
    """Make a Markdown table: of each evaluation its success with Wilson's interval, of each family, and its episodes.

    With `steps` it has the control steps to success, too.

    Raises:
        UserError: the evaluations have different families, or one was tracked without the steps.
    """
    names = list(next(iter(evaluations.values())).outcomes.families)
    if different := [label for label, each in evaluations.items() if list(each.outcomes.families) != names]:
        message = f"{LIST}: the evaluation of {different[0]} has other families than {', '.join(names)}."
        raise UserError(message, code="tracked-runs-unequal")
    rows = [("", "success", *names, *["control steps to success"] * steps, "episodes")]
    rows += [("---",) * len(rows[0])]
    for label, evaluation in evaluations.items():
        outcomes = evaluation.outcomes
        rate = outcomes.rate()
        cells = [f"{100 * outcomes.rate(name).rate:.1f}" for name in names]
        if steps:
            if outcomes.steps_to_success is None:
                message = f"the evaluation of {label} was tracked without steps to success: track it again."
                raise UserError(message, code="tracked-runs-unequal")
            cells.append(f"{outcomes.steps_to_success:.1f}")
        rows.append((label, _format_percent(rate.rate, rate.low, rate.high), *cells, str(rate.episodes)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def read_page(page: Path) -> str:
    """Return the text of the file that a table belongs to; raise `UserError` if it is no file."""
    if not page.is_file():
        raise UserError(f"{page} is no file, and {LIST} names it for a table.", code="table-place-missing")
    return read_text(page)


def replace_table(text: str, name: str, table: str, page: Path) -> str:
    """Return a Markdown text with another table at the place of this name; raise `UserError` if it has none."""
    begin = f"<!-- table: {name} -->"
    place = re.compile(f"{re.escape(begin)}\n(?:(?!<!-- table: ).)*?{re.escape(_END)}", re.DOTALL)
    changed, count = place.subn(lambda _: f"{begin}\n\n{table}\n{_END}", text)
    if count != 1 or text.count(begin) != 1:
        message = f"{page} must have the lines '{begin}' and '{_END}' once, around the table that {LIST} names."
        raise UserError(message, code="table-place-missing")
    return changed


def _list_evaluations(run: TrackedRun, metric: str, unit: float, of: str = "eval/success") -> list[tuple[float, float]]:
    rows = zip(run.course[metric], run.course[of], strict=True)
    return [(amount / unit, success) for amount, success in rows if amount is not None and success is not None]


def _format_minutes(runs: Sequence[TrackedRun], level: float) -> str:
    """Return the minutes until an evaluation reached a success, the median of the runs; a dash if half never did."""
    times = [
        min(
            (minutes for minutes, success in _list_evaluations(run, "time/elapsed", 60) if success >= level),
            default=inf,
        )
        for run in runs
    ]
    middle = median(times)
    return f"{middle:.1f}" if middle < inf else "–"


def _format_interventions(runs: Sequence[TrackedRun]) -> list[str]:
    """Return interventions an episode in the first and in the last quarter of the episodes, means of the runs."""
    parts = [split_in_quarters(run.interventions) for run in runs]
    return [f"{fmean(fmean(quarters[place]) for quarters in parts):.2f}" for place in (0, -1)]


def _list_seeds(runs: Sequence[TrackedRun]) -> str:
    return ", ".join(str(run.seed) for run in runs)


def _list_scores(runs: Sequence[TrackedRun]) -> list[list[float]]:
    """List the success after training of each run and family, [R, F]."""
    return [[run.after.rate(name).rate for name in runs[0].after.families] for run in runs]


def _format_percent(mean: float, low: float | None, high: float | None) -> str:
    """Return a share in percent, with its interval where it has one."""
    if low is None or high is None:
        return f"{100 * mean:.1f} %"
    return f"{100 * mean:.1f} % [{100 * max(0.0, low):.1f}, {100 * min(1.0, high):.1f}]"
