"""`report.html`: success, gain by training, kinds of failures, videos, and the origin of the numbers."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.reports.page import (
    format_interval,
    format_percent,
    format_share,
    make_bar,
    make_card,
    make_html_table,
    make_origin,
    make_section,
    write_html,
)
from embodied_rl.reports.pairing import name_tasks, pair_reports
from embodied_rl.reports.report import Rate, Report, Summary, describe_delay
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.scorer_section import make_reward_section
from embodied_rl.runs.metrics_file import Value, read_metrics, read_number

_CURVES = (
    ("Return of training episodes", "rollout/return"),
    ("KL divergence per update", "update/kl"),
    ("Share of clipped ratios", "update/clip_share"),
    ("Entropy", "update/entropy"),
    ("Loss of localisation", "localise/loss"),
    ("Loss of cloning", "clone/loss"),
)
"""Learning curves after that of success: title, metric."""

_CAPTIONS = {"grid": "The first episodes of the evaluation", "best": "The quickest successes", "worst": "Failures"}
_OUTCOMES = {
    (False, True): "were gained",
    (True, False): "lost",
    (True, True): "solved both times",
    (False, False): "never",
}
"""Success before and after → words of the page."""
_CHOICE = "The films were chosen to have these outcomes in about these shares, as far as the films before training do."
_PAIR, _FAILED = "pair_", "failure_"
"""Starts of the names of videos that show an episode before and after training, and one kind of failure."""
UNKNOWN_FAILURE = "not told"
"""Kind of a failure for which the simulator gives no reason."""
_LEAST_P = 1e-16


def write_page(
    path: Path,
    report: Report,
    *,
    before: Report | None = None,
    metrics: Path | None = None,
    videos: Sequence[Path] = (),
    configuration: str = "",
    strips: str = "",
    robot: str = "",
    key: str = "run.root",
) -> None:
    """Write `report.html`.

    Args:
        path, report: the file and the results.
        before: results on the same episodes before training, shown for comparison.
        metrics: the run's metrics.jsonl, for the learning curves.
        videos: MP4 files to embed; `pair_<index>.mp4` shows an episode before and after training, `failure_<index>.mp4`
            one whose kind of failure is the caption.
        configuration: the whole configuration as YAML.
        strips, robot: HTML of frames with a scorer's answers, and about the robot's side, such as latencies, or
            who executed what.
        key: configuration key of the path, for messages.
    """
    earlier, old = (None, None) if before is None else (before.overall, before.episodes)
    at_end, rows = shows_at_end(report), read_metrics(metrics) if metrics else []
    pairs = [video for video in videos if video.stem.startswith(_PAIR)]
    failed = [video for video in videos if video.stem.startswith(_FAILED)]
    films = ""
    for video in videos:
        if video not in pairs and video not in failed:
            caption = _CAPTIONS.get(video.stem, video.stem.replace("_", " "))
            films += _video(video, caption, wide=not films)
    paired = "" if before is None else draw_pairs(pairs, report, before)
    films = f'<div class="videos">{films}</div>' if films else ""
    sections = [
        f'<div class="cards">{make_cards(report, before)}</div>',
        make_section("Before and after, the same episodes", paired),
        make_section("By family", _table("family", report.families, before and before.families, at_end)),
        make_section("By task", _table("task", report.tasks, before and before.tasks, at_end)),
        make_section("Why episodes failed", make_failure_table(report.episodes, old) + draw_failures(failed, report)),
        make_section("On the robot", robot),
        make_section("Learning curves", draw_learning_curves(rows, before, report)),
        make_section("Reward", make_reward_section(rows, report.metadata.get("reward") == "terminal")),
        make_section("What the scorer said", strips),
        make_section("Videos" if earlier is None else "Videos, after training", films),
        make_section("Where these numbers come from", make_origin(report.metadata, configuration)),
    ]
    write_html(path, make_title(report.metadata), make_lead(report), sections, key)


def make_title(metadata: Mapping[str, Any]) -> str:
    """Return the title: training, cloning, deployment or evaluation, with the policy and the simulator."""
    place = f"benchmark {metadata['benchmark']}" if "benchmark" in metadata else metadata.get("simulator")
    where = f" in {place}" if place else ""
    match metadata.get("kind"):
        case "training":
            return f"Training of {metadata.get('policy')} by {metadata.get('algorithm')}{where}"
        case "cloning":
            return f"Cloning of {metadata.get('source', 'demonstrations')} by {metadata.get('policy')}{where}"
        case "deployment":
            return f"Deployment of {metadata.get('checkpoint')} on {metadata.get('robot')}"
        case _:
            return f"Evaluation of {metadata.get('checkpoint') or metadata.get('run') or 'a policy'}{where}"


def make_lead(report: Report) -> str:
    """Return one line about the episodes of a report."""
    metadata = report.metadata
    split = "benchmark" not in metadata and f"split {metadata.get('split', '–')}"
    part = "benchmark" in metadata and not metadata.get("complete") and "not all of the benchmark"
    ablated = metadata.get("ablate", "none") != "none" and f"without {metadata['ablate']}"
    parts = (
        f"{report.success.episodes} episodes",
        metadata.get("kind") == "training" and "never trained on",
        split,
        metadata.get("task"),
        part,
        ablated,
        describe_delay(metadata),
    )
    return " · ".join(str(part) for part in parts if part)


def shows_at_end(report: Report) -> bool:
    """Return whether an episode reached its goal and lost it again, so that success at the end differs."""
    return any(result.success != result.success_at_end for result in report.episodes)


def format_points(after: Summary, before: Summary) -> str:
    """Format the gain of success in percentage points, such as +39.6."""
    return f"{100 * (after.success.rate - before.success.rate):+.1f}"


def draw_learning_curves(metrics: Sequence[Mapping[str, Value]], before: Report | None, after: Report) -> str:
    """Draw success in training, in evaluations, and in the reports before and after; then the other curves."""
    iterations = [read_number(row.get("iteration")) or 0.0 for row in metrics]

    def column(name: str) -> list[float | None]:
        return [read_number(row.get(name)) for row in metrics]

    rates = (column("eval/success"), column("eval/low"), column("eval/high"))
    evaluations = Series("evaluation, without noise", iterations, *rates, dots=True)
    training = Series("training, with exploration", iterations, column("rollout/success"))
    series = [training, evaluations]
    if before is not None and iterations:
        ends = [before.success, after.success]
        known = ([end.rate for end in ends], [end.low for end in ends], [end.high for end in ends])
        series.append(Series("this report, before and after", [0.0, iterations[-1]], *known, dots=True))
    charts = [draw_line_chart("Success", series, x_label="iteration", percent=True)]
    for title, name in _CURVES:
        values = column(name)
        if any(values):  # with fixed noise the entropy is always 0
            charts.append(draw_line_chart(title, [Series("", iterations, values)], x_label="iteration"))
    return join_charts(charts)


def count_failures(results: Sequence[EpisodeResult]) -> dict[str, int]:
    """Return kind of failure → number of episodes, the most frequent first."""
    counts = Counter(result.failure or UNKNOWN_FAILURE for result in results if not result.success)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def make_cards(report: Report, before: Report | None) -> str:
    """Make the cards of the most important figures as HTML."""
    success, overall = report.success, report.overall
    if before is None:
        cards = make_card(format_share(success.rate), f"success, 95 % interval {format_interval(success)} %")
    else:
        intervals = f"95 % intervals {format_interval(before.success)} and {format_interval(success)} %"
        value = f"{100 * before.success.rate:.1f} → {format_share(success.rate)}"
        gain = f"success before and after training: {format_points(overall, before.overall)} points, {intervals}"
        cards = make_card(value, gain)
        try:
            test = pair_reports(before, report).test
        except UserError as error:
            cards += make_card("not paired", str(error))
        else:
            value = f"p = {test.p_value:.2g}" if test.p_value >= _LEAST_P else f"p < {_LEAST_P:.0e}"
            counts = f"{test.only_second} solved only after training, {test.only_first} only before"
            cards += make_card(value, f"exact McNemar test on {test.episodes} equal episodes: {counts}")
    if shows_at_end(report):
        end = overall.success_at_end
        cards += make_card(format_share(end.rate), f"success that lasts to the end, {format_interval(end)} %")
    earlier = "" if before is None else f", {before.overall.steps:.1f} before"
    cards += make_card(f"{overall.steps:.1f}", f"control steps per episode{earlier}")
    if overall.steps_to_success is not None:
        cards += make_card(f"{overall.steps_to_success:.1f}", "control steps to success, of the successes")
    return cards


def draw_pairs(videos: Sequence[Path], report: Report, before: Report) -> str:
    """Return the films of episodes before and after training as HTML, with the outcomes of all episodes."""
    if not videos:
        return '<p class="note">No episode was filmed before training.</p>'
    old, new = ({result.index: result for result in each.episodes} for each in (before, report))
    figures = ""
    for video in videos:
        index = int(video.stem.removeprefix(_PAIR))
        ends = " → ".join(
            "success" if result.success else f"failure ({result.failure or UNKNOWN_FAILURE})"
            for result in (old[index], new[index])
        )
        figures += _video(video, f"{name_tasks(report)[new[index].task]}: {ends}")
    outcomes = Counter((old[index].success, new[index].success) for index in old.keys() & new.keys())
    counts = ", ".join(f"{outcomes[key]} {name}" for key, name in _OUTCOMES.items())
    note = f"Left: before training. Right: after. Of all {outcomes.total()} episodes {counts}. {_CHOICE}"
    return f'<div class="videos pairs">{figures}</div><p class="note">{note}</p>'


def draw_failures(videos: Sequence[Path], report: Report) -> str:
    """Return the films of failures as HTML, each with its kind and task; empty without films."""
    found, tasks = {result.index: result for result in report.episodes}, name_tasks(report)
    figures = ""
    for video in videos:
        result = found[int(video.stem.removeprefix(_FAILED))]
        figures += _video(video, f"{result.failure or UNKNOWN_FAILURE}: {tasks[result.task]}")
    note = "The first episode of each of the most frequent kinds, after training where the policy was trained."
    return f'<div class="videos">{figures}</div><p class="note">{note}</p>' if figures else ""


def make_failure_table(results: Sequence[EpisodeResult], before: Sequence[EpisodeResult] | None) -> str:
    """Make an HTML table of failures by kind, also before training; a sentence if the simulator names no kind."""
    found = count_failures(results)
    earlier = {} if before is None else count_failures(before)
    if not {*found, *earlier} - {UNKNOWN_FAILURE}:
        if not found:
            return "<p>No episode failed.</p>"
        failed = sum(found.values())
        return f"<p>{failed} of {len(results)} episodes failed. The simulator does not tell why.</p>"
    rows: list[list[str]] = []
    for kind in [*found, *(kind for kind in earlier if kind not in found)]:
        share = Rate.from_count(found.get(kind, 0), len(results))
        old = [] if before is None else [f"{earlier.get(kind, 0)} of {len(before)}"]
        count = f"{found.get(kind, 0)} of {len(results)}"
        rows.append([escape(kind), make_bar(share), *old, count, format_percent(share)])
    return make_html_table(["why", "", *([] if before is None else ["before"]), "episodes", "share [95 %]"], rows)


def _table(kind: str, summaries: Mapping[str, Summary], before: Mapping[str, Summary] | None, at_end: bool) -> str:
    headings = [kind, "", *([] if before is None else ["before", "gain"]), "success [95 %]"]
    headings += [*(["at the end"] if at_end else []), "episodes", "steps"]
    rows: list[list[str]] = []
    for name, summary in summaries.items():
        cells = [escape(name), make_bar(summary.success)]
        if before is not None:
            old = before.get(name)
            cells += ["–", "–"] if old is None else [format_percent(old.success), format_points(summary, old)]
        cells += [format_percent(summary.success), *([format_share(summary.success_at_end.rate)] if at_end else [])]
        rows.append([*cells, str(summary.success.episodes), f"{summary.steps:.1f}"])
    return make_html_table(headings, rows)


def _video(path: Path, caption: str, *, wide: bool = False) -> str:
    def encode(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    source, still = f'src="data:video/mp4;base64,{encode(path)}"', path.with_suffix(".jpg")
    poster = f' poster="data:image/jpeg;base64,{encode(still)}"' if still.is_file() else ""
    player = f'<video controls loop muted playsinline preload="metadata"{poster} {source}></video>'
    size = ' class="wide"' if wide else ""
    return f"<figure{size}><figcaption>{escape(caption)}</figcaption>{player}</figure>"
