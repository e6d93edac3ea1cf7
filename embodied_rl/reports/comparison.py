"""Comparison of runs side by side, paired by shared episodes and averaged over seeds, as Markdown and as a page."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.reports.page import format_percent, make_bar, make_html_table, make_section, write_html
from embodied_rl.reports.pairing import Pairing, list_simulators, pair_reports
from embodied_rl.reports.report import Report, describe_delay, read_purpose
from embodied_rl.reports.result import IN_DISTRIBUTION
from embodied_rl.reports.statistics import Mean, adjust_by_holm, mean_interval
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import Value, read_metrics
from embodied_rl.system.untrusted_files import check_inside

REPORT = "report.json"
PairedRow = tuple[str, str, Pairing, float]
"""Labels of two reports, their pairing, and the p-value adjusted for all pairs."""
RefusedRow = tuple[str, str]
"""A comparison that is not possible, and the reason."""


@dataclass(frozen=True)
class ComparedReport:
    """One report in a comparison.

    Attributes:
        settings: the experiment and what was overridden, without the seed; the path of a report outside a run.
        group: name shared by all entries that differ only in the seed; label: the same with the seed, if it is known.
        metrics: rows of its metrics.jsonl; empty for a report outside a run.
    """

    settings: tuple[str, ...]
    group: str
    label: str
    seed: int | None
    report: Report
    metrics: tuple[dict[str, Value], ...]
    file: Path


def read_entry(path: Path) -> ComparedReport:
    """Read the report of a run folder or an evaluation's folder, or a report file.

    A run stands for the evaluation after its training, `<run>/report.json`; other ones are given by their folder.

    Raises:
        UserError: the folder has no report; the message lists the evaluations below it.
    """
    file = path / REPORT if path.is_dir() else path
    if not path.exists():
        raise UserError(
            f"{path} is not there: give the folder of a run or of an evaluation, or a {REPORT}.", code="report-missing"
        )
    if not file.exists():
        others = ", ".join(sorted(str(each.parent) for each in path.glob(f"eval/*/{REPORT}")))
        message = f"{path} holds no evaluation. Make one: embodied-rl eval checkpoint={path}"
        if others:
            message = f"{path} has no {REPORT}; give one of its evaluations by name: {others}."
        raise UserError(message, code="report-missing")
    check_inside(path, file)
    report = Report.read(file)
    parents = file.resolve().parents  # of <run>/report.json or <run>/eval/<name>/report.json
    folders = [RunFolder(parents[level]) for level in (0, 2) if level < len(parents)]
    folder = next((each for each in folders if each.config.is_file()), None)
    if folder is None:
        return ComparedReport((str(path),), str(path), str(path), None, report, (), file)
    metadata = report.metadata
    split, without = metadata.get("split", IN_DISTRIBUTION), metadata.get("ablate", "none")
    conditions = {
        f"({split})": split != IN_DISTRIBUTION,
        "(publish)": read_purpose(metadata) == "publish",
        f"(without {without})": without != "none",
        f"({describe_delay(metadata)})": describe_delay(metadata),
        "(before)": metadata.get("when") == "before",
    }
    own = [text for text in folder.overrides() if not text.startswith(("seed=", "experiment=", "run.", "resume="))]
    settings = (folder.experiment, *own, *(text for text, holds in conditions.items() if holds))
    group, metrics = " ".join(settings), tuple(read_metrics(folder.metrics))
    return ComparedReport(settings, group, group + _name_seed(folder.seed), folder.seed, report, metrics, file)


def shorten_labels(entries: Sequence[ComparedReport]) -> list[ComparedReport]:
    """Return the entries with groups and labels that name only the settings in which entries differ."""
    shared = set(entries[0].settings).intersection(*(entry.settings for entry in entries))
    groups = [" ".join(text for text in entry.settings if text not in shared) or entry.settings[0] for entry in entries]
    return [
        replace(entry, group=group, label=group + _name_seed(entry.seed))
        for entry, group in zip(entries, groups, strict=True)
    ]


def number_labels(entries: Sequence[ComparedReport]) -> list[ComparedReport]:
    """Return the entries with unique labels: number those that share a label."""
    labels = [entry.label for entry in entries]
    result: list[ComparedReport] = []
    for place, entry in enumerate(entries):
        number = labels[: place + 1].count(entry.label)
        label = entry.label if labels.count(entry.label) == 1 else f"{entry.label} ({number})"
        result.append(replace(entry, label=label))
    return result


def pair_all(entries: Sequence[ComparedReport]) -> tuple[list[PairedRow], list[RefusedRow]]:
    """Compare every two reports in pairs; return the pairs, and the reasons for reports that cannot be paired."""
    pairs: list[tuple[str, str, Pairing]] = []
    refused: list[RefusedRow] = []
    for first, second in combinations(entries, 2):
        try:
            pairs.append((first.label, second.label, pair_reports(first.report, second.report)))
        except UserError as error:
            refused.append((f"{first.label} and {second.label}", str(error)))
    adjusted = adjust_by_holm([pairing.test.p_value for *_, pairing in pairs])
    return [(*pair, p_value) for pair, p_value in zip(pairs, adjusted, strict=True)], refused


def average_seeds(entries: Sequence[ComparedReport]) -> tuple[dict[str, Mean], list[RefusedRow]]:
    """Return the mean success of each group of two seeds or more, and the reasons for groups without a mean.

    The last report of a seed counts.
    """
    means: dict[str, Mean] = {}
    refused: list[RefusedRow] = []
    for name, members in _group_entries(entries).items():
        kept = keep_newest_per_seed(members)
        tasks = {tuple((n, s.success.episodes) for n, s in member.report.tasks.items()) for member in kept}
        if len(tasks) > 1:
            refused.append((f"{name}, over seeds", "the reports differ in their tasks, or in episodes of a task"))
        elif len({_describe_simulators(member.report) for member in kept}) > 1:
            refused.append((f"{name}, over seeds", "the reports differ in their simulators"))
        elif len(kept) > 1:
            means[name] = mean_interval([entry.report.success.rate for entry in kept])
    return means, refused


def _describe_simulators(report: Report) -> str:
    """Return the settings of a report's simulators as text; empty if it does not name them."""
    try:
        return json.dumps(list_simulators(report), sort_keys=True)
    except UserError:
        return ""


def keep_newest_per_seed(members: Sequence[ComparedReport]) -> list[ComparedReport]:
    """Return the last entry of each seed, ordered by seed, so that a run given twice counts once."""
    found = {entry.seed: entry for entry in members if entry.seed is not None}
    return [found[seed] for seed in sorted(found)]


def to_markdown(entries: Sequence[ComparedReport]) -> str:
    """Return the whole comparison as Markdown."""
    first = ("run", "success [95 %]", *_list_families(entries), "episodes", "split")
    parts: list[str] = []
    for title, headings, rows in [("# Comparison", first, _list_rows(entries)), *_list_tables(entries)]:
        if rows:
            lines = [headings, ("---",) * len(headings), *rows]
            table = [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
            parts += [title if parts == [] else f"## {title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def to_data(entries: Sequence[ComparedReport]) -> dict[str, Any]:
    """Return the whole comparison for programs: runs, means over seeds, pairs with exact p-values, and refusals."""
    means, unequal = average_seeds(entries)
    pairs, unpaired = pair_all(entries)
    return {
        "runs": [
            {"label": e.label, "settings": e.settings, "seed": e.seed, "report": str(e.file), **e.report.summarise()}
            for e in entries
        ],
        "over_seeds": {name: asdict(mean) for name, mean in means.items()},
        "pairs": [
            {"first": first, "second": second, **asdict(pairing.test), "p_holm": adjusted, "remark": pairing.remark}
            for first, second, pairing, adjusted in pairs
        ],
        "not_compared": [{"what": what, "why": why} for what, why in (*unequal, *unpaired)],
    }


def write_comparison(path: Path, entries: Sequence[ComparedReport]) -> None:
    """Write the comparison as a self-contained HTML page, with learning curves."""
    rows = [
        (escape(entry.label), make_bar(entry.report.success), *map(escape, row[1:]))
        for entry, row in zip(entries, _list_rows(entries), strict=True)
    ]
    headings = ("run", "", "success [95 %]", *_list_families(entries), "episodes", "split")
    sections = [make_section("Success", make_html_table(headings, rows))]
    for title, headings, rows in _list_tables(entries):
        sections.append(make_section(title, make_html_table(headings, [tuple(map(escape, row)) for row in rows])))
    groups = list(_group_entries(entries).values())
    charts: list[str] = []
    for title, metric in (("Success in evaluations", "eval/success"), ("Success while training", "rollout/success")):
        curves = [average_curve(members, metric) for members in groups]
        charts.append(draw_line_chart(title, curves, x_label="iteration", percent=True))
    sections.append(make_section("Learning curves", join_charts(charts)))
    write_html(path, "Comparison", f"{len(entries)} runs", sections)


def _list_tables(entries: Sequence[ComparedReport]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return title, headings and rows of the further tables; some have no rows."""
    means, unequal = average_seeds(entries)
    pairs, unpaired = pair_all(entries)
    paired: list[tuple[str, ...]] = []
    for first, second, pairing, adjusted in pairs:
        test, sizes = pairing.test, pairing.sizes
        whole = sizes == (test.episodes, test.episodes)
        shared = str(test.episodes) if whole else f"{test.episodes} of {sizes[0]} and {sizes[1]}"
        counts = (shared, str(test.only_first), str(test.only_second))
        p_values = (f"{test.p_value:.2g}", f"{adjusted:.2g}")
        paired.append((first, second, *counts, *p_values, pairing.remark or "–"))
    seeds: list[tuple[str, ...]] = []
    for name, mean in means.items():
        low, high = _clip_share(mean.low), _clip_share(mean.high)
        assert low is not None and high is not None, "a mean over two seeds or more has an interval"
        seeds.append((name, str(mean.count), f"{100 * mean.mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"))
    pair_headings = (
        "first", "second", "shared episodes", "only first", "only second",
        "p (exact McNemar)", "p (Holm)", "other versions, strategies",
    )  # fmt: skip
    return [
        ("Over seeds", ("runs", "seeds", "mean success [95 %, Student]"), seeds),
        ("The same episodes", pair_headings, paired),
        ("Not compared", ("what", "why"), [*unequal, *unpaired]),
        (
            "Settings",
            ("run", "as it was started", "report"),
            [(e.label, " ".join(e.settings), str(e.file)) for e in entries],
        ),
    ]


def average_curve(members: Sequence[ComparedReport], metric: str) -> Series:
    """Return a metric's mean curve over the seeds that have it, with Student's interval where two or more have it."""
    members = keep_newest_per_seed(members) or members
    values: dict[int, list[float]] = {}
    for member in members:
        for row in member.metrics:
            value, iteration = row.get(metric), row.get("iteration")
            if isinstance(value, int | float) and isinstance(iteration, int):
                values.setdefault(iteration, []).append(float(value))
    means = [mean_interval(values[iteration]) for iteration in sorted(values)]
    banded = any(mean.low is not None for mean in means)
    return Series(
        label=members[0].group if len(members) > 1 else members[0].label,
        x=sorted(values),
        y=[mean.mean for mean in means],
        low=[_clip_share(mean.low) for mean in means] if banded else (),
        high=[_clip_share(mean.high) for mean in means] if banded else (),
    )


def _list_rows(entries: Sequence[ComparedReport]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        known, success = entry.report.families, entry.report.success
        names = _list_families(entries)
        cells = [format_percent(known[name].success) if name in known else "–" for name in names]
        split = str(entry.report.metadata.get("split", ""))
        rows.append((entry.label, format_percent(success), *cells, str(success.episodes), split))
    return rows


def _name_seed(seed: int | None) -> str:
    return "" if seed is None else f" seed {seed}"


def _list_families(entries: Sequence[ComparedReport]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry.report.families))


def _group_entries(entries: Sequence[ComparedReport]) -> dict[str, list[ComparedReport]]:
    groups: dict[str, list[ComparedReport]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    return groups


def _clip_share(value: float | None) -> float | None:
    """Clip an interval bound of a share to [0, 1]."""
    return None if value is None else min(1.0, max(0.0, value))
