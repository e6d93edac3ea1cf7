"""Datasets of a simulator's episodes, and of a robot's recordings."""

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
    Feature,
    make_features,
)
from embodied_rl.datasets.record import Record
from embodied_rl.deployment.recording.alignment import EpisodePart
from embodied_rl.deployment.recording.conversion import Conversion, describe_part
from embodied_rl.interfaces.sim import Observation, SimulatorSpec

PROPOSED, VALID, VERSION = "proposed_action", "proposed_action.valid", "policy_version"
RECORDED = {VALID: Feature("bool", (1,)), VERSION: Feature("int64", (1,))}
"""Features of recordings alone, besides `PROPOSED`, which has the shape of the action."""


def make_dataset(
    folder: Path,
    spec: SimulatorSpec,
    robot_type: str,
    images: Literal["video", "png"] = "video",
    recorded: bool = False,
) -> DatasetWriter:
    """Create a dataset with one frame per control step; `images`: see `info.make_features`.

    Raises:
        DatasetError: the folder already holds a dataset.
    """
    check_new(folder)
    features = make_features(spec, images)
    if recorded:
        features |= {PROPOSED: features[ACTION], **RECORDED}
    return DatasetWriter(folder, features, spec.control_hz, robot_type)


def check_new(folder: Path) -> None:
    """Raise `DatasetError` if a folder already holds a dataset, so that episodes could be stored twice."""
    if (folder / INFO).exists():
        raise DatasetError(f"out: {folder} already holds a dataset. Set out to another folder.", code="output-exists")


def write_episode(writer: DatasetWriter, record: Record) -> int:
    """Add an episode of a simulator with its executed actions; return its index."""
    last = len(record.actions) - 1
    frames = (
        _make_frame(seen, record.actions[step], record.reward[step], record.success[step], step == last)
        | {SOURCE: record.source[step]}
        for step, seen in enumerate(record.observations)
    )
    return writer.add_episode(frames, record.instruction)


def write_dataset(conversion: Conversion, out: Path, images: Literal["video", "png"]) -> Iterator[dict[str, Any]]:
    """Write a recording as a dataset; yield the entry of the index of each written episode.

    Raises:
        DatasetError: the folder holds a dataset already.
    """
    with make_dataset(out, conversion.make_spec(), conversion.robot.name, images, recorded=True) as writer:
        for part in conversion.read_parts():
            index = writer.add_episode(list_frames(part), part.episode.instruction)
            yield {"episode": index} | describe_part(part)


def list_frames(part: EpisodePart) -> Iterator[dict[str, Any]]:
    """Yield the frame of each control step of a recording."""
    for position, step in enumerate(part.steps):
        last = part.ends and position == len(part.steps) - 1
        success = last and part.label == "success"
        yield {
            **_make_frame(step.observation, step.executed, float(success), success, last),
            SOURCE: int(step.source),
            PROPOSED: step.executed if step.proposed is None else step.proposed,
            VALID: step.proposed is not None,
            VERSION: step.policy_version,
        }


def _make_frame(seen: Observation, action: Any, reward: float, success: bool, done: bool) -> dict[str, Any]:
    pictures = {f"{IMAGES}{camera}": image[0] for camera, image in seen.images.items()}
    return {**pictures, STATE: seen.state[0], ACTION: action, REWARD: reward, SUCCESS: success, DONE: done}
