"""`report.html`: what was evaluated, what training gained, why episodes failed, films, and where it comes from."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.chart import Series, draw_line_chart
from embodied_rl.reports.failures import NOT_TOLD, make_failure_table
from embodied_rl.reports.origin import make_origin
from embodied_rl.reports.page import (
    format_interval,
    format_percent,
    format_share,
    make_bar,
    make_html_table,
    make_section,
    write_html,
)
from embodied_rl.reports.pairing import name_tasks, pair_reports
from embodied_rl.reports.report import Report, Summary, describe_delay
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.reward_section import make_reward_section
from embodied_rl.runs.metrics_file import Value, read_metrics

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
"""Success before and after → what the page calls it."""
_CHOICE = "The films were chosen to have these outcomes in about these shares, as far as the films before training do."
_PAIR = "pair_"
"""How the names of films begin that show an episode before and after training."""
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
        path: the file.
        report: the results.
        before: results on the same episodes before training, shown for comparison.
        metrics: the run's metrics.jsonl, for the learning curves.
        videos: MP4 files to embed; `pair_<index>.mp4` shows an episode before and after training.
        configuration: the whole configuration as YAML.
        strips: frames with what a scorer said under each, see `kept_strips`.
        robot: HTML of what is said of a robot's side, such as latencies.
        key: that chose the path, for the message where it cannot be written.
    """
    earlier, old = (None, None) if before is None else (before.overall, before.episodes)
    at_end, rows = shows_at_end(report), read_metrics(metrics) if metrics else []
    pairs = [video for video in videos if video.stem.startswith(_PAIR)]
    others = [video for video in videos if video not in pairs]
    sections = [
        f'<div class="cards">{"".join(_cards(report, before, at_end))}</div>',
        make_section("Before and after, the same episodes", _pairs(pairs, report, before)),
        make_section("By family", _table("family", report.families, before and before.families, at_end)),
        make_section("By task", _table("task", report.tasks, before and before.tasks, at_end)),
        make_section("Why episodes failed", make_failure_table(report.episodes, old)),
        make_section("On the robot", robot),
        make_section("Learning curves", draw_learning_curves(rows, before, report)),
        make_section("Reward", make_reward_section(rows, report.metadata.get("reward") == "terminal")),
        make_section("What the scorer said", strips),
        make_section("Videos" if earlier is None else "Videos, after training", _videos(others)),
        make_section("Where these numbers come from", make_origin(report.metadata, configuration)),
    ]
    write_html(path, make_title(report.metadata), make_lead(report), sections, key)


def make_title(metadata: Mapping[str, Any]) -> str:
    """Say what a report is of: training, cloning or an evaluation, of what, in what."""
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
    """Say in one line which episodes a report is on."""
    said = report.metadata
    split = "benchmark" not in said and f"split {said.get('split', '–')}"
    part = "benchmark" in said and not said.get("complete") and "not all of the benchmark"
    ablated = said.get("ablate", "none") != "none" and f"without {said['ablate']}"
    parts = (
        f"{report.success.episodes} episodes",
        said.get("kind") == "training" and "never trained on",
        split,
        said.get("task"),
        part,
        ablated,
        describe_delay(said),
    )
    return " · ".join(str(part) for part in parts if part)


def shows_at_end(report: Report) -> bool:
    """Return whether some episode reached its goal and lost it again, so that success at the end is another number."""
    return any(result.success != result.success_at_end for result in report.episodes)


def format_points(after: Summary, before: Summary) -> str:
    """Format the gain of success in percentage points, such as +39.6."""
    return f"{100 * (after.success.rate - before.success.rate):+.1f}"


def draw_learning_curves(metrics: Sequence[Mapping[str, Value]], before: Report | None, after: Report) -> str:
    """Draw success in training, in evaluations, and in the reports before and after; then the other curves."""
    iterations = [_number(row.get("iteration")) or 0.0 for row in metrics]

    def column(name: str) -> list[float | None]:
        return [_number(row.get(name)) for row in metrics]

    evaluations = Series(
        "evaluation, without noise",
        iterations,
        column("eval/success"),
        column("eval/low"),
        column("eval/high"),
        dots=True,
    )
    training = Series("training, with exploration", iterations, column("rollout/success"))
    series = [training, evaluations]
    if before is not None and iterations:
        ends = [before.success, after.success]
        rates = ([end.rate for end in ends], [end.low for end in ends], [end.high for end in ends])
        series.append(Series("this report, before and after", [0.0, iterations[-1]], *rates, dots=True))
    charts = [draw_line_chart("Success", series, x_label="iteration", percent=True)]
    for title, name in _CURVES:
        values = column(name)
        if any(values):  # with fixed noise the entropy is always 0
            charts.append(draw_line_chart(title, [Series("", iterations, values)], x_label="iteration"))
    drawn = "".join(charts)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _cards(report: Report, before: Report | None, at_end: bool) -> list[str]:
    success, overall = report.success, report.overall
    if before is None:
        cards = [_card(format_share(success.rate), f"success, 95 % interval {format_interval(success)} %")]
    else:
        cards = [_gain_card(overall, before.overall), _test_card(report, before)]
    if at_end:
        end = overall.success_at_end
        cards.append(_card(format_share(end.rate), f"success that lasts to the end, {format_interval(end)} %"))
    was = "" if before is None else f", {before.overall.steps:.1f} before"
    cards.append(_card(f"{overall.steps:.1f}", f"control steps per episode{was}"))
    quick = overall.steps_to_success
    return cards if quick is None else [*cards, _card(f"{quick:.1f}", "control steps to success, of the successes")]


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _gain_card(after: Summary, before: Summary) -> str:
    intervals = f"95 % intervals {format_interval(before.success)} and {format_interval(after.success)} %"
    value = f"{100 * before.success.rate:.1f} → {format_share(after.success.rate)}"
    return _card(value, f"success before and after training: {format_points(after, before)} points, {intervals}")


def _test_card(report: Report, before: Report) -> str:
    try:
        test = pair_reports(before, report).test
    except UserError as error:
        return _card("not paired", str(error))
    value = f"p = {test.p_value:.2g}" if test.p_value >= _LEAST_P else f"p < {_LEAST_P:.0e}"
    counts = f"{test.only_second} solved only after training, {test.only_first} only before"
    return _card(value, f"exact McNemar test on {test.episodes} equal episodes: {counts}")


def _table(kind: str, summaries: Mapping[str, Summary], before: Mapping[str, Summary] | None, at_end: bool) -> str:
    headings = [kind, "", *([] if before is None else ["before", "gain"]), "success [95 %]"]
    headings += [*(["at the end"] if at_end else []), "episodes", "steps"]
    return make_html_table(headings, [_row(name, item, before, at_end) for name, item in summaries.items()])


def _row(name: str, summary: Summary, before: Mapping[str, Summary] | None, at_end: bool) -> list[str]:
    cells = [escape(name), make_bar(summary.success)]
    if before is not None:
        old = before.get(name)
        cells += ["–", "–"] if old is None else [format_percent(old.success), format_points(summary, old)]
    cells.append(format_percent(summary.success))
    cells += [format_share(summary.success_at_end.rate)] if at_end else []
    return [*cells, str(summary.success.episodes), f"{summary.steps:.1f}"]


def _pairs(videos: Sequence[Path], report: Report, before: Report | None) -> str:
    if before is None:
        return ""
    if not videos:
        return '<p class="note">No episode was filmed before training.</p>'
    ends = [{result.index: result for result in each.episodes} for each in (before, report)]
    figures = [_video(video, _describe_pair(int(video.stem.removeprefix(_PAIR)), report, *ends)) for video in videos]
    outcomes = Counter((ends[0][index].success, ends[1][index].success) for index in ends[0].keys() & ends[1].keys())
    counts = ", ".join(f"{outcomes[key]} {name}" for key, name in _OUTCOMES.items())
    note = f"Left: before training. Right: after. Of all {outcomes.total()} episodes {counts}."
    return f'<div class="videos pairs">{"".join(figures)}</div><p class="note">{note} {_CHOICE}</p>'


def _describe_pair(
    index: int, report: Report, before: Mapping[int, EpisodeResult], after: Mapping[int, EpisodeResult]
) -> str:
    return f"{name_tasks(report)[after[index].task]}: {_describe_end(before[index])} → {_describe_end(after[index])}"


def _describe_end(result: EpisodeResult) -> str:
    return "success" if result.success else f"failure ({result.failure or NOT_TOLD})"


def _videos(videos: Sequence[Path]) -> str:
    captions = [_CAPTIONS.get(video.stem, video.stem.replace("_", " ")) for video in videos]
    figures = [
        _video(video, text, wide=not place) for place, (video, text) in enumerate(zip(videos, captions, strict=True))
    ]
    return f'<div class="videos">{"".join(figures)}</div>' if figures else ""


def _video(path: Path, caption: str, *, wide: bool = False) -> str:
    source = f'src="data:video/mp4;base64,{_encode(path)}"'
    still = path.with_suffix(".jpg")
    poster = f' poster="data:image/jpeg;base64,{_encode(still)}"' if still.is_file() else ""
    player = f'<video controls loop muted playsinline preload="metadata"{poster} {source}></video>'
    size = ' class="wide"' if wide else ""
    return f"<figure{size}><figcaption>{escape(caption)}</figcaption>{player}</figure>"


def _encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None
