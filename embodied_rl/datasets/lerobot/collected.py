"""Episodes of a simulator as a dataset: what `embodied-rl collect format=lerobot` writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from embodied_rl.datasets.lerobot.info import (
    ACTION,
    DONE,
    IMAGES,
    INFO,
    REWARD,
    SOURCE,
    STATE,
    SUCCESS,
    DatasetError,
    features_of,
)
from embodied_rl.datasets.lerobot.writer import Writer
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec


class Steps(Protocol):
    """One episode, control step by control step; the observations are those before each step, of one row."""

    observations: list[Observation]
    actions: list[Array]
    reward: list[float]
    success: list[bool]
    source: list[int]
    instruction: str


def new_dataset(folder: Path, spec: SimulatorSpec, robot_type: str) -> Writer:
    """For a simulator's episodes, one frame a control step.

    Raises:
        DatasetError: the folder holds a dataset already: the same episodes could get into it twice.
    """
    if (folder / INFO).exists():
        raise DatasetError(f"out: {folder} holds a dataset already. Set out to another folder.")
    return Writer(folder, features_of(spec), spec.control_hz, robot_type)


def write(writer: Writer, episode: Steps) -> int:
    """Add an episode, with the actions that were executed; returns its index."""
    return writer.add_episode(frames(episode), episode.instruction)


def frames(episode: Steps) -> Iterator[dict[str, Any]]:
    """What `features_of` speaks of, step by step."""
    last = len(episode.actions) - 1
    for step, seen in enumerate(episode.observations):
        yield {
            **{f"{IMAGES}{camera}": image[0] for camera, image in seen.images.items()},
            STATE: seen.state[0],
            ACTION: episode.actions[step],
            REWARD: episode.reward[step],
            SUCCESS: episode.success[step],
            DONE: step == last,
            SOURCE: episode.source[step],
        }
