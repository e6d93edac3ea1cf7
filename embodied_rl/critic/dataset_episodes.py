"""Judged episodes of a recorded dataset, and training examples made of them.

The progress of a recording is unknown. It is estimated from active time, which does not advance while the robot stands
still; a success advances to 1, as in time-contrastive and ReWiND rewards (arXiv:2505.10911). A dataset of
demonstrations shows successes; where frames say `next.success`, that decides.

The progress of a failure is unknown (NaN): it trains "not done" alone. The critic compares a frame with the episode's
first one. So of a rewound episode only frames before its start are new to it, which have progress 0 (`rewind`); others
are later beginnings, clipped endings, which are not done (`clip`), and other words (`add_words`), as ReWiND and SARM
(arXiv:2509.25358) show them.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from embodied_rl.config.assets import resolve_path
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, SimulatorSpec, Task

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

SLOW = 0.05
"""A robot stands still where no entry of its state changes by this share of what the entry's quick changes are."""
QUICK = 0.95
"""Quantile of an entry's changes that are quick."""
SHORTEST = 3
"""Control steps of a pause, at least; less is a turn."""
FRAMES = 16
"""Frames of an episode that are judged, spread evenly, with the first and the last."""
MISMATCHES = 2
"""Other instructions that each training episode is shown with."""
LATEST = 0.6
"""A later beginning lies within this share of the episode."""
_STATE, _ACTION, _SUCCESS = "observation.state", "action", "next.success"


def open_dataset(folder: str) -> "closing[LeRobotDataset]":
    """Return a context manager for the dataset in a folder; it raises `DatasetError`."""
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    return closing(LeRobotDataset(resolve_path(folder)))


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
        state_names: tuple[str, ...] = ()
        if _STATE in features:
            count, names = int(np.prod(features[_STATE].shape)), features[_STATE].names
            known = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if known and len(names) == len(set(names)) == count:
                state_names = tuple(names)
            else:
                state_names = tuple(f"state {number}" for number in range(count))
        sizes = {name: features[key].memory_shape for name, key in dataset.cameras.items()}
        actions = int(np.prod(features[_ACTION].shape)) if _ACTION in features else 0
        return SimulatorSpec(
            cameras=tuple(Camera(name, size[0], size[1]) for name, size in sizes.items()),
            state_names=state_names,
            action_names=tuple(f"action {number}" for number in range(actions)),
            action_low=(-1.0,) * actions,
            action_high=(1.0,) * actions,
            control_hz=float(dataset.info.fps),
            horizon=max(len(episode) for episode in dataset.episodes),
            tasks=tuple(Task(text, text) for text in dict.fromkeys(dataset.tasks)),
            words=tuple(sorted({word for text in dataset.tasks for word in text.lower().split()})),
        )


def read_dataset(folder: str, episodes: int, seed: int) -> list[JudgedEpisode]:
    """Read at most `episodes` episodes, sampled by the seed, with `FRAMES` frames each; it may raise `DatasetError`."""
    judged: list[JudgedEpisode] = []
    with open_dataset(folder) as dataset:
        features, count = dataset.info.features, len(dataset.episodes)
        chosen = np.random.default_rng(seed).permutation(count)[: min(episodes, count)]
        for number in sorted(chosen.tolist()):
            start, stop = int(dataset.starts[number]), int(dataset.stops[number])
            rows = np.unique(np.linspace(start, stop - 1, min(FRAMES, stop - start)).round().astype(np.int64))
            everything = np.arange(start, stop)
            success = not features.get(_SUCCESS) or bool(dataset.column(_SUCCESS, everything).any())
            known = dataset.column(_STATE, everything) if _STATE in features else np.zeros((stop - start, 0))
            state = known.reshape(stop - start, -1).astype(np.float32)
            task = dataset.read_instructions(rows[:1])[0]
            progress = measure_active_time(state)[rows - start].astype(np.float32)
            done = progress >= progress[-1] if success else np.zeros(len(progress), bool)
            done[:-1] &= progress[:-1] > 0  # done: the last frame, and those since which the robot has not moved
            goal = JudgedGoal(task, "own", progress, done, true=False)
            frames = {camera: dataset.images(camera, rows) for camera in dataset.cameras}
            actor = f"dataset {dataset.folder.name}"
            judged.append(JudgedEpisode(frames, state[rows - start], (goal,), success, actor, task))
    return judged


def measure_active_time(state: Array) -> Array:
    """Return the completed share of the movement, float64 [T] from 0 to 1, by the states of all steps, float32 [T, S].

    Where nothing moves at all, no state is known, or noise hides every pause, time itself passes.
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


def make_examples(episodes: Sequence[JudgedEpisode], seed: int) -> list[JudgedEpisode]:
    """Return episodes to train on: each as it is; successes also clipped and rewound.

    Raises:
        UserError: no episode succeeds, or all have the same instruction, so that the words could not be learned.
    """
    words = sorted({episode.goals[0].instruction for episode in episodes})
    if len(words) < 2:
        raise UserError(
            f"All episodes have the instruction {words[0]!r}: a critic needs episodes with different instructions.",
            code="dataset-one-instruction",
        )
    if not any(episode.success for episode in episodes):
        raise UserError(
            "No episode succeeds: a critic needs successes to learn progress.", code="dataset-without-successes"
        )
    random = np.random.default_rng(seed)
    found: list[JudgedEpisode] = []
    for episode in episodes:
        own = episode.goals[0]
        unknown = replace(own, progress=np.full_like(own.progress, np.nan))
        whole = episode if episode.success else replace(episode, goals=(unknown,))
        found.append(add_words(whole, words, random))
        if episode.success and (part := clip(episode, random)) is not None:
            found.append(add_words(part, words, random))
        if episode.success and (back := rewind(episode, random)) is not None:
            found.append(back)  # nothing is progress in it, whatever the words
    return found


def clip(episode: JudgedEpisode, random: np.random.Generator) -> JudgedEpisode | None:
    """Return a part of a success that begins later and ends before it is done; None if it is too short."""
    done = episode.goals[0].done
    frames = int(np.argmax(done)) + 1 if done.any() else len(done)
    if frames < 4:
        return None
    begin = int(random.integers(1, max(2, int(LATEST * frames))))
    end = int(random.integers(begin + 2, frames)) if begin + 2 < frames else frames - 1
    return _rearrange(episode, np.arange(begin, end))


def rewind(episode: JudgedEpisode, random: np.random.Generator) -> JudgedEpisode | None:
    """Return a success that begins later and then goes back behind its beginning; None if it is too short.

    Its first frame is the later beginning; the others run backwards from there. None is progress, and none is done.
    """
    done = episode.goals[0].done
    frames = int(np.argmax(done)) + 1 if done.any() else len(done)
    if frames < 4:
        return None
    begin = int(random.integers(2, frames - 1))
    return _rearrange(episode, np.arange(begin, -1, -1))


def _rearrange(episode: JudgedEpisode, places: Array) -> JudgedEpisode:
    """Return some frames of an episode, int64 [t]; progress counts from the first of them on."""
    own = episode.goals[0]
    begun = own.progress[places[0]]
    progress = np.clip((own.progress[places] - begun) / max(float(1 - begun), 1e-6), 0, 1).astype(np.float32)
    goal = replace(own, progress=progress, done=own.done[places])
    images = {name: pictures[places] for name, pictures in episode.frames.items()}
    return replace(episode, frames=images, state=episode.state[places], goals=(goal,))


def add_words(episode: JudgedEpisode, words: Sequence[str], random: np.random.Generator) -> JudgedEpisode:
    """Return an episode with other instructions, too, under which it makes no progress."""
    others = [each for each in words if each != episode.goals[0].instruction]
    chosen = random.permutation(len(others))[:MISMATCHES]
    nothing = np.zeros(len(episode.state), np.float32)
    wrong = [JudgedGoal(others[i], "task", nothing, nothing > 0, true=False) for i in chosen]
    return replace(episode, goals=(episode.goals[0], *wrong))


def add_mismatches(episodes: Sequence[JudgedEpisode], seed: int) -> list[JudgedEpisode]:
    """Add the instruction of another episode to episodes without other goals, with the assumed progress 0."""
    random = np.random.default_rng(seed)
    words = sorted({episode.goals[0].instruction for episode in episodes})
    found: list[JudgedEpisode] = []
    for episode in episodes:
        others = [each for each in words if each != episode.goals[0].instruction]
        if others and len(episode.goals) == 1:
            t = len(episode.goals[0].progress)
            chosen = others[int(random.integers(len(others)))]
            other = JudgedGoal(chosen, "task", np.zeros(t, np.float32), np.zeros(t, bool), true=False)
            found.append(replace(episode, goals=(episode.goals[0], other)))
        else:
            found.append(episode)
    return found
