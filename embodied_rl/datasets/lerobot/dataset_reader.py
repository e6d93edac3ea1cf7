"""Reader of frames of a dataset, as observations with their chunks of actions."""

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image

from embodied_rl.datasets.lerobot import feature_statistics
from embodied_rl.datasets.lerobot.dataset_files import DatasetError, FilePlace, damaged, find_file
from embodied_rl.datasets.lerobot.episode_files import RecordedEpisode, read_episodes, read_statistics, read_tasks
from embodied_rl.datasets.lerobot.feature_statistics import Summary
from embodied_rl.datasets.lerobot.info import ACTION, BOOKKEEPING, IMAGES, STATE, STATISTICS, read_info
from embodied_rl.datasets.lerobot.tables import MEGABYTE, open_file, read_file, read_numbers
from embodied_rl.datasets.lerobot.video_files import Decoder, probe_video
from embodied_rl.interfaces.sim import Array, Observation

OPEN_FILES = 16
"""Number of videos, and of tables, that stay open."""
Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """A cache of the last used values, at least one, up to a total size; `close` gets each dropped value."""

    def __init__(self, limit: float, size: Callable[[Value], float], close: Callable[[Value], None] | None = None):
        self._limit, self._size, self._close = limit, size, close
        self._values: OrderedDict[Any, Value] = OrderedDict()
        self._used = 0.0

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or make it."""
        if key not in self._values:
            value = make()
            self._values[key] = value
            self._used += self._size(value)
            while self._used > self._limit and len(self._values) > 1:
                self._drop()
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        """Drop all values."""
        while self._values:
            self._drop()

    def _drop(self) -> None:
        _, value = self._values.popitem(last=False)
        self._used -= self._size(value)
        if self._close is not None:
            self._close(value)


@dataclass
class DatasetSamples:
    """n frames of a dataset, each with its chunk of actions.

    Attributes:
        observation: n rows.
        actions: float32 [n, H, A], beginning with the frame's own action; past the episode's end the last is repeated.
        padding: bool [n, H], true for repeated actions.
        row, episode: int64 [n], numbers of the frame and of its episode in the dataset.
        extra: the other numeric features by name, [n, *shape].
    """

    observation: Observation
    actions: Array
    padding: Array
    row: Array
    episode: Array
    extra: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row)

    def select(self, rows: Sequence[int] | Array) -> "DatasetSamples":
        """Return the given rows, in the given order."""
        chosen = np.asarray(rows, np.int64)
        extra = {name: array[chosen] for name, array in self.extra.items()}
        return DatasetSamples(
            self.observation.select(chosen), self.actions[chosen], self.padding[chosen],
            self.row[chosen], self.episode[chosen], extra,
        )  # fmt: skip

    @staticmethod
    def concatenate(parts: Sequence["DatasetSamples"]) -> "DatasetSamples":
        """Concatenate several samples, with rows in order."""
        if len(parts) == 1:
            return parts[0]
        return DatasetSamples(
            observation=Observation.concatenate([part.observation for part in parts]),
            actions=np.concatenate([part.actions for part in parts]),
            padding=np.concatenate([part.padding for part in parts]),
            row=np.concatenate([part.row for part in parts]),
            episode=np.concatenate([part.episode for part in parts]),
            extra={name: np.concatenate([part.extra[name] for part in parts]) for name in parts[0].extra},
        )


class LeRobotDataset:
    """A dataset on disk, written by this program or by lerobot.

    Args:
        cache_mb: limit of each of the two caches, for numbers and for PNG files.

    Raises:
        DatasetError: the folder does not hold a LeRobotDataset v3.0, a part is missing, or a video is too short.
    """

    def __init__(self, folder: Path | str, cache_mb: float = 1024):
        self.folder = Path(folder)
        self.info = read_info(self.folder)
        self.episodes: list[RecordedEpisode] = read_episodes(self.folder, self.info)
        self.tasks = read_tasks(self.folder, self.info)
        self.starts = np.array([episode.start for episode in self.episodes], np.int64)
        self.stops = np.array([episode.stop for episode in self.episodes], np.int64)
        seen = [key for key, feature in self.info.features.items() if feature.is_image and not feature.is_depth]
        self.cameras = {key.removeprefix(IMAGES).removeprefix("observation."): key for key in seen}
        if twice := set(seen) - set(self.cameras.values()):
            name = min(twice).removeprefix(IMAGES).removeprefix("observation.")
            raise damaged(f"{self.folder}: {min(twice)} and {self.cameras[name]} are cameras of the same name, {name}.")
        self._places = list(dict.fromkeys(episode.data for episode in self.episodes))
        number = {place: index for index, place in enumerate(self._places)}
        self._file = np.array([number[episode.data] for episode in self.episodes], np.int64)  # of each episode
        self._first = {episode.data: episode.start for episode in reversed(self.episodes)}
        self._stop = {episode.data: episode.stop for episode in self.episodes}
        self._arrays: BoundedCache[Array] = BoundedCache(cache_mb * MEGABYTE, lambda array: array.nbytes)
        self._pictures: BoundedCache[list[bytes]] = BoundedCache(
            cache_mb * MEGABYTE, lambda files: sum(map(len, files))
        )
        self._decoders: BoundedCache[Decoder] = BoundedCache(OPEN_FILES, lambda _: 1, Decoder.close)
        self._tables: BoundedCache[Any] = BoundedCache(OPEN_FILES, lambda _: 1, lambda file: file.close())
        self._check_files()
        path = find_file(self.folder, STATISTICS)
        self.statistics: dict[str, Summary] = (
            feature_statistics.from_json(path.read_bytes(), str(path))
            if path.exists()
            else feature_statistics.combine_features(read_statistics(self.folder, len(self.episodes)))
        )

    def __len__(self) -> int:
        """Return the number of frames."""
        return self.info.total_frames

    def close(self) -> None:
        """Close all open files."""
        self._decoders.clear()
        self._tables.clear()

    def read(self, rows: Sequence[int] | Array, horizon: int = 1) -> DatasetSamples:
        """Return frames by number, in the given order, each with `horizon` actions beginning with its own.

        Past the episode's end the last action is repeated.

        Raises:
            DatasetError: a number is out of range, or the dataset has no state, no actions or no pictures.
        """
        wanted = np.asarray(rows, np.int64)
        self._require(STATE, ACTION)
        episode = self.episode_of(wanted)
        steps, last = wanted[:, None] + np.arange(horizon), self.stops[episode, None] - 1
        actions = self.column(ACTION, np.minimum(steps, last).ravel())
        own = {STATE, ACTION, *BOOKKEEPING}
        extra = [name for name, feature in self.info.features.items() if feature.numeric and name not in own]
        observation = Observation(
            images={camera: self.images(camera, wanted) for camera in self.cameras},
            state=self.column(STATE, wanted).reshape(len(wanted), -1).astype(np.float32),
            instruction=tuple(self.read_instructions(wanted)),
        )
        return DatasetSamples(
            observation=observation,
            actions=actions.reshape(len(wanted), horizon, -1).astype(np.float32),
            padding=steps > last,
            row=wanted,
            episode=episode,
            extra={name: self.column(name, wanted) for name in extra},
        )

    def read_instructions(self, rows: Sequence[int] | Array) -> list[str]:
        """Return the instructions of frames by number; raise `DatasetError` if one is not in the list of tasks."""
        numbers = self.column("task_index", rows).ravel()
        if len(unknown := numbers[(numbers < 0) | (numbers >= len(self.tasks))]):
            raise damaged(f"{self.folder}: a frame has task {unknown[0]}, and the dataset has {len(self.tasks)} tasks.")
        return [self.tasks[index] for index in numbers.tolist()]

    def column(self, name: str, rows: Sequence[int] | Array) -> Array:
        """Return one numeric feature of frames by number, [n, …].

        Raises:
            DatasetError: the feature does not exist or is not numeric, or a file is damaged.
        """
        self._require(name)
        feature = self.info.features[name]
        if not feature.numeric:
            raise DatasetError(
                f"{self.folder}: the feature '{name}' is not numeric, but {feature.dtype}", code="feature-not-numeric"
            )
        wanted = np.asarray(rows, np.int64)
        found = np.empty((len(wanted), *feature.shape), np.dtype(feature.dtype))
        for place, where in self._by_file(wanted).items():
            found[where] = self._array(place, name)[wanted[where] - self._first[place]]
        return found

    def images(self, camera: str, rows: Sequence[int] | Array) -> Array:
        """Return one camera's pictures of frames by number, uint8 [n, h, w, 3].

        Raises:
            DatasetError: the camera does not exist, or a file is damaged.
        """
        if camera not in self.cameras:
            raise DatasetError(
                f"{self.folder}: no camera '{camera}'; there are {', '.join(self.cameras) or 'none'}",
                code="camera-unknown",
            )
        key, wanted = self.cameras[camera], np.asarray(rows, np.int64)
        feature = self.info.features[key]
        found = np.empty((len(wanted), *feature.memory_shape), np.uint8)
        for path, where, pictures in (self._read_videos if feature.dtype == "video" else self._read_png)(key, wanted):
            if pictures.shape[1:] != feature.memory_shape:
                raise damaged(
                    f"{path} has pictures of '{key}' of shape {pictures.shape[1:]}, meta/info.json has "
                    f"{feature.memory_shape}"
                )
            found[where] = pictures
        return found

    def episode_of(self, rows: Sequence[int] | Array) -> Array:
        """Return the episode index of each frame, int64 [n]; raise `DatasetError` for a frame number out of range."""
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise DatasetError(
                f"{self.folder} holds {len(self)} frames; there is no frame {wanted.max()}", code="frame-out-of-range"
            )
        return np.searchsorted(self.stops, wanted, "right")

    def _require(self, *names: str) -> None:
        for name in names:
            if name not in self.info.features:
                raise DatasetError(
                    f"{self.folder} has no feature '{name}'; it has {', '.join(sorted(self.info.features))}",
                    code="feature-unknown",
                )

    def _by_file(self, rows: Array) -> dict[FilePlace, Array]:
        """Return the positions in `rows`, grouped by the file of their frames."""
        files = self._file[self.episode_of(rows)]
        order = np.argsort(files, kind="stable")
        edges = np.flatnonzero(np.diff(files[order])) + 1
        parts = [part for part in np.split(order, edges) if len(part)]
        return {self._places[int(files[part[0]])]: part for part in parts}

    def _array(self, place: FilePlace, name: str) -> Array:
        def read() -> Array:
            path = find_file(self.folder, self.info.data_file(place))
            if name != "index" and self._array(place, "index").ravel()[0] != self._first[place]:
                raise damaged(f"{path} is damaged: it does not begin with frame {self._first[place]}")
            array = read_numbers(read_file(path, [name])[name], self.info.features[name], str(path))
            needed = self._stop[place] - self._first[place]
            if len(array) < needed:
                raise damaged(f"{path} holds {len(array)} frames, and its episodes have {needed}; copy it again.")
            return array

        return self._arrays.get((place, name), read)

    def _read_videos(self, key: str, rows: Array) -> Iterator[tuple[Path, Array, Array]]:
        """Yield a file, positions in `rows`, and the pictures of these frames."""
        seconds = self.column("timestamp", rows).ravel().astype(np.float64)
        clips = [self.episodes[episode].videos[key] for episode in self.episode_of(rows).tolist()]
        seconds += np.array([clip.start for clip in clips])
        places = np.array([clip.place for clip in clips]).reshape(-1, 2)
        for chunk, file in np.unique(places, axis=0).tolist():
            where = np.flatnonzero((places == (chunk, file)).all(axis=1))
            path = find_file(self.folder, self.info.video_file(key, FilePlace(chunk, file)))
            decoder = self._decoders.get(path, lambda path=path: Decoder(path))
            yield path, where, decoder.frames(seconds[where], 0.5 / self.info.fps)

    def _read_png(self, key: str, rows: Array) -> Iterator[tuple[Path, Array, Array]]:
        """Yield a file, a position in `rows`, and the picture of this frame."""

        def read_group(table: Any, group: int) -> list[bytes]:
            entries = table.read_row_group(group, columns=[key])[key].to_pylist()
            return [(isinstance(entry, dict) and entry.get("bytes")) or b"" for entry in entries]

        for place, where in self._by_file(rows).items():
            path = find_file(self.folder, self.info.data_file(place))
            table = self._tables.get(path, lambda path=path: open_file(path))
            sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            stops = np.cumsum(sizes)
            for position in where.tolist():
                row = int(rows[position]) - self._first[place]
                group = int(np.searchsorted(stops, row, "right"))
                files = self._pictures.get((path, key, group), lambda t=table, g=group: read_group(t, g))
                try:
                    opened = Image.open(io.BytesIO(files[row - int(stops[group] - sizes[group])]))
                    picture = np.asarray(opened.convert("RGB"))
                except OSError as error:
                    raise damaged(f"{path} is damaged: a picture cannot be decoded ({error})") from error
                yield path, np.array([position]), picture[None]

    def _check_files(self) -> None:
        """Check that every file exists, that tables have their columns, and that videos are long enough."""
        columns = {name for name, feature in self.info.features.items() if feature.dtype != "video"}
        for place in self._places:
            path = find_file(self.folder, self.info.data_file(place))
            with open_file(path) as file:
                if missing := columns - set(file.schema_arrow.names):
                    raise damaged(f"{path} has no column '{min(missing)}' of meta/info.json")
        longest: dict[tuple[str, FilePlace], float] = {}
        for key in self.info.videos:
            for episode in self.episodes:
                clip = episode.videos[key]
                stop = clip.start + len(episode) / self.info.fps
                longest[key, clip.place] = max(longest.get((key, clip.place), 0.0), stop)
        for (key, place), needed in longest.items():
            path = find_file(self.folder, self.info.video_file(key, place))
            found, _ = probe_video(path)
            if found < needed - 0.5 / self.info.fps:
                raise damaged(
                    f"{path} is {found:.3f} s long, and its episodes are {needed:.3f} s; copy it again, or leave out "
                    "its episodes."
                )
