"""Dataset of a simulator's episodes, for `embodied-rl collect format=lerobot`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from embodied_rl.datasets.lerobot.dataset_files import DatasetError
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.info import (
    ACTION,
    DONE,
    IMAGES,
    INFO,
    REWARD,
    SOURCE,
    STATE,
    SUCCESS,
    make_features,
)
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.sim import SimulatorSpec


def make_dataset(
    folder: Path, spec: SimulatorSpec, robot_type: str, images: Literal["video", "png"] = "video"
) -> DatasetWriter:
    """Create a dataset for a simulator's episodes, with one frame per control step; `images`: see `info.make_features`.

    Raises:
        DatasetError: the folder already holds a dataset, so that episodes could be stored twice.
    """
    if (folder / INFO).exists():
        raise DatasetError(f"out: {folder} already holds a dataset. Set out to another folder.", code="output-exists")
    return DatasetWriter(folder, make_features(spec, images), spec.control_hz, robot_type)


def write_episode(writer: DatasetWriter, record: Record) -> int:
    """Add an episode with its executed actions; return its index."""
    return writer.add_episode(iterate_frames(record), record.instruction)


def iterate_frames(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the frame of each control step, with the features of `info.make_features`."""
    last = len(record.actions) - 1
    for step, seen in enumerate(record.observations):
        yield {
            **{f"{IMAGES}{camera}": image[0] for camera, image in seen.images.items()},
            STATE: seen.state[0],
            ACTION: record.actions[step],
            REWARD: record.reward[step],
            SUCCESS: record.success[step],
            DONE: step == last,
            SOURCE: record.source[step],
        }
