"""Filter demonstrations of an operator's recording, a dataset, or a running collection."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embodied_rl.critic.episode_collection import CHUNK
from embodied_rl.critic.evaluation.demonstration_filter import (
    DemonstrationFilter,
    DemonstrationFrames,
    JudgedDemonstration,
    choose_frames,
)
from embodied_rl.critic.evaluation.filter_report import FILE, FilterReport
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec
from embodied_rl.training.algorithms.imitation.demonstrations import Demonstrations

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset


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
    check_not_empty(chosen, report, folder)


def filter_recording(
    chosen: DemonstrationFilter,
    demonstrations: Demonstrations,
    episodes: Sequence[Episode],
    spec: SimulatorSpec,
    folder: Path,
) -> Demonstrations:
    """Return the rows of an operator's recording that are kept; print and write the report.

    Args:
        chosen: the filter.
        demonstrations: M rows.
        episodes: the recorded ones.
        spec: of the simulator.
        folder: of the run.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    chunk, report = demonstrations.actions.shape[1], FilterReport(chosen)
    tasks = {episode.index: spec.tasks[episode.task].name for episode in episodes}
    rows = {int(index): np.flatnonzero(demonstrations.episode == index) for index in np.unique(demonstrations.episode)}
    shown = (
        convert_rows(demonstrations, own, tasks[index], str(index), chosen.rules.every) for index, own in rows.items()
    )
    kept = np.ones(len(demonstrations), bool)
    for scored, own in zip(chosen.score(shown, chunk, whole=False), rows.values(), strict=True):
        kept[own] = _note(chosen, report, scored, demonstrations.step[own], chunk)
    report.finish(folder, "run.root")
    check_not_empty(chosen, report, folder)
    return demonstrations.select(np.flatnonzero(kept)) if chosen.applies else demonstrations


def filter_dataset(
    chosen: DemonstrationFilter, dataset: "LeRobotDataset", names: dict[str, str], chunk: int, folder: Path
) -> Array:
    """Return which frames of a dataset are kept, bool [frames]; print and write the report into a folder.

    Args:
        chosen: the filter.
        dataset: frames with pictures and states.
        names: the simulator's camera → the dataset's, where they differ.
        chunk: control steps of a policy's chunk.
        folder: of the run.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    report, kept = FilterReport(chosen), np.ones(len(dataset), bool)
    numbers = range(len(dataset.episodes))
    shown = (convert_dataset_episode(dataset, number, names, chosen.rules.every) for number in numbers)
    for number, scored in zip(numbers, chosen.score(shown, chunk, whole=False), strict=True):
        start, stop = int(dataset.starts[number]), int(dataset.stops[number])
        kept[start:stop] = _note(chosen, report, scored, np.arange(stop - start), chunk)
    report.finish(folder, "run.root")
    check_not_empty(chosen, report, folder)
    return kept if chosen.applies else np.ones(len(dataset), bool)


def check_not_empty(chosen: DemonstrationFilter, report: FilterReport, folder: Path) -> None:
    """Check that an applied filter keeps something.

    Raises:
        UserError: it drops everything.
    """
    if chosen.applies and not report.kept_rows:
        rules = " ".join(f"filter.{name}={value:g}" for name, value in chosen.rules.rules.items())
        raise UserError(
            f"{rules}: every demonstration was dropped; see {folder / FILE}. Loosen the rules.",
            code="filter-kept-nothing",
        )


def convert_record(record: Record, spec: SimulatorSpec, every: int) -> DemonstrationFrames:
    """Return the frames of a collected episode for scoring."""
    places = choose_frames(np.arange(len(record.observations)), every)
    seen = [record.observations[place] for place in places.tolist()]
    frames = {name: np.concatenate([each.images[name] for each in seen]) for name in seen[0].images}
    state = np.concatenate([each.state for each in seen])
    task, name = spec.tasks[record.episode.task].name, str(record.episode.index)
    return DemonstrationFrames(name, task, record.instruction, places, frames, state)


def convert_rows(demonstrations: Demonstrations, rows: Array, task: str, name: str, every: int) -> DemonstrationFrames:
    """Return the frames of one recorded episode, rows int64 [m], for scoring."""
    places = rows[choose_frames(demonstrations.step[rows], every)]
    seen = demonstrations.observation.select(places)
    return DemonstrationFrames(name, task, seen.instruction[0], demonstrations.step[places], seen.images, seen.state)


def convert_dataset_episode(
    dataset: "LeRobotDataset", number: int, names: dict[str, str], every: int
) -> DemonstrationFrames:
    """Return the frames of a dataset's episode for scoring."""
    start, stop = int(dataset.starts[number]), int(dataset.stops[number])
    steps = choose_frames(np.arange(stop - start), every)
    own = {name: name for name in dataset.cameras} | names
    frames = {camera: dataset.images(name, start + steps) for camera, name in own.items()}
    state = dataset.column("observation.state", start + steps).reshape(len(steps), -1).astype(np.float32)
    text = dataset.tasks[int(dataset.column("task_index", [start]).ravel()[0])]
    return DemonstrationFrames(str(number), text, text, steps, frames, state)


def _note(
    chosen: DemonstrationFilter, report: FilterReport, scored: JudgedDemonstration, steps: Array, chunk: int
) -> Array:
    """Count an episode's rows, and return which are kept."""
    kept = chosen.find_kept_rows(scored, steps, chunk)
    report.add(scored, len(kept), int(kept.sum()))
    return kept
