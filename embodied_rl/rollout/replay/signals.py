"""Signals of recorded episodes, of a replay storage or of a LeRobotDataset: what `embodied-rl view` shows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.datasets.lerobot.collected import PROPOSED, VALID
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import ACTION, BOOKKEEPING, REWARD, SOURCE, STATE, SUCCESS
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, Source
from embodied_rl.rollout.replay.replay_files import FORMAT, check_not_written, is_dataset
from embodied_rl.rollout.replay.storage import ReplayStorage, StoredEpisode
from embodied_rl.runs.folder import RunFolder
from embodied_rl.system.untrusted_files import check_links

AT_ONCE = 64
"""Pictures of a dataset that are decoded at once."""
PATHS = {
    STATE: ("state",), ACTION: ("action", "executed"), PROPOSED: ("action", "chosen"),
    REWARD: ("reward",), SUCCESS: ("success",),
}  # fmt: skip
"""Features of a dataset → the paths of their signals; others are below "feature"."""


@dataclass(frozen=True)
class Signal:
    """What one entity of an episode shows.

    Attributes:
        path: the parts of its path below the episode's.
        steps: int64 [n], control steps since the episode began.
        values: numbers [n, k], pictures uint8 [n, h, w, 3], or n words.
        names: k names of the numbers.
    """

    path: tuple[str, ...]
    steps: Array
    values: Array | list[str]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class ViewedEpisode:
    """An episode that can be written.

    Attributes:
        title: its number, task and outcome. rate: control steps per second.
        cameras: of its pictures. read: yields its signals.
    """

    title: str
    rate: float
    cameras: tuple[str, ...]
    read: Callable[[], Iterator[Signal]]


def list_episodes(folder: Path) -> tuple[list[ViewedEpisode], list[str]]:
    """Return the episodes of a folder in order of time, and a dataset's features that cannot be shown.

    Raises:
        UserError: the folder holds neither a dataset nor a replay storage, or one that is damaged or still written.
    """
    if is_dataset(folder):
        return list_recorded(LeRobotDataset(folder))
    if not (parts := list_storages(folder)):
        message = f"source={folder} is no folder of a LeRobotDataset, of a replay storage, or of a run that has one."
        raise UserError(message, code="source-unknown")
    check_links(folder)
    for part in parts:
        check_not_written(part)
    stored = [(storage, each) for storage in map(ReplayStorage.open, parts) for each in storage.list_episodes()]
    return [describe_stored(*each) for each in sorted(stored, key=lambda pair: pair[1].episode)], []


def stores_none(folder: Path) -> bool:
    """Return whether a folder is that of a run without a replay storage."""
    run = RunFolder(folder)
    return (run.config.is_file() or run.checkpoints.is_dir()) and not list_storages(folder)


def list_storages(folder: Path) -> list[Path]:
    """Return the replay storages of a folder: itself, those of a run, or those of `replay.root`."""
    if (folder / FORMAT).is_file():
        return [folder]
    return sorted((folder / "replay").glob("collector_*")) or sorted(folder.glob("collector_*"))


def list_recorded(dataset: LeRobotDataset) -> tuple[list[ViewedEpisode], list[str]]:
    """Return the episodes of a dataset, and its features that are neither numbers nor pictures."""
    shown = {*dataset.cameras.values(), *(name for name, each in dataset.info.features.items() if each.numeric)}
    episodes = [
        ViewedEpisode(
            f"episode {each.index}: {', '.join(each.tasks)}", float(dataset.info.fps), tuple(dataset.cameras),
            partial(read_recorded, dataset, each.index),
        )
        for each in dataset.episodes
    ]  # fmt: skip
    return episodes, sorted(dataset.info.features.keys() - shown)


def describe_stored(storage: ReplayStorage, episode: StoredEpisode) -> ViewedEpisode:
    """Return a stored episode as one that can be written."""
    task, outcome = storage.format.tasks[episode.task], "success" if episode.success else "failure"
    title = f"episode {episode.episode}: {task}, seed {episode.seed}, {outcome}"
    reader = partial(read_stored, storage, episode)
    return ViewedEpisode(title, storage.format.control_hz, storage.format.cameras, reader)


def read_stored(storage: ReplayStorage, episode: StoredEpisode) -> Iterator[Signal]:
    """Yield the signals of an episode of a replay storage; its observations are of decisions, and the final one."""
    layout, slots = storage.format, episode.slots

    def read(name: str, slots: Array = slots) -> Array:
        return storage.read_field(name, np.full(len(slots), episode.track), slots)

    length = read("steps")
    first, every = np.cumsum(length) - length, np.arange(length.sum())
    used = np.arange(layout.executed) < length[:, None]
    yield Signal(("action", "chosen"), every, read("action")[used], layout.action_names)
    yield Signal(("action", "executed"), every, read("executed")[used], layout.action_names)
    yield Signal(("reward",), every, read("reward")[used][:, None], ("reward",))
    yield Signal(("success",), every, read("success")[used][:, None], ("success",))
    yield Signal(("source",), every, [Source(number).name.lower() for number in read("source")[used]])
    texts = [storage.read_text(int(number)) for number in np.repeat(read("instruction"), length)]
    yield Signal(("instruction",), every, texts)
    for name in ("version", *layout.extra):
        values = read(name).reshape(len(slots), -1)
        yield Signal(("decision", name), first, values, [str(number) for number in range(values.shape[1])])
    if not read("terminated")[-1]:  # the row after the last decision holds the final observation
        slots, first = np.append(slots, (slots[-1] + 1) % layout.slots), np.append(first, len(every))
    yield Signal(("state",), first, read("state", slots), layout.state_names)
    if layout.privileged_names:
        yield Signal(("privileged",), first, read("privileged", slots), layout.privileged_names)
    for camera in layout.cameras:
        yield Signal(("camera", camera), first, read(f"images/{camera}", slots))


def describe_record(record: Record, spec: SimulatorSpec, more: Sequence[Signal] = ()) -> ViewedEpisode:
    """Return an episode that was just played as one that can be written, with further signals."""
    task, outcome = spec.tasks[record.episode.task].name, "success" if any(record.success) else "failure"
    title = f"episode {record.episode.index}: {task}, seed {record.episode.seed}, {outcome}"
    cameras = tuple(record.observations[0].images)
    return ViewedEpisode(title, spec.control_hz, cameras, partial(read_record, record, spec, more))


def read_record(record: Record, spec: SimulatorSpec, more: Sequence[Signal]) -> Iterator[Signal]:
    """Yield the signals of an episode that was just played, and `more`."""
    every = np.arange(len(record.actions))
    yield Signal(("action", "executed"), every, np.stack(record.actions), spec.action_names)
    yield Signal(("reward",), every, np.array(record.reward, np.float32)[:, None], ("reward",))
    yield Signal(("success",), every, np.array(record.success)[:, None], ("success",))
    yield Signal(("source",), every, [Source(number).name.lower() for number in record.source])
    yield Signal(("instruction",), every, [record.instruction] * len(every))
    seen = Observation.concatenate([*record.observations, *([] if record.final is None else [record.final])])
    steps = np.arange(len(seen))
    yield Signal(("state",), steps, seen.state, spec.state_names)
    if seen.privileged is not None:
        yield Signal(("privileged",), steps, seen.privileged, spec.privileged_names)
    for camera, pictures in seen.images.items():
        yield Signal(("camera", camera), steps, pictures)
    yield from more


def read_recorded(dataset: LeRobotDataset, number: int) -> Iterator[Signal]:
    """Yield the signals of an episode of a dataset."""
    rows = np.arange(dataset.starts[number], dataset.stops[number])
    steps, features = np.arange(len(rows)), dataset.info.features
    for name in (name for name, each in features.items() if each.numeric and name not in BOOKKEEPING):
        values, kept = dataset.column(name, rows).reshape(len(rows), -1), np.ones(len(rows), bool)
        if name == SOURCE and values.shape[1] == 1 and np.isin(values, list(Source)).all():
            yield Signal(("source",), steps, [Source(value).name.lower() for value in values[:, 0]])
            continue
        if name == PROPOSED and VALID in features:
            kept = dataset.column(VALID, rows).reshape(len(rows), -1).all(axis=1)
        names = list_names(features[name].names, values.shape[1])
        yield Signal(PATHS.get(name, ("feature", name)), steps[kept], values[kept], names)
    yield Signal(("instruction",), steps, dataset.read_instructions(rows))
    for camera in dataset.cameras:
        for part in np.array_split(steps, -(-len(steps) // AT_ONCE)):
            yield Signal(("camera", camera), part, dataset.images(camera, rows[part]))


def list_names(names: Any, count: int) -> list[str]:
    """Return the names of a feature's numbers; their positions where the dataset has no name for each."""
    listed = list(names) if isinstance(names, list) else []
    if isinstance(names, Mapping):  # as in {"motors": ["shoulder", "elbow"]}
        listed = [each for group in names.values() if isinstance(group, list) for each in group]
    return list(map(str, listed if len(listed) == count else range(count)))
