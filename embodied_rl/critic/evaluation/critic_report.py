"""`critic.json` and the console table: measures of a scorer, the evaluated episodes, and verdicts.

`critic.json`:

    format, version                          of the file
    identity, kind                           of the scorer, and the kind of its requests
    rests_on: {source, episodes, successes, actors, families, other_goals, seed, …}
    threshold, done_from                     threshold of the probability of "done", and its source
    measures: {name: {value, low, high, count, constant, left_out}}, families: {family: as measures}
    reliability: {progress: [{low, high, count, said, true}], done: as progress}
    reasons: {reason: requests}
    verdicts: {shaping: {passed, reasons}, terminal: as shaping}
    code: {commit, packages, …}
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from embodied_rl.critic.assessment import MEANINGS, Assessment
from embodied_rl.critic.gate import USES, GateVerdict, Use, check_gate
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.measures import Estimate
from embodied_rl.runs import provenance
from embodied_rl.system.atomic_write import write_text

FILE, PAGE = "critic.json", "critic.html"
FORMAT, VERSION = "embodied-rl critic evaluation", 1
"""Of `critic.json`."""


def make_report(
    found: Assessment, episodes: Sequence[JudgedEpisode], scorer: Mapping[str, Any], threshold: float
) -> dict[str, Any]:
    """Return the content of `critic.json`."""
    actors: dict[str, dict[str, int]] = {}
    for actor in sorted({episode.actor for episode in episodes}):
        own = [episode for episode in episodes if episode.actor == actor]
        actors[actor] = {"episodes": len(own), "successes": sum(each.success for each in own)}
    summary = {
        "episodes": len(episodes),
        "successes": sum(episode.success for episode in episodes),
        "frames": sum(len(episode.state) for episode in episodes),
        "actors": actors,
        "families": dict(sorted(Counter(episode.family for episode in episodes).items())),
        "cameras": sorted({camera for episode in episodes for camera in episode.frames}),
        "truth": "simulator" if all(episode.goals[0].true for episode in episodes) else "guessed from time",
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "identity": scorer["identity"],
        "kind": scorer["kind"],
        "rests_on": {**scorer["source"], **summary},
        "threshold": threshold,
        "done_from": found.done_from,
        "measures": {name: asdict(each) for name, each in found.measures.items()},
        "families": {name: {key: asdict(each) for key, each in own.items()} for name, own in found.families.items()},
        "reliability": {
            "progress": [asdict(each) for each in found.progress_bins],
            "done": [asdict(each) for each in found.done_bins],
        },
        "reasons": dict(found.reasons),
        "verdicts": {use: asdict(verdict) for use, verdict in make_verdicts(found).items()},
        "code": provenance.select_for_report(asdict(provenance.gather_provenance()[0])),
    }


def make_verdicts(found: Assessment) -> dict[Use, GateVerdict]:
    """Return the gate's verdict for each use."""
    return {use: check_gate(found.measures, use) for use in USES}


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write `critic.json`."""
    write_text(path, json.dumps(report, indent=1, allow_nan=False) + "\n")


def format_estimate(name: str, each: Estimate) -> str:
    """Format a measure's value, such as 0.83 or, for a share, 2.6 %."""
    if each.value is None:
        return "–"
    return f"{100 * each.value:.1f} %" if is_share(name) else f"{each.value:.2f}"


def format_bounds(name: str, each: Estimate) -> str:
    """Format a measure's interval, such as [0.79, 0.86]; an empty text without one."""
    if each.low is None or each.high is None:
        return ""
    return f"[{100 * each.low:.1f}, {100 * each.high:.1f}]" if is_share(name) else f"[{each.low:.2f}, {each.high:.2f}]"


def format_rest(each: Estimate) -> str:
    """Return notes on constant and omitted sequences of a measure."""
    notes = [f"{each.constant} constant: count as 0"] if each.constant else []
    return ", ".join([*notes, *([f"{each.left_out} left out"] if each.left_out else [])])


def is_share(name: str) -> bool:
    """Return whether a measure is a share of cases."""
    return (name.startswith("done_") and name not in ("done_average_precision", "done_calibration")) or name in (
        "valid", "wrong_object_share", "negative_share"
    )  # fmt: skip


def make_table(found: Assessment) -> Table:
    """Make the console table; measures without a value are omitted."""
    table = Table(box=None, pad_edge=False)
    for heading in ("measure", "value", "95 %", "of", ""):
        table.add_column(heading, no_wrap=bool(heading))
    for name, each in found.measures.items():
        if each.value is not None:
            row = (format_estimate(name, each), format_bounds(name, each), str(each.count), format_rest(each))
            table.add_row(MEANINGS[name], *row)
    return table


def describe_verdicts(verdicts: Mapping[Use, GateVerdict]) -> list[str]:
    """Return the verdict of each use with its reasons, as lines."""
    lines: list[str] = []
    for use, verdict in verdicts.items():
        lines.append(f"{use}: {'passed' if verdict.passed else 'not passed'}")
        lines += [f"  {reason}" for reason in verdict.reasons]
    return lines
