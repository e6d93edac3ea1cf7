"""Judged episodes of a recorded dataset. Their progress is unknown: it is estimated from active
time, which does not advance while the robot stands still.

A dataset of demonstrations shows successes; where frames say `next.success`, that decides.
"""

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, SimulatorSpec, Task

SLOW = 0.05
"""A robot stands still where no entry of its state changes by this share of what the entry's quick changes are."""
QUICK = 0.95
"""Quantile of an entry's changes that are quick."""
SHORTEST = 3
"""Control steps of a pause, at least; less is a turn."""
if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
    from embodied_rl.datasets.lerobot.info import Feature

FRAMES = 16
"""Frames of an episode that are judged, spread evenly, with the first and the last."""
_STATE, _ACTION, _SUCCESS = "observation.state", "action", "next.success"


def open_dataset(folder: str) -> "closing[LeRobotDataset]":
    """Return a context manager that gives the dataset in a folder and closes it afterwards.

    Raises:
        DatasetError: the folder holds no dataset, or a part of the dataset is missing.
        Unavailable: the packages that read a dataset are not installed.
    """
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    return closing(LeRobotDataset(folder))


def check_dataset(folder: str) -> SimulatorSpec:
    """Return the specification of a dataset: its cameras, state, actions and words.

    Raises:
        UserError: the dataset does not exist, or has no pictures, episodes or tasks.
    """
    with open_dataset(folder) as dataset:
        features = dataset.info.features
        if not dataset.cameras:
            raise UserError(f"dataset={folder} has no pictures, which a judge looks at.", code="dataset-without-images")
        if not dataset.episodes or not any(text.strip() for text in dataset.tasks):
            raise UserError(f"dataset={folder} has no episodes, or no task in words.", code="dataset-empty")
        sizes = {name: features[key].memory_shape for name, key in dataset.cameras.items()}
        actions = int(np.prod(features[_ACTION].shape)) if _ACTION in features else 0
        return SimulatorSpec(
            cameras=tuple(Camera(name, size[0], size[1]) for name, size in sizes.items()),
            state_names=_read_names(features[_STATE]) if _STATE in features else (),
            action_names=tuple(f"action {number}" for number in range(actions)),
            action_low=(-1.0,) * actions,
            action_high=(1.0,) * actions,
            control_hz=float(dataset.info.fps),
            horizon=max(len(episode) for episode in dataset.episodes),
            tasks=tuple(Task(text, text) for text in dict.fromkeys(dataset.tasks)),
            words=tuple(sorted({word for text in dataset.tasks for word in text.lower().split()})),
        )


def _read_names(feature: "Feature") -> tuple[str, ...]:
    """Return the names of a feature's entries; numbers where the dataset has no list of as many."""
    count, told = int(np.prod(feature.shape)), feature.names
    names = {name for name in told if isinstance(name, str)} if isinstance(told, list) else set[str]()
    if isinstance(told, list) and len(told) == len(names) == count:
        return tuple(told)
    return tuple(f"state {number}" for number in range(count))


def read_dataset(folder: str, episodes: int, seed: int) -> list[JudgedEpisode]:
    """Read at most `episodes` episodes, sampled by the seed, with `FRAMES` frames each.

    Raises:
        DatasetError: a part of the dataset is missing or damaged.
    """
    with open_dataset(folder) as dataset:
        count = len(dataset.episodes)
        chosen = np.random.default_rng(seed).permutation(count)[: min(episodes, count)]
        return [_read_episode(dataset, number) for number in sorted(chosen.tolist())]


def _read_episode(dataset: "LeRobotDataset", number: int) -> JudgedEpisode:
    start, stop = int(dataset.starts[number]), int(dataset.stops[number])
    rows = np.unique(np.linspace(start, stop - 1, min(FRAMES, stop - start)).round().astype(np.int64))
    features = dataset.info.features
    everything = np.arange(start, stop)
    success = not features.get(_SUCCESS) or bool(dataset.column(_SUCCESS, everything).any())
    known = dataset.column(_STATE, everything) if _STATE in features else np.zeros((len(everything), 0))
    whole = known.reshape(len(everything), -1).astype(np.float32)
    task = dataset.tasks[int(dataset.column("task_index", rows[:1]).ravel()[0])]
    progress = measure_active_time(whole)[rows - start].astype(np.float32)
    goal = JudgedGoal(task, "own", progress, _guess_done(progress, success), true=False)
    frames = {camera: dataset.images(camera, rows) for camera in dataset.cameras}
    return JudgedEpisode(frames, whole[rows - start], (goal,), success, f"dataset {dataset.folder.name}", task)


def _guess_done(progress: Array, success: bool) -> Array:
    """Return that a success holds in its last frame, and in those before it since which the robot has not moved."""
    done = progress >= progress[-1] if success else np.zeros(len(progress), bool)
    done[:-1] &= progress[:-1] > 0
    return done


def measure_active_time(state: Array) -> Array:
    """Return how much of the movement has been made, float64 [T] from 0 to 1, rising where the robot moves.

    Where nothing moves at all, no state is known, or noise hides every pause, time itself passes.

    Args:
        state: float32 [T, S], proprioception of every control step.
    """
    clock = np.linspace(0, 1, len(state))
    if len(state) < 2 or not state.shape[1]:
        return clock
    moving = ~find_pauses(state)
    return np.concatenate([[0.0], np.cumsum(moving) / moving.sum()]) if moving.any() else clock


def find_pauses(state: Array) -> Array:
    """Return during which steps, from one row to the next, the robot pauses: bool [T - 1]."""
    change = np.abs(np.diff(np.asarray(state, np.float64), axis=0))
    quick = np.quantile(change, QUICK, axis=0)
    quick = np.where(quick > 0, quick, change.max(axis=0))  # an entry that seldom changes, such as a gripper's
    still: Array = np.all(change <= SLOW * quick, axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        still[start:stop] = stop - start >= SHORTEST
    return still
