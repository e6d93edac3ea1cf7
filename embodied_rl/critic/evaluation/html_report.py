"""`critic.html`: verdicts, measures, curves, a reliability diagram, and strips of frames."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.critic.assessment import FAMILY_MEASURES, MEANINGS, Assessment, find_success
from embodied_rl.critic.evaluation.critic_report import format_bounds, format_estimate, format_rest, make_verdicts
from embodied_rl.critic.evaluation.frame_strips import STYLE, make_strips
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.measures import Estimate, ReliabilityBin
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.sim import Array
from embodied_rl.reports.chart import Series, draw_line_chart
from embodied_rl.reports.origin import format_value
from embodied_rl.reports.page import fold, make_definitions, make_html_table, make_section, write_html

POINTS = 21
"""Of a mean curve, over the share of an episode."""
_CARDS = ("voc", "gap_object", "gap_task", "wrong_object_share", "failures")
_SHORT = {
    "voc": "VOC", "failures": "failures", "gap_object": "gap, object", "gap_task": "gap, task",
    "done_recall": "done: recall", "done_false": "done: false",
}  # fmt: skip


def write_page(
    path: Path,
    found: Assessment,
    report: dict[str, Any],
    episodes: Sequence[JudgedEpisode],
    judged: Sequence[JudgedSequence],
    configuration: str,
    calibration: str = "",
) -> None:
    """Write `critic.html`.

    Args:
        path: the file.
        found: the measures.
        report: the content of `critic.json`.
        episodes, judged: evaluated episodes and their scores.
        configuration: the whole configuration as YAML.
        calibration: reliability diagrams before and after, if one was fitted.
    """
    rests = report["rests_on"]
    lead = f"{rests['episodes']} episodes, {rests['successes']} successes · {rests['frames']} frames · {report['kind']}"
    sections = [
        STYLE,
        f'<div class="cards">{"".join(_cards(found))}</div>',
        make_section("May its scores become a reward?", _describe_gate(found)),
        make_section("Measures", _measures(found)),
        make_section("By family", _families(found)),
        make_section("Curves", draw_charts(episodes, judged, found)),
        make_section("Calibration on outcomes", calibration),
        *(make_section(title, strips) for title, strips in make_strips(episodes, judged)),
        make_section("What this rests on", _describe_origin(report, configuration)),
    ]
    write_html(path, f"What the scorer is worth: {report['identity']}", lead, sections)


def draw_charts(episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence], found: Assessment) -> str:
    """Draw mean score and truth over the episode for successes, failures and wrong instructions, and a reliability
    diagram.
    """

    def ended_well(each: JudgedSequence) -> bool:
        return find_success(episodes[each.episode]) is not None

    own = [each for each in judged if each.goal.relation == "own"]
    groups = {
        "Successes, own instruction": [each for each in own if ended_well(each)],
        "Failures, own instruction": [each for each in own if not ended_well(each)],
        "Successes, wrong object": _select(judged, "object", ended_well),
        "Successes, wrong task": _select(judged, "task", ended_well),
    }
    charts = [_draw_means(title, sequences) for title, sequences in groups.items()]
    diagrams = {"progress": found.progress_bins, "done": found.done_bins}
    drawn = "".join([*charts, _draw_reliability({name: bins for name, bins in diagrams.items() if bins})])
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def average_over_time(sequences: Sequence[Array]) -> list[float | None]:
    """Average curves [t] of different lengths at `POINTS` even shares of their length; None without known values."""
    drawn: list[Array] = []
    for values in sequences:
        known = np.flatnonzero(np.isfinite(values))
        if len(known) > 1:
            share = known / (len(values) - 1)
            drawn.append(np.interp(np.linspace(0, 1, POINTS), share, values[known]))
    return [float(value) for value in np.mean(drawn, axis=0)] if drawn else [None] * POINTS


def _select(
    judged: Sequence[JudgedSequence], relation: str, keep: Callable[[JudgedSequence], bool]
) -> list[JudgedSequence]:
    return [each for each in judged if each.goal.relation == relation and keep(each)]


def _draw_means(title: str, sequences: Sequence[JudgedSequence]) -> str:
    shares = np.linspace(0, 1, POINTS).tolist()
    said = Series("said", shares, average_over_time([each.values for each in sequences]))
    true = [each.goal.progress for each in sequences if each.goal.true]
    truth = Series("truth", shares, average_over_time(true))
    title = f"{title} ({len(sequences)})"
    return draw_line_chart(title, [said, truth], x_label="share of the episode", percent=True)


def _draw_reliability(diagrams: dict[str, Sequence[ReliabilityBin]]) -> str:
    if not diagrams:
        return ""
    curves = [Series("as it should be", [0, 1], [0, 1])]
    for name, bins in diagrams.items():
        known = [each for each in bins if each.said is not None]
        curves.append(Series(name, [each.said or 0.0 for each in known], [each.true for each in known]))
    return draw_line_chart("Reliability: mean truth where it said so much", curves, x_label="said", percent=True)


def _cards(found: Assessment) -> list[str]:
    cards = [
        _card("passed" if verdict.passed else "not passed", f"the gate, for {use}")
        for use, verdict in make_verdicts(found).items()
    ]
    return cards + [
        _card(format_estimate(name, each), f"{MEANINGS[name]} {format_bounds(name, each)}")
        for name in _CARDS
        if (each := found.measures[name]).value is not None
    ]


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _describe_gate(found: Assessment) -> str:
    parts: list[str] = []
    for use, verdict in make_verdicts(found).items():
        if verdict.passed:
            parts.append(f"<p>For {use}: yes. Every criterion holds.</p>")
        else:
            lines = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
            parts.append(f"<p>For {use}: no.</p><ul>{lines}</ul>")
    return "".join(parts)


def _measures(found: Assessment) -> str:
    known = {name: each for name, each in found.measures.items() if each.value is not None}
    rows = [
        [escape(MEANINGS[name]), _format(name, each), ", ".join(filter(None, [f"{each.count:,}", format_rest(each)]))]
        for name, each in known.items()
    ]
    unknown = ", ".join(MEANINGS[name] for name in found.measures if name not in known)
    note = f'<p class="note">Not measured here: {escape(unknown)}.</p>' if unknown else ""
    return make_html_table(["measure", "value [95 %]", "of"], rows) + note


def _format(name: str, each: Estimate) -> str:
    return f"{format_estimate(name, each)} {format_bounds(name, each)}"


def _families(found: Assessment) -> str:
    rows = [
        [escape(name), *(_format(key, own[key]) for key in FAMILY_MEASURES)] for name, own in found.families.items()
    ]
    return make_html_table(["family", *(_SHORT[key] for key in FAMILY_MEASURES)], rows)


def _describe_origin(report: dict[str, Any], configuration: str) -> str:
    entries = {"scorer": report["identity"], **report["rests_on"], "requests": report["reasons"], **report["code"]}
    lines = {name.replace("_", " "): escape(format_value(value)) for name, value in entries.items()}
    return make_definitions(lines) + fold("Whole configuration", f"<pre>{escape(configuration)}</pre>")
