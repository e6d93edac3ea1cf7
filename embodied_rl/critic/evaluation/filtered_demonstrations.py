"""Filter demonstrations of an operator's recording, a dataset, or a running collection, with a report.

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
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from embodied_rl.critic.episode_collection import CHUNK
from embodied_rl.critic.evaluation.demonstration_filter import (
    DemonstrationFilter,
    DemonstrationFrames,
    JudgedDemonstration,
    choose_frames,
)
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import make_printable
from embodied_rl.training.algorithms.imitation.demonstrations import Demonstrations

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

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
        return vars(self) | {"reasons": {name: n for name, n in sorted(self.reasons.items()) if n}}


class FilterReport:
    """Counts episodes and rows that a filter drops."""

    def __init__(self, chosen: DemonstrationFilter) -> None:
        self._filter, self._all = chosen, _Count()
        self._tasks: dict[str, _Count] = {}
        self._episodes: list[dict[str, Any]] = []

    def add(self, scored: JudgedDemonstration, rows: int, kept: int) -> None:
        """Add an episode with its numbers of control steps and of kept ones."""
        for count in (self._all, self._tasks.setdefault(scored.episode.task, _Count())):
            count.add(scored, rows, kept)
        if kept < rows or not scored.verdict.figures:
            self._episodes.append(
                {
                    "name": scored.episode.name,
                    "task": scored.episode.task,
                    "faults": list(scored.verdict.faults),
                    "figures": dict(scored.verdict.figures),
                    "rows": rows,
                    "rows_left_out": rows - kept,
                }
            )

    def finish(self, folder: Path, key: str) -> None:
        """Print the report and write `filter.json`; raise `UserError` if an applied filter drops everything."""
        chosen, total = self._filter, self._all
        content = {
            "format": FORMAT,
            "version": VERSION,
            "identity": chosen.identity,
            "applied": chosen.applies,
            "rules": chosen.rules.rules,
            "every": chosen.rules.every,
            "totals": total.to_dict(),
            "tasks": {task: each.to_dict() for task, each in sorted(self._tasks.items())},
            "episodes": self._episodes,
        }
        write_text(folder / FILE, json.dumps(content, indent=1, allow_nan=False) + "\n", key)
        what = "left out" if chosen.applies else "would be left out (reward.mode=audit)"
        table = Table(box=None, pad_edge=False)
        for heading in ("task", "episodes", "left out", "rows", "left out", "because of"):
            table.add_column(heading)
        most = sorted(self._tasks.items(), key=lambda each: (-each[1].rows_left_out, each[0]))
        for task, count in most[:SHOWN]:
            why = ", ".join(f"{name} {n}" for name, n in count.to_dict()["reasons"].items())
            figures = (count.episodes, count.left_out, count.rows, count.rows_left_out)
            table.add_row(Text(make_printable(task)), *map(str, figures), why)
        if len(most) > SHOWN:
            table.add_row(f"and {len(most) - SHOWN} tasks more: {FILE}")
        console = Console(highlight=False)
        console.print(
            f"Filter by {chosen.identity}: {total.left_out} of {total.episodes} episodes and "
            f"{total.rows_left_out} of {total.rows} rows {what}; {total.not_judged} episodes not judged, and kept; "
            f"{total.missing} scores missing",
            markup=False,
            soft_wrap=True,
        )
        console.print(table)
        if chosen.applies and total.rows == total.rows_left_out:
            rules = " ".join(f"filter.{name}={value:g}" for name, value in chosen.rules.rules.items())
            raise UserError(
                f"{rules}: every demonstration was dropped; see {folder / FILE}. Loosen the rules.",
                code="filter-kept-nothing",
            )


def filter_records(
    chosen: DemonstrationFilter, records: Iterable[Record], spec: SimulatorSpec, folder: Path
) -> Iterator[Record]:
    """Yield the kept episodes in order; at the end print and write the report.

    A fall of progress within `CHUNK` control steps drops the whole episode, because a file holds whole episodes.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    report, waiting = FilterReport(chosen), deque[Record]()

    def show() -> Iterator[DemonstrationFrames]:
        for record in records:
            waiting.append(record)
            yield convert_record(record, spec, chosen.rules.every)

    for scored in chosen.score(show(), CHUNK, whole=True):
        record, faults = waiting.popleft(), scored.verdict.faults
        report.add(scored, len(record.actions), 0 if faults else len(record.actions))
        if not (faults and chosen.applies):
            yield record
    report.finish(folder, "out")


def filter_recording(
    chosen: DemonstrationFilter,
    demonstrations: Demonstrations,
    episodes: Sequence[Episode],
    spec: SimulatorSpec,
    folder: Path,
) -> Demonstrations:
    """Return the rows of an operator's recording that are kept; print and write the report.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    chunk, report = demonstrations.actions.shape[1], FilterReport(chosen)
    tasks = {episode.index: spec.tasks[episode.task].name for episode in episodes}
    rows = {int(index): np.flatnonzero(demonstrations.episode == index) for index in np.unique(demonstrations.episode)}

    def show() -> Iterator[DemonstrationFrames]:
        for index, own in rows.items():
            places = own[choose_frames(demonstrations.step[own], chosen.rules.every)]
            seen, steps = demonstrations.observation.select(places), demonstrations.step[places]
            text = seen.instruction[0]
            yield DemonstrationFrames(str(index), tasks[index], text, steps, seen.images, seen.state)

    kept = np.ones(len(demonstrations), bool)
    for scored, own in zip(chosen.score(show(), chunk, whole=False), rows.values(), strict=True):
        kept[own] = chosen.find_kept_rows(scored, demonstrations.step[own], chunk)
        report.add(scored, len(own), int(kept[own].sum()))
    report.finish(folder, "run.root")
    return demonstrations.select(np.flatnonzero(kept)) if chosen.applies else demonstrations


def filter_dataset(
    chosen: DemonstrationFilter, dataset: "LeRobotDataset", names: dict[str, str], chunk: int, folder: Path
) -> Array:
    """Return which frames of a dataset are kept, bool [frames]; print and write the report into a folder.

    `names` maps the simulator's cameras to the dataset's, where they differ; `chunk` counts control steps of a policy.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    report, kept = FilterReport(chosen), np.ones(len(dataset), bool)
    numbers = range(len(dataset.episodes))
    cameras = {name: name for name in dataset.cameras} | names

    def show() -> Iterator[DemonstrationFrames]:
        for number in numbers:
            start, stop = int(dataset.starts[number]), int(dataset.stops[number])
            steps = choose_frames(np.arange(stop - start), chosen.rules.every)
            frames = {camera: dataset.images(name, start + steps) for camera, name in cameras.items()}
            state = dataset.column("observation.state", start + steps).reshape(len(steps), -1).astype(np.float32)
            text = dataset.read_instructions([start])[0]
            yield DemonstrationFrames(str(number), text, text, steps, frames, state)

    for number, scored in zip(numbers, chosen.score(show(), chunk, whole=False), strict=True):
        start, stop = int(dataset.starts[number]), int(dataset.stops[number])
        kept[start:stop] = chosen.find_kept_rows(scored, np.arange(stop - start), chunk)
        report.add(scored, stop - start, int(kept[start:stop].sum()))
    report.finish(folder, "run.root")
    return kept if chosen.applies else np.ones(len(dataset), bool)


def convert_record(record: Record, spec: SimulatorSpec, every: int) -> DemonstrationFrames:
    """Return the frames of a collected episode for scoring."""
    places = choose_frames(np.arange(len(record.observations)), every)
    seen = [record.observations[place] for place in places.tolist()]
    frames = {name: np.concatenate([each.images[name] for each in seen]) for name in seen[0].images}
    state = np.concatenate([each.state for each in seen])
    task, name = spec.tasks[record.episode.task].name, str(record.episode.index)
    return DemonstrationFrames(name, task, record.instruction, places, frames, state)
