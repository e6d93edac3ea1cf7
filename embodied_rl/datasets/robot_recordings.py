"""A recording of a robot as a LeRobotDataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from embodied_rl.datasets.lerobot.dataset_files import DatasetError
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
from embodied_rl.deployment.recording.alignment import EpisodePart
from embodied_rl.deployment.recording.conversion import Conversion, describe_part

PROPOSED, VALID, VERSION = "proposed_action", "proposed_action.valid", "policy_version"


def write_dataset(conversion: Conversion, out: Path, images: Literal["video", "png"]) -> Iterator[dict[str, Any]]:
    """Write a recording as a LeRobotDataset; yield the entry of the index of each written episode.

    Raises:
        DatasetError: the folder holds a dataset already. Unavailable: the extra lerobot is missing.
    """
    from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter  # needs the optional pyarrow and PyAV

    if (out / INFO).exists():
        raise DatasetError(
            f"out={out} holds a dataset already, so that episodes would be stored twice: give a new folder.",
            code="output-exists",
        )
    spec = conversion.make_spec()
    features = make_features(spec, images)
    features |= {
        PROPOSED: features[ACTION], VALID: Feature("bool", (1,)), VERSION: Feature("int64", (1,)),
    }  # fmt: skip
    with DatasetWriter(out, features, spec.control_hz, conversion.robot.name) as writer:
        for part in conversion.read_parts():
            index = writer.add_episode(list_frames(part), part.episode.instruction)
            yield {"episode": index} | describe_part(part)


def list_frames(part: EpisodePart) -> Iterator[dict[str, Any]]:
    """Yield the frame of each control step."""
    for position, step in enumerate(part.steps):
        last = part.ends and position == len(part.steps) - 1
        success = last and part.label == "success"
        yield {
            **{f"{IMAGES}{camera}": picture[0] for camera, picture in step.observation.images.items()},
            STATE: step.observation.state[0],
            ACTION: step.executed,
            REWARD: float(success),
            SUCCESS: success,
            DONE: last,
            SOURCE: int(step.source),
            PROPOSED: step.executed if step.proposed is None else step.proposed,
            VALID: step.proposed is not None,
            VERSION: step.policy_version,
        }
