"""Report of a demonstration filter: a table for the console and `filter.json`.

`filter.json`:

    format, version                of the file
    identity                       of the scorer
    applied                        false with reward.mode=audit
    rules: {rule: threshold}, every
    totals: {episodes, left_out, not_judged, missing, rows, rows_left_out, reasons: {rule: episodes}}
    tasks: {task: as totals}
    episodes: [{name, task, faults, figures, rows, rows_left_out}]       episodes with dropped rows or without scores
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from embodied_rl.critic.evaluation.demonstration_filter import DemonstrationFilter, JudgedDemonstration
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import make_printable

FILE = "filter.json"
FORMAT, VERSION = "embodied-rl demonstration filter", 1
SHOWN = 20
"""Maximum number of tasks in the console table."""


@dataclass
class _Count:
    """Counts of one task, or of all.

    Attributes:
        episodes, left_out: all, and those that were dropped entirely.
        not_judged: with fewer than three scores; they are kept.
        missing: missing scores.
        rows, rows_left_out: control steps, including those of dropped episodes.
        reasons: rule → episodes that violate it; one episode may violate several.
    """

    episodes: int = 0
    left_out: int = 0
    not_judged: int = 0
    missing: int = 0
    rows: int = 0
    rows_left_out: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    def add(self, scored: JudgedDemonstration, rows: int, kept: int) -> None:
        """Count an episode."""
        self.episodes += 1
        self.left_out += bool(scored.verdict.faults)
        self.not_judged += not scored.verdict.figures
        self.missing += scored.missing
        self.rows += rows
        self.rows_left_out += rows - kept
        self.reasons.update(scored.verdict.faults)
        self.reasons["rows"] += bool(not scored.verdict.faults and kept < rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "episodes": self.episodes, "left_out": self.left_out, "not_judged": self.not_judged,
            "missing": self.missing, "rows": self.rows, "rows_left_out": self.rows_left_out,
            "reasons": {name: n for name, n in sorted(self.reasons.items()) if n},
        }  # fmt: skip


class FilterReport:
    """Counts episodes and rows that a filter drops.

    Args:
        chosen: the filter.
    """

    def __init__(self, chosen: DemonstrationFilter) -> None:
        self._filter, self._all = chosen, _Count()
        self._tasks: dict[str, _Count] = {}
        self._episodes: list[dict[str, Any]] = []

    @property
    def kept_rows(self) -> int:
        """Return the number of control steps that the rules keep."""
        return self._all.rows - self._all.rows_left_out

    @property
    def left_out(self) -> int:
        """Return the number of episodes that the rules drop entirely."""
        return self._all.left_out

    def add(self, scored: JudgedDemonstration, rows: int, kept: int) -> None:
        """Add an episode with its numbers of control steps and of kept ones."""
        for count in (self._all, self._tasks.setdefault(scored.episode.task, _Count())):
            count.add(scored, rows, kept)
        if kept < rows or not scored.verdict.figures:
            said = {"faults": list(scored.verdict.faults), "figures": dict(scored.verdict.figures)}
            named = {"name": scored.episode.name, "task": scored.episode.task}
            self._episodes.append({**named, **said, "rows": rows, "rows_left_out": rows - kept})

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `filter.json`."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "identity": self._filter.identity,
            "applied": self._filter.applies,
            "rules": self._filter.rules.rules,
            "every": self._filter.rules.every,
            "totals": self._all.to_dict(),
            "tasks": {task: count.to_dict() for task, count in sorted(self._tasks.items())},
            "episodes": self._episodes,
        }

    def summarize(self) -> str:
        """Return a summary in one line."""
        total, what = self._all, "left out" if self._filter.applies else "would be left out (reward.mode=audit)"
        return (
            f"Filter by {self._filter.identity}: {total.left_out} of {total.episodes} episodes and "
            f"{total.rows_left_out} of {total.rows} rows {what}; {total.not_judged} episodes not judged, and kept; "
            f"{total.missing} scores missing"
        )

    def make_table(self) -> Table:
        """Make the console table: one line for each of the `SHOWN` tasks with the most dropped rows."""
        table = Table(box=None, pad_edge=False)
        for heading in ("task", "episodes", "left out", "rows", "left out", "because of"):
            table.add_column(heading)
        most = sorted(self._tasks.items(), key=lambda each: (-each[1].rows_left_out, each[0]))
        for task, count in most[:SHOWN]:
            why = ", ".join(f"{name} {n}" for name, n in sorted(count.reasons.items()) if n)
            figures = (count.episodes, count.left_out, count.rows, count.rows_left_out)
            table.add_row(Text(make_printable(task)), *map(str, figures), why)
        if len(most) > SHOWN:
            table.add_row(f"and {len(most) - SHOWN} tasks more: {FILE}")
        return table

    def finish(self, folder: Path, key: str) -> None:
        """Print the report and write `filter.json` into the folder of configuration key `key`."""
        write_text(folder / FILE, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", key)
        console = Console(highlight=False)
        console.print(self.summarize(), markup=False, soft_wrap=True)
        console.print(self.make_table())
