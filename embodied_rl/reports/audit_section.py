"""The summary of a robot's audit: who executed how many control steps, episodes, interventions of a human, restarts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.sim import Source
from embodied_rl.reports.page import make_html_table
from embodied_rl.runs.audit_file import TRAINING, read_audit

QUARTERS = 4
_HUMAN = Source.HUMAN.name.lower()
_EVALUATIONS, _BETWEEN = "evaluations", "between chunks"


@dataclass
class AuditSummary:
    """What a robot executed in a run, also what the run repeated after a restart.

    Attributes:
        steps: "training", "evaluations" or "between chunks" → source → control steps.
        ended, cut: training episodes that ended, and that began and did not.
        evaluated: episodes of evaluations that ended.
        interventions: of a human in each training episode, in the order in which they began.
        restarts: for each start of the run but the first, the iterations that it had learned from.
        damaged: lines that could not be read.
    """

    steps: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    ended: int = 0
    cut: int = 0
    evaluated: int = 0
    interventions: list[int] = field(default_factory=list[int])
    restarts: list[int] = field(default_factory=list[int])
    damaged: int = 0

    def describe(self) -> list[str]:
        """Return sentences for a reader."""
        counts = ((name, steps) for name, steps in self.steps.items() if steps.total())
        lines = [f"{steps.total()} control steps in {name}: {_format_sources(steps)}" for name, steps in counts]
        lines.append(f"{self.ended} episodes ended in training, {self.cut} did not; {self.evaluated} in evaluations")
        if total := sum(self.interventions):
            rates = [sum(part) / len(part) for part in split_in_quarters(self.interventions) if part]
            each = ", ".join(f"{rate:.2f}" for rate in rates)
            by = ", by quarter" if len(rates) > 1 else ""
            lines.append(f"{total} interventions of a human in training; an episode{by}: {each}")
        if self.restarts:
            lines.append(f"The run was restarted after iteration {', '.join(map(str, self.restarts))}")
        if self.damaged:
            lines.append(f"{self.damaged} damaged lines of the audit were not counted")
        return lines


def summarise_audit(run: Path) -> AuditSummary | None:
    """Return the summary of the audit of a run, by its folder; None for a run without one."""
    files, damaged = read_audit(run)
    if not any(files):
        return None
    found, begun = AuditSummary(damaged=damaged), list[tuple[str, int]]()
    starts = list[int]()
    for events in files:
        chunks = [event for event in events if event["event"] == "chunk"]
        starts += [event["iteration"] for event in events if event["event"] == "start"]
        for name, event in ((_name_place(event), event) for event in events if event["event"] != "start"):
            found.steps.setdefault(name, Counter()).update(_count_steps(event["by"]))
        found.evaluated += sum(event["purpose"] != TRAINING and event["end"] is not None for event in chunks)
        for episode in split_episodes([event for event in chunks if event["purpose"] == TRAINING]):
            ended = episode[-1]["end"] in ("terminated", "truncated")
            found.ended, found.cut = found.ended + ended, found.cut + (not ended)
            begun.append((episode[0]["time"], count_interventions(episode)))
    found.interventions = [count for _, count in sorted(begun, key=lambda pair: pair[0])]
    found.restarts = starts[1:]
    return found


def split_episodes(chunks: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the training chunks of one collector by episodes; a restarted episode is another one."""
    episodes = list[list[dict[str, Any]]]()
    for chunk in chunks:
        last = episodes[-1][-1] if episodes else None
        goes_on = last is not None and last["end"] is None and chunk["decision"] > last["decision"]
        if goes_on and last is not None and chunk["episode"] == last["episode"]:
            episodes[-1].append(chunk)
        else:
            episodes.append([chunk])
    return episodes


def count_interventions(episode: Iterable[dict[str, Any]]) -> int:
    """Return how many sequences of control steps of a human the chunks of an episode have."""
    sources = [source for chunk in episode for source, steps in chunk["by"] if steps]
    return sum(source == _HUMAN for source, _ in groupby(sources))


def split_in_quarters(values: Sequence[int]) -> list[Sequence[int]]:
    """Return the quarters of the values, in their order; those of fewer values than quarters are one part."""
    if len(values) < QUARTERS:
        return [values]
    edges = [len(values) * part // QUARTERS for part in range(QUARTERS + 1)]
    return [values[low:high] for low, high in pairwise(edges)]


def make_audit_section(summary: AuditSummary | None) -> str:
    """Return a table of control steps by source, and the sentences of the summary, as HTML; empty for None."""
    if summary is None:
        return ""
    sources = [source.name.lower() for source in Source]
    rows = [[name, *(str(steps[source]) for source in sources)] for name, steps in summary.steps.items()]
    table = make_html_table(["control steps", *sources], rows)
    return table + "".join(f"<p>{escape(line)}.</p>" for line in summary.describe())


def _name_place(event: dict[str, Any]) -> str:
    if event["event"] == "between":
        return _BETWEEN
    return TRAINING if event["purpose"] == TRAINING else _EVALUATIONS


def _count_steps(by: Iterable[tuple[str, int]]) -> Counter[str]:
    counts = Counter[str]()
    for source, steps in by:
        counts[source] += steps
    return counts


def _format_sources(steps: Counter[str]) -> str:
    return ", ".join(f"{source} {count} ({count / steps.total():.0%})" for source, count in steps.most_common())
