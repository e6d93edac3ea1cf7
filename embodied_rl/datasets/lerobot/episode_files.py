"""Files of the list of episodes, meta/episodes, and of the texts of their tasks, meta/tasks.parquet."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embodied_rl.datasets.lerobot.dataset_files import FilePlace, damaged, find_file, remove_beyond
from embodied_rl.datasets.lerobot.feature_statistics import Summary, from_lists
from embodied_rl.datasets.lerobot.info import EPISODES, TASKS, Info
from embodied_rl.datasets.lerobot.tables import read_file, write_table
from embodied_rl.system.untrusted_files import shorten

FILE_EPISODES = 500
"""Largest number of episodes in a file of the list, which is rewritten with each episode."""


@dataclass(frozen=True)
class Clip:
    """The part of a video that shows an episode: a file, and its start and stop in seconds."""

    place: FilePlace
    start: float
    stop: float


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a dataset.

    Attributes:
        index: its index in the dataset.
        tasks: texts of its tasks.
        start, stop: range of its frames in the dataset, `stop` excluded.
        data: the file of its frames.
        videos: its clips, by name of the feature.
    """

    index: int
    tasks: tuple[str, ...]
    start: int
    stop: int
    data: FilePlace
    videos: dict[str, Clip]

    def __len__(self) -> int:
        return self.stop - self.start

    def row(self, listed: FilePlace, statistics: Mapping[str, Summary]) -> dict[str, Any]:
        """Return the episode's row of the list; `listed` is the list's file that holds the row."""
        row: dict[str, Any] = {
            "episode_index": self.index,
            "tasks": list(self.tasks),
            "length": len(self),
            "data/chunk_index": self.data.chunk,
            "data/file_index": self.data.file,
            "dataset_from_index": self.start,
            "dataset_to_index": self.stop,
        }
        for key, clip in self.videos.items():
            places = {"chunk_index": clip.place.chunk, "file_index": clip.place.file}
            times = {"from_timestamp": clip.start, "to_timestamp": clip.stop}
            row |= {f"videos/{key}/{name}": value for name, value in (places | times).items()}
        for key, summary in statistics.items():
            row |= {f"stats/{key}/{name}": array.tolist() for name, array in summary.items()}
        return row | {"meta/episodes/chunk_index": listed.chunk, "meta/episodes/file_index": listed.file}

    @staticmethod
    def of_row(row: Mapping[str, Any], videos: Sequence[str]) -> "RecordedEpisode":
        """Convert a row of the list to an episode; raise KeyError, TypeError or ValueError if an entry is invalid."""
        clips = {}
        for key in videos:
            place = FilePlace(int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"]))
            start, stop = float(row[f"videos/{key}/from_timestamp"]), float(row[f"videos/{key}/to_timestamp"])
            if not (math.isfinite(start) and math.isfinite(stop)):
                raise ValueError(f"the video {key} begins at {start} s and ends at {stop} s")
            clips[key] = Clip(place, start, stop)
        return RecordedEpisode(
            index=int(row["episode_index"]),
            tasks=tuple(row["tasks"]),
            start=int(row["dataset_from_index"]),
            stop=int(row["dataset_to_index"]),
            data=FilePlace(int(row["data/chunk_index"]), int(row["data/file_index"])),
            videos=clips,
        )


def _read_tables(folder: Path) -> Iterator[pa.Table]:
    for path in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        yield read_file(find_file(folder, str(path.relative_to(folder))))


def read_episodes(folder: Path, info: Info) -> list[RecordedEpisode]:
    """Read all episodes of the dataset, in order.

    Raises:
        DatasetError: the list is missing, damaged or shorter than in meta/info.json.
    """
    rows: list[dict[str, Any]] = []
    for table in _read_tables(folder):
        names = [name for name in table.column_names if not name.startswith("stats/")]
        rows += table.select(names).to_pylist()
    try:
        episodes = sorted((RecordedEpisode.of_row(row, info.videos) for row in rows), key=lambda episode: episode.index)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(f"{folder}/meta/episodes is damaged: {type(error).__name__}: {shorten(error)}") from error
    episodes = episodes[: info.total_episodes]
    stop = 0
    for position, episode in enumerate(episodes):
        if (episode.index, episode.start) != (position, stop) or len(episode) < 1:
            raise damaged(f"{folder}/meta/episodes is damaged: episode {position} does not follow the one before")
        stop = episode.stop
    if (len(episodes), stop) != (info.total_episodes, info.total_frames):
        raise damaged(
            f"{folder}: meta/info.json has {info.total_episodes} episodes and {info.total_frames} frames, "
            f"but meta/episodes has {len(episodes)} and {stop}. A part of the dataset is missing: copy it again."
        )
    return episodes


def read_statistics(folder: Path, episodes: int) -> list[dict[str, Summary]]:
    """Read the statistics of each of the first `episodes` episodes, by feature."""
    found: dict[int, dict[str, Summary]] = {}
    for table in _read_tables(folder):
        names = [name for name in table.column_names if name.startswith("stats/")]
        for row in table.select(["episode_index", *names]).to_pylist():
            nested: dict[str, dict[str, Any]] = {}
            for name in names:
                if row[name] is not None:
                    key, _, statistic = name.removeprefix("stats/").rpartition("/")
                    nested.setdefault(key, {})[statistic] = row[name]
            found[row["episode_index"]] = {key: from_lists(entries) for key, entries in nested.items()}
    return [found[index] for index in range(episodes)]


def read_tasks(folder: Path, info: Info) -> tuple[str, ...]:
    """Read the task texts, ordered by `task_index`; raise `DatasetError` if the file is missing or damaged."""
    if not info.total_tasks:
        return ()
    table = read_file(find_file(folder, TASKS))
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise damaged(f"{folder / TASKS} is damaged: its columns are {', '.join(table.column_names)}")
    numbered = dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))
    try:
        return tuple(str(numbered[index]) for index in range(info.total_tasks))
    except KeyError as error:
        raise damaged(f"{folder / TASKS} is damaged: no task has the number {error}") from error


def write_tasks(folder: Path, tasks: Sequence[str]) -> None:
    """Write the file of tasks; the text is the pandas index of the table, because lerobot reads it with pandas."""
    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": described, "pandas_version": "2.0.0"}
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), folder / TASKS)


class EpisodeFiles:
    """A writer for the list of episodes; it keeps the last file in memory, and rewrites it with each episode."""

    def __init__(self, folder: Path, info: Info):
        self._folder, self._info = folder, info
        self._place, self._table = FilePlace(0, 0), None
        for path in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
            kept = read_file(path).filter(pc.field("episode_index") < info.total_episodes)
            if len(kept):
                chunk, file = path.parent.name.removeprefix("chunk-"), path.stem.removeprefix("file-")
                self._place, self._table = FilePlace(int(chunk), int(file)), kept.replace_schema_metadata(None)
        remove_beyond(folder / "meta/episodes", self._place if info.total_episodes else None, ".parquet")

    def append(self, episode: RecordedEpisode, statistics: Mapping[str, Summary]) -> None:
        """Add an episode's row to the list, and write its file."""
        line = pa.Table.from_pylist([episode.row(self._place, statistics)])
        if self._table is None:
            self._table = line
        elif len(self._table) < FILE_EPISODES and self._table.schema.equals(line.schema):
            self._table = pa.concat_tables([self._table, line]).combine_chunks()
        else:  # it is full, or another program wrote it
            self._place = self._place.following(self._info.chunks_size)
            self._table = pa.Table.from_pylist([episode.row(self._place, statistics)])
        write_table(
            self._table, self._folder / EPISODES.format(chunk_index=self._place.chunk, file_index=self._place.file)
        )
