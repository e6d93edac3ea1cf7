"""Filters demonstrations where they come from: an operator's recording, a dataset, or episodes being collected."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embodied_rl.critic.examination.demonstration_filter import DemonstrationFilter, ShownEpisode, Sifted, choose_frames
from embodied_rl.critic.examination.filter_account import FILE, FilterAccount
from embodied_rl.critic.gathering import CHUNK
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec
from embodied_rl.training.algorithms.imitation.demonstrations import Demonstrations

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset


def filter_records(
    chosen: DemonstrationFilter, records: Iterable[Record], spec: SimulatorSpec, folder: Path
) -> Iterator[Record]:
    """Yield the episodes that are kept, in their order; at the end print and write the account into a folder.

    A fall of progress within `CHUNK` control steps leaves out the whole episode: a file holds whole episodes.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    account, waiting = FilterAccount(chosen), deque[Record]()

    def show() -> Iterator[ShownEpisode]:
        for record in records:
            waiting.append(record)
            yield show_record(record, spec, chosen.rules.every)

    for sifted in chosen.sift(show(), CHUNK, whole=True):
        record, faults = waiting.popleft(), sifted.verdict.faults
        account.add(sifted, len(record.actions), 0 if faults else len(record.actions))
        if not (faults and chosen.applies):
            yield record
    account.finish(folder, "out")
    check_rest(chosen, account, folder)


def filter_recording(
    chosen: DemonstrationFilter,
    demonstrations: Demonstrations,
    episodes: Sequence[Episode],
    spec: SimulatorSpec,
    folder: Path,
) -> Demonstrations:
    """Return the rows of an operator's recording that are kept; print and write the account into a folder.

    Args:
        chosen: the filter.
        demonstrations: M rows.
        episodes: whose recording it is.
        spec: of the simulator.
        folder: of the run.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    chunk, account = demonstrations.actions.shape[1], FilterAccount(chosen)
    tasks = {episode.index: spec.tasks[episode.task].name for episode in episodes}
    rows = {int(index): np.flatnonzero(demonstrations.episode == index) for index in np.unique(demonstrations.episode)}
    shown = (
        show_rows(demonstrations, own, tasks[index], str(index), chosen.rules.every) for index, own in rows.items()
    )
    kept = np.ones(len(demonstrations), bool)
    for sifted, own in zip(chosen.sift(shown, chunk, whole=False), rows.values(), strict=True):
        kept[own] = _note(chosen, account, sifted, demonstrations.step[own], chunk)
    account.finish(folder, "run.root")
    check_rest(chosen, account, folder)
    return demonstrations.select(np.flatnonzero(kept)) if chosen.applies else demonstrations


def filter_dataset(
    chosen: DemonstrationFilter, dataset: "LeRobotDataset", names: dict[str, str], chunk: int, folder: Path
) -> Array:
    """Return which frames of a dataset are kept, bool [frames]; print and write the account into a folder.

    Args:
        chosen: the filter.
        dataset: frames with pictures and states.
        names: the simulator's camera → the dataset's, where they differ.
        chunk: control steps of a policy's chunk.
        folder: of the run.

    Raises:
        UserError: none is kept; or the scorer gave no valid score.
    """
    account, kept = FilterAccount(chosen), np.ones(len(dataset), bool)
    numbers = range(len(dataset.episodes))
    shown = (show_recorded(dataset, number, names, chosen.rules.every) for number in numbers)
    for number, sifted in zip(numbers, chosen.sift(shown, chunk, whole=False), strict=True):
        start, stop = int(dataset.starts[number]), int(dataset.stops[number])
        kept[start:stop] = _note(chosen, account, sifted, np.arange(stop - start), chunk)
    account.finish(folder, "run.root")
    check_rest(chosen, account, folder)
    return kept if chosen.applies else np.ones(len(dataset), bool)


def check_rest(chosen: DemonstrationFilter, account: FilterAccount, folder: Path) -> None:
    """Check that a filter which is applied leaves something.

    Raises:
        UserError: it leaves out everything.
    """
    if chosen.applies and not account.kept_rows:
        rules = " ".join(f"filter.{name}={value:g}" for name, value in chosen.rules.rules.items())
        raise UserError(f"{rules}: every demonstration was left out; {folder / FILE} says why. Loosen the rules.")


def show_record(record: Record, spec: SimulatorSpec, every: int) -> ShownEpisode:
    """Return a collected episode as a scorer sees it."""
    places = choose_frames(np.arange(len(record.observations)), every)
    seen = [record.observations[place] for place in places.tolist()]
    frames = {name: np.concatenate([each.images[name] for each in seen]) for name in seen[0].images}
    state = np.concatenate([each.state for each in seen])
    task, name = spec.tasks[record.episode.task].name, str(record.episode.index)
    return ShownEpisode(name, task, record.instruction, places, frames, state)


def show_rows(demonstrations: Demonstrations, rows: Array, task: str, name: str, every: int) -> ShownEpisode:
    """Return the rows of one recorded episode, int64 [m], as a scorer sees them."""
    places = rows[choose_frames(demonstrations.step[rows], every)]
    seen = demonstrations.observation.select(places)
    return ShownEpisode(name, task, seen.instruction[0], demonstrations.step[places], seen.images, seen.state)


def show_recorded(dataset: "LeRobotDataset", number: int, names: dict[str, str], every: int) -> ShownEpisode:
    """Return a dataset's episode as a scorer sees it."""
    start, stop = int(dataset.starts[number]), int(dataset.stops[number])
    steps = choose_frames(np.arange(stop - start), every)
    own = {name: name for name in dataset.cameras} | names
    frames = {camera: dataset.images(name, start + steps) for camera, name in own.items()}
    state = dataset.column("observation.state", start + steps).reshape(len(steps), -1).astype(np.float32)
    text = dataset.tasks[int(dataset.column("task_index", [start]).ravel()[0])]
    return ShownEpisode(str(number), text, text, steps, frames, state)


def _note(chosen: DemonstrationFilter, account: FilterAccount, sifted: Sifted, steps: Array, chunk: int) -> Array:
    """Count an episode's rows, and return which are kept."""
    kept = chosen.find_kept_rows(sifted, steps, chunk)
    account.add(sifted, len(kept), int(kept.sum()))
    return kept
