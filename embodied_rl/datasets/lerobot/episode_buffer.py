"""Buffer of the frames of the current episode of a writer."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from embodied_rl.datasets.lerobot import feature_statistics
from embodied_rl.datasets.lerobot.dataset_files import TEMPORARY
from embodied_rl.datasets.lerobot.feature_statistics import ColourStatistics, Summary
from embodied_rl.datasets.lerobot.info import BOOKKEEPING, DatasetError, Feature, Info
from embodied_rl.datasets.lerobot.video_files import Encoder
from embodied_rl.interfaces.sim import Array


class EpisodeBuffer:
    """The current episode: numbers and PNG files stay in memory, videos are encoded frame by frame.

    Args:
        folder: folder of the dataset, which holds the videos until the episode is saved.
        info: the dataset's info.
        codec: codec of the videos.
    """

    def __init__(self, folder: Path, info: Info, codec: str):
        self.tasks: list[str] = []
        self._values: dict[str, list[Any]] = {name: [] for name in info.features if name not in BOOKKEEPING}
        self._features = info.features
        pictured = [name for name in self._values if info.features[name].is_image]
        self._colours = {name: ColourStatistics() for name in pictured}
        self._encoders = {
            key: Encoder(folder / f"{TEMPORARY}{number}-{os.getpid()}", codec, info.rate, info.features[key])
            for number, key in enumerate(info.videos)
        }

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame whose values `check_value` has checked."""
        for name, value in frame.items():
            if name in self._colours:
                self._colours[name].add(value)
            if name in self._encoders:
                self._encoders[name].add(value)
            else:
                self._values[name].append(_png(value) if name in self._colours else value)
        self.tasks.append(task)

    def values(self, index: int, start: int, tasks: list[str], info: Info) -> dict[str, Any]:
        """Return the values of the table, by feature."""
        frames = np.arange(len(self))
        return self._values | {
            "timestamp": (frames / info.fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(len(self), index),
            "index": start + frames,
            "task_index": np.array([tasks.index(task) for task in self.tasks]),
        }

    def summaries(self, values: Mapping[str, Any]) -> dict[str, Summary]:
        """Return the statistics by feature; texts have none."""
        found = {name: colours.summary() for name, colours in self._colours.items()}
        for name, feature in self._features.items():
            if feature.numeric:
                found[name] = feature_statistics.summarise(np.reshape(values[name], (len(self), *feature.shape)))
        return {name: found[name] for name in self._features if name in found}

    def finish_videos(self) -> dict[str, Encoder]:
        """Finish the videos; return their encoders by feature."""
        for encoder in self._encoders.values():
            encoder.close()
        return self._encoders

    def discard(self) -> None:
        """Remove the episode's files from disk."""
        for encoder in self._encoders.values():
            encoder.discard()


def check_value(name: str, feature: Feature, frame: Mapping[str, Any]) -> Any:
    """Return a frame's value of a feature in the feature's dtype; raise `DatasetError` if shape or type differ."""
    if name not in frame:
        raise DatasetError(f"frame: the feature '{name}' is missing", code="feature-missing")
    if feature.dtype == "string":
        return str(frame[name])
    wanted = np.dtype(np.uint8 if feature.is_image else feature.dtype)
    array = np.asarray(frame[name])
    if array.shape == () and feature.shape == (1,):
        array = array.reshape(1)
    if array.shape != feature.memory_shape or not _fits(array, wanted):
        raise DatasetError(
            f"frame: '{name}' is {array.dtype} {list(array.shape)}, and the dataset has {wanted} "
            f"{list(feature.memory_shape)}",
            code="feature-mismatch",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DatasetError(f"frame: '{name}' holds numbers that are not finite", code="not-finite")
    return array.astype(wanted)


def _fits(array: Array, wanted: np.dtype[Any]) -> bool:
    if array.dtype.kind in "iu" and wanted.kind in "iu":  # IntEnum and int come as int64
        return bool((array.astype(wanted) == array).all())
    return np.can_cast(array.dtype, wanted, "same_kind")


def _png(picture: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()
