"""Writer of a dataset, frame by frame; an episode is stored completely or not at all, even if the process is killed.

With each episode, the last file of every kind is replaced by one that includes the episode, and meta/info.json last.
Data beyond its totals belongs to an episode of which the writing was interrupted.
"""

import io
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from embodied_rl.datasets.lerobot import feature_statistics
from embodied_rl.datasets.lerobot.dataset_files import KEY, TEMPORARY, DatasetError, find_file, lock_folder
from embodied_rl.datasets.lerobot.episode_files import (
    Clip,
    EpisodeFiles,
    RecordedEpisode,
    read_episodes,
    read_statistics,
    read_tasks,
    write_tasks,
)
from embodied_rl.datasets.lerobot.feature_statistics import ColourStatistics, Summary
from embodied_rl.datasets.lerobot.info import BOOKKEEPING, INFO, STATISTICS, Feature, Info, make_info, read_info
from embodied_rl.datasets.lerobot.tables import DataFiles, make_frames_table, read_file, read_numbers
from embodied_rl.datasets.lerobot.video_files import CODECS, Encoder, VideoFiles
from embodied_rl.system.atomic_write import explain_errors, make_folder, write_text


class EpisodeBuffer:
    """The current episode: numbers and PNG files stay in memory, videos are encoded frame by frame into `folder`."""

    def __init__(self, folder: Path, info: Info, codec: str):
        self.tasks: list[str] = []
        self._info = info
        self._values: dict[str, list[Any]] = {name: [] for name in info.features if name not in BOOKKEEPING}
        self._colours = {name: ColourStatistics() for name in self._values if info.features[name].is_image}
        self.videos = {
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
            if name in self.videos:
                self.videos[name].add(value)
            elif name in self._colours:
                file = io.BytesIO()
                Image.fromarray(value).save(file, "PNG")
                self._values[name].append(file.getvalue())
            else:
                self._values[name].append(value)
        self.tasks.append(task)

    def values(self, index: int, start: int, tasks: list[str]) -> dict[str, Any]:
        """Return the values of the table, by feature."""
        frames = np.arange(len(self))
        return self._values | {
            "timestamp": (frames / self._info.fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(len(self), index),
            "index": start + frames,
            "task_index": np.array([tasks.index(task) for task in self.tasks]),
        }

    def summaries(self, values: Mapping[str, Any]) -> dict[str, Summary]:
        """Return the statistics by feature; texts have none."""
        found: dict[str, Summary] = {}
        for name, feature in self._info.features.items():
            if name in self._colours:
                found[name] = self._colours[name].summary()
            elif feature.numeric:
                found[name] = feature_statistics.summarise(np.reshape(values[name], (len(self), *feature.shape)))
        return found

    def discard(self) -> None:
        """Remove the episode's files from disk."""
        for encoder in self.videos.values():
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
    if array.dtype.kind in "iu" and wanted.kind in "iu":  # IntEnum and int come as int64
        fits = bool((array.astype(wanted) == array).all())
    else:
        fits = np.can_cast(array.dtype, wanted, "same_kind")
    if array.shape != feature.memory_shape or not fits:
        raise DatasetError(
            f"frame: '{name}' is {array.dtype} {list(array.shape)}, and the dataset has {wanted} "
            f"{list(feature.memory_shape)}",
            code="feature-mismatch",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DatasetError(f"frame: '{name}' holds numbers that are not finite", code="not-finite")
    return array.astype(wanted)


class DatasetWriter:
    """A writer that adds episodes to a dataset. Use it in a `with` statement, or call `close`.

    Args:
        folder: folder of the dataset; an existing dataset is continued.
        features: features of each frame, without `BOOKKEEPING`; `info.make_features` returns those of a simulator.
        codec: codec of videos, one of `video_files.CODECS`.
        chunks_size: files in a folder.
        data_files_size_in_mb, video_files_size_in_mb: largest size of a file; one is rewritten with every episode,
            so it should stay small. A continued dataset keeps its own limits.

    Raises:
        DatasetError: a feature is invalid, the folder holds a dataset of other features, or another process writes it.
        StorageError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        features: Mapping[str, Feature],
        fps: float,
        robot_type: str | None = None,
        *,
        codec: str = "h264",
        chunks_size: int = 1000,
        data_files_size_in_mb: float = 20,
        video_files_size_in_mb: float = 20,
    ):
        if codec not in CODECS:
            raise DatasetError(f"codec '{codec}' is unknown; there are {', '.join(CODECS)}", code="codec-unknown")
        wanted = make_info(
            features, fps, codec, robot_type=robot_type, chunks_size=chunks_size,
            data_files_size_in_mb=data_files_size_in_mb, video_files_size_in_mb=video_files_size_in_mb,
        )  # fmt: skip
        self.folder, self._codec = make_folder(Path(folder), KEY), codec
        with ExitStack() as opening:
            opening.enter_context(lock_folder(self.folder))
            self._open_folder(wanted)
            self._locks = opening.pop_all()
        self._episode: EpisodeBuffer | None = None
        self._usable = True

    @staticmethod
    def resume(folder: Path, codec: str = "h264") -> "DatasetWriter":
        """Continue an existing dataset with its features; raise `DatasetError` if the folder holds no dataset."""
        info = read_info(Path(folder))
        features = {name: feature for name, feature in info.features.items() if name not in BOOKKEEPING}
        return DatasetWriter(folder, features, info.fps, info.robot_type, codec=codec)

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame, with a value for each feature, to the current episode; the first frame starts an episode.

        Raises:
            DatasetError: a feature is missing, unknown, of another shape or dtype, or not finite.
            StorageError: the disk is full; the caller should discard the current episode.
        """
        self._check_usable()
        own = {name: feature for name, feature in self.info.features.items() if name not in BOOKKEEPING}
        values = {name: check_value(name, feature, frame) for name, feature in own.items()}
        if unknown := set(frame) - set(values):
            raise DatasetError(
                f"frame: unknown feature '{min(unknown)}'; the dataset has {', '.join(values)}", code="feature-unknown"
            )
        with explain_errors(self.folder, KEY):
            if self._episode is None:
                self._episode = EpisodeBuffer(self.folder, self.info, self._codec)
            self._episode.add(values, task)

    def save_episode(self) -> int:
        """Finish the current episode and store it in the dataset; return its index.

        Raises:
            DatasetError: the episode has no frame.
            StorageError: the disk is full; the dataset is unchanged, and another writer can continue it.
        """
        self._check_usable()
        if self._episode is None:
            raise DatasetError("save_episode: add a frame first", code="episode-empty")
        episode, self._episode, self._usable = self._episode, None, False
        with explain_errors(self.folder, KEY):
            try:
                self._store(episode)
            finally:
                episode.discard()
        self._usable = True
        return self.info.total_episodes - 1

    def add_episode(self, frames: Iterable[Mapping[str, Any]], task: str) -> int:
        """Add a whole episode; return its index. If a frame is refused, discard the episode."""
        try:
            for frame in frames:
                self.add(frame, task)
        except BaseException:
            self.discard_episode()
            raise
        return self.save_episode()

    def discard_episode(self) -> None:
        """Discard the current episode."""
        if self._episode is not None:
            self._episode.discard()
            self._episode = None

    def close(self) -> None:
        """Discard the current episode, write the quantiles of the whole dataset, and release the folder's lock."""
        self.discard_episode()
        if self._usable and self.info.total_episodes:
            refined = dict(self._statistics)
            for key, summary in self._statistics.items():
                if self.info.features[key].numeric:
                    paths = (find_file(self.folder, self.info.data_file(place)) for place in self._data_files)
                    values = (
                        read_numbers(read_file(path, [key])[key], self.info.features[key], str(path)) for path in paths
                    )
                    refined[key] = feature_statistics.refine(summary, values)
            write_text(self.folder / STATISTICS, feature_statistics.to_json(refined))
        self._usable = False
        self._locks.close()

    def _open_folder(self, wanted: Info) -> None:
        """Make the dataset, or open an existing one with the same features and frame rate."""
        if (self.folder / INFO).exists():
            self.info = read_info(self.folder)
            _check_same(self.info, wanted, self.folder)
        elif any(path.name != "meta" for path in self.folder.iterdir()):  # a killed writer may have left only meta
            raise DatasetError(
                f"{self.folder} holds other files, but not a LeRobotDataset. Give an empty folder.",
                code="folder-not-empty",
            )
        else:
            make_folder(self.folder / "meta", KEY)
            write_text(self.folder / INFO, wanted.to_json())
            self.info = wanted
        episodes = read_episodes(self.folder, self.info)
        last = episodes[-1] if episodes else None
        self._tasks = list(read_tasks(self.folder, self.info))
        rows = sum(len(episode) for episode in episodes if last is not None and episode.data == last.data)
        self._data = DataFiles(self.folder, self.info, last.data if last else None, rows)
        self._videos: dict[str, VideoFiles] = {}
        for key in self.info.videos:
            place, frames = None, 0
            if last is not None:
                place, frames = last.videos[key].place, round(last.videos[key].stop * self.info.rate)
            self._videos[key] = VideoFiles(self.folder, self.info, key, place, frames)
        self._list = EpisodeFiles(self.folder, self.info)
        self._statistics = feature_statistics.combine_features(read_statistics(self.folder, len(episodes)))
        self._data_files = list(dict.fromkeys(episode.data for episode in episodes))
        for path in self.folder.glob(f"{TEMPORARY}*"):
            path.unlink()

    def _store(self, episode: EpisodeBuffer) -> None:
        """Write the episode to every file, and meta/info.json last."""
        index, start, length = self.info.total_episodes, self.info.total_frames, len(episode)
        new = [task for task in dict.fromkeys(episode.tasks) if task not in self._tasks]
        values = episode.values(index, start, [*self._tasks, *new])
        summaries = episode.summaries(values)
        data = self._data.append(make_frames_table(self.info.features, values))
        videos: dict[str, Clip] = {}
        for encoder in episode.videos.values():
            encoder.close()
        for key, encoder in episode.videos.items():
            place, before = self._videos[key].append(encoder.path, encoder.frames)
            stop = before + encoder.frames
            videos[key] = Clip(place, float(before / self.info.rate), float(stop / self.info.rate))
        if new:
            self._tasks += new
            write_tasks(self.folder, self._tasks)
        recorded = RecordedEpisode(index, tuple(dict.fromkeys(episode.tasks)), start, start + length, data, videos)
        self._list.append(recorded, summaries)
        earlier = [self._statistics] if index else []
        self._statistics = feature_statistics.combine_features([*earlier, summaries])
        write_text(self.folder / STATISTICS, feature_statistics.to_json(self._statistics))
        info = self.info.with_episode(length, len(self._tasks))
        write_text(self.folder / INFO, info.to_json())
        self.info = info
        if data not in self._data_files[-1:]:
            self._data_files.append(data)

    def _check_usable(self) -> None:
        if not self._usable:
            raise DatasetError(
                f"{self.folder}: this writer is closed, or has failed; open the dataset again", code="writer-closed"
            )


def _check_same(found: Info, wanted: Info, folder: Path) -> None:
    """Check that both datasets have the same features and frame rate; raise `DatasetError` if not."""

    def layout(info: Info) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {name: (feature.dtype, feature.shape) for name, feature in info.features.items()}

    old, new = layout(found), layout(wanted)
    if different := sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
        name = different[0]
        raise DatasetError(
            f"{folder} holds a dataset with other features: '{name}' is {old.get(name, 'absent')} there, and "
            f"{new.get(name, 'absent')} here. Give another folder.",
            code="dataset-mismatch",
        )
    if found.fps != wanted.fps:
        raise DatasetError(
            f"{folder} holds a dataset with {found.fps:g} frames a second, not {wanted.fps:g}.", code="dataset-mismatch"
        )
