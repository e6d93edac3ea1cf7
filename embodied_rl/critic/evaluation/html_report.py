"""`critic.html`: verdicts, measures, curves, a reliability diagram, and strips of frames."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.critic.assessment import FAMILY_MEASURES, MEANINGS, Assessment, find_success
from embodied_rl.critic.evaluation.calibration_fit import draw_reliability
from embodied_rl.critic.evaluation.critic_report import format_bounds, format_estimate, format_rest, make_verdicts
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.measures import Estimate
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.sim import Array
from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.reports.origin import format_value
from embodied_rl.reports.page import fold, make_card, make_definitions, make_html_table, make_section, write_html
from embodied_rl.reports.strips import FRAMES, STYLE, Strip, StripFrame, draw_strips, encode_picture

POINTS = 21
"""Of a mean curve, over the share of an episode."""
WORST, OTHERS = 6, 3
"""Number of strips with the largest errors; of successes, failures and wrong instructions each."""
_FAMILY_HEADINGS = ("VOC", "failures", "gap, object", "gap, task", "done: recall", "done: false")
"""Of `FAMILY_MEASURES`."""
_CARDS = ("voc", "gap_object", "gap_task", "wrong_object_share", "failures")


def write_page(
    path: Path,
    found: Assessment,
    report: dict[str, Any],
    episodes: Sequence[JudgedEpisode],
    judged: Sequence[JudgedSequence],
    configuration: str,
    calibration: str = "",
) -> None:
    """Write `critic.html`."""
    verdicts = make_verdicts(found)
    cards, gate = "", ""
    for use, verdict in verdicts.items():
        cards += make_card("passed" if verdict.passed else "not passed", f"the gate, for {use}")
        lines = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
        answer = "yes. Every criterion holds.</p>" if verdict.passed else f"no.</p><ul>{lines}</ul>"
        gate += f"<p>For {use}: {answer}"
    for name in _CARDS:
        if (each := found.measures[name]).value is not None:
            cards += make_card(format_estimate(name, each), f"{MEANINGS[name]} {format_bounds(name, each)}")
    families = [
        [escape(name), *(_format(key, own[key]) for key in FAMILY_MEASURES)] for name, own in found.families.items()
    ]
    origin = {"scorer": report["identity"], **report["rests_on"], "requests": report["reasons"], **report["code"]}
    definitions = make_definitions({name.replace("_", " "): escape(format_value(origin[name])) for name in origin})
    definitions += fold("Whole configuration", f"<pre>{escape(configuration)}</pre>")
    rests = report["rests_on"]
    sections = [
        STYLE,
        f'<div class="cards">{cards}</div>',
        make_section("May its scores become a reward?", gate),
        make_section("Measures", _tabulate_measures(found)),
        make_section("By family", make_html_table(["family", *_FAMILY_HEADINGS], families)),
        make_section("Curves", draw_charts(episodes, judged, found)),
        make_section("Calibration on outcomes", calibration),
        *(make_section(title, strips) for title, strips in make_strips(episodes, judged)),
        make_section("What this rests on", definitions),
    ]
    lead = f"{rests['episodes']} episodes, {rests['successes']} successes · {rests['frames']} frames · {report['kind']}"
    write_html(path, f"What the scorer is worth: {report['identity']}", lead, sections)


def _tabulate_measures(found: Assessment) -> str:
    rows: list[list[str]] = []
    for name, each in found.measures.items():
        if each.value is not None:
            count = ", ".join(filter(None, [f"{each.count:,}", format_rest(each)]))
            rows.append([escape(MEANINGS[name]), _format(name, each), count])
    unknown = ", ".join(MEANINGS[name] for name, each in found.measures.items() if each.value is None)
    note = f'<p class="note">Not measured here: {escape(unknown)}.</p>' if unknown else ""
    return make_html_table(["measure", "value [95 %]", "of"], rows) + note


def _format(name: str, each: Estimate) -> str:
    return f"{format_estimate(name, each)} {format_bounds(name, each)}"


def draw_charts(episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence], found: Assessment) -> str:
    """Draw a reliability diagram, and mean score and truth of successes, failures and wrong instructions over time."""
    success = [find_success(episodes[each.episode]) is not None for each in judged]
    charts: list[str] = []
    for title, relation, succeeds in (
        ("Successes, own instruction", "own", True),
        ("Failures, own instruction", "own", False),
        ("Successes, wrong object", "object", True),
        ("Successes, wrong task", "task", True),
    ):
        chosen = [
            each
            for each, good in zip(judged, success, strict=True)
            if each.goal.relation == relation and good == succeeds
        ]
        shares = np.linspace(0, 1, POINTS).tolist()
        scores = Series("said", shares, average_over_time([each.values for each in chosen]))
        truth = average_over_time([each.goal.progress for each in chosen if each.goal.true])
        curves = [scores, Series("truth", shares, truth)]
        title = f"{title} ({len(chosen)})"
        charts.append(draw_line_chart(title, curves, x_label="share of the episode", percent=True))
    diagrams = {name: bins for name, bins in (("progress", found.progress_bins), ("done", found.done_bins)) if bins}
    if diagrams:
        charts.append(draw_reliability("Reliability: mean truth where it said so much", diagrams))
    return join_charts(charts)


def average_over_time(sequences: Sequence[Array]) -> list[float | None]:
    """Average curves [t] of different lengths at `POINTS` even shares of their length; None without known values."""
    drawn: list[Array] = []
    for values in sequences:
        known = np.flatnonzero(np.isfinite(values))
        if len(known) > 1:
            share = known / (len(values) - 1)
            drawn.append(np.interp(np.linspace(0, 1, POINTS), share, values[known]))
    return [float(value) for value in np.mean(drawn, axis=0)] if drawn else [None] * POINTS


def make_strips(episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence]) -> list[tuple[str, str]]:
    """Return (heading, HTML) of the worst mistakes, then successes, failures and wrong instructions."""
    sections: list[tuple[str, str]] = []
    for title, chosen in choose_strips(episodes, judged):
        strips: list[Strip] = []
        for each in chosen:
            episode, goal = episodes[each.episode], each.goal
            camera = sorted(episode.frames)[0]
            frames: list[StripFrame] = []
            for place in choose_frames(each):
                values = float(each.values[place]), float(each.done[place])
                score, done = (None if np.isnan(value) else value for value in values)
                true = float(goal.progress[place]) if goal.true else None
                frames.append(StripFrame(encode_picture(episode.frames[camera][place]), place, score, true, done))
            given = "" if goal.relation == "own" else episode.goals[0].instruction
            end = "success" if episode.success else "failure"
            rest = f"episode {each.episode}, {episode.actor}, {end}, camera {camera}"
            strips.append(Strip(goal.instruction, given, rest, tuple(frames)))
        if strips:
            sections.append((title, draw_strips(strips)))
    return sections


def choose_strips(
    episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence]
) -> list[tuple[str, list[JudgedSequence]]]:
    """Choose sequences to show, each once, by heading."""
    ordered = sorted(judged, key=lambda each: -measure_mistake(each))
    worst = [each for each in ordered if measure_mistake(each) > 0][:WORST]
    left = [each for each in judged if not any(each is shown for shown in worst)]
    own = [each for each in left if each.goal.relation == "own"]
    success = [each for each in own if find_success(episodes[each.episode]) is not None][:OTHERS]
    failure = [each for each in own if find_success(episodes[each.episode]) is None][:OTHERS]
    others = [each for each in left if each.goal.relation != "own"]
    seen = {each.episode for each in success}
    near = sorted(others, key=lambda each: each.episode not in seen)[:OTHERS]
    return [
        ("The worst mistakes", worst),
        ("Successes, under their own instruction", success),
        ("Failures, under their own instruction", failure),
        ("The same pictures, under a wrong instruction", near),
    ]


def measure_mistake(judged: JudgedSequence) -> float:
    """Return the largest difference of score and truth; 0 if either is unknown in every frame."""
    if not judged.goal.true or not np.isfinite(judged.values).any():
        return 0.0
    return float(np.nanmax(np.abs(judged.values - judged.goal.progress)))


def choose_frames(judged: JudgedSequence) -> list[int]:
    """Return frames evenly over an episode, including the one with the largest error."""
    t = len(judged.values)
    chosen = {round(place) for place in np.linspace(0, t - 1, min(t, FRAMES)).tolist()}
    if measure_mistake(judged):
        chosen.add(int(np.nanargmax(np.abs(judged.values - judged.goal.progress))))
    return sorted(chosen)
