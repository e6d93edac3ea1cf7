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
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Source
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
    runs = RunFolder(folder)
    parts = [folder] if (folder / FORMAT).is_file() else sorted((folder / "replay").glob("collector_*"))
    if not parts and (runs.config.is_file() or runs.checkpoints.is_dir()):
        raise UserError(
            f"source={folder} is a run without a replay storage. Record its policy: embodied-rl collect "
            f"policy={folder} format=lerobot out=<dataset>, and view that; or give the folder of replay.root.",
            code="replay-missing",
        )
    if not (parts := parts or sorted(folder.glob("collector_*"))):
        message = f"source={folder} is no folder of a LeRobotDataset, of a replay storage, or of a run that has one."
        raise UserError(message, code="source-unknown")
    check_links(folder)
    for part in parts:
        check_not_written(part)
    stored = [(storage, each) for storage in map(ReplayStorage.open, parts) for each in storage.list_episodes()]
    return [describe_stored(*each) for each in sorted(stored, key=lambda pair: pair[1].episode)], []


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
