"""Stream of a dataset in shuffled batches, with a cursor for resuming."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.datasets.lerobot.dataset_files import DatasetError
from embodied_rl.datasets.lerobot.dataset_reader import DatasetSamples, LeRobotDataset
from embodied_rl.interfaces.sim import Array


@dataclass(frozen=True)
class Shuffle:
    """Settings of shuffling. The order depends only on the seed and the epoch.

    Runs of consecutive frames are drawn in random order and read together, so videos are decoded forwards; then the
    frames of as many runs as fill the buffer are shuffled.

    Attributes:
        seed: fixes the order.
        run: frames of a run; 1 shuffles the whole dataset evenly, but seeks in the video for each frame.
        buffer: number of frames, with pictures, that are shuffled in memory.
        ordered: whether to keep the order of the dataset, without shuffling.
    """

    seed: int = 0
    run: int = 32
    buffer: int = 1024
    ordered: bool = False


class SampleStream(Iterator[DatasetSamples]):
    """An iterator over batches of frames, for a number of `epochs`, or endless.

    Args:
        dataset: the dataset to read.
        batch: frames in a batch; it may span two epochs. The very last batch may be smaller.
        horizon: H, actions of a chunk.
        shuffle: settings of shuffling.
        episodes: indices of the episodes to read; None reads all.
        kept: bool [frames], which frames to read; None reads all. Chunks of actions go on over frames that are not.
        epochs: how often each frame is read; None means endless.
        cursor: the `cursor` of another stream, to continue after its last batch.

    Raises:
        DatasetError: nothing is to be read, or the cursor belongs to another dataset, order or choice of episodes.
    """

    def __init__(
        self,
        dataset: LeRobotDataset,
        batch: int,
        horizon: int = 1,
        shuffle: Shuffle | None = None,
        episodes: Sequence[int] | None = None,
        epochs: int | None = None,
        cursor: dict[str, Any] | None = None,
        kept: Array | None = None,
    ):
        self._dataset, self._batch, self._horizon = dataset, batch, horizon
        self._shuffle, self._epochs = shuffle or Shuffle(), epochs
        if min(batch, horizon, self._shuffle.run, self._shuffle.buffer) < 1:
            raise DatasetError("batch, horizon, run and buffer must be at least 1", code="value-out-of-range")
        self._runs = _runs(dataset, episodes, self._shuffle.run, kept)
        chosen = zlib.crc32(self._runs.tobytes())
        self._identity = {"version": 1, **asdict(self._shuffle), "frames": len(dataset), "chosen": chosen}
        self._frames = int((self._runs[:, 1] - self._runs[:, 0]).sum())
        for name, value in self._identity.items():
            if cursor is not None and cursor.get(name) != value:
                raise DatasetError(
                    f"{self._dataset.folder}: the cursor does not fit: '{name}' was {cursor.get(name)} and is {value} "
                    "now. Continue with the same dataset, episodes and shuffle, or start again.",
                    code="cursor-mismatch",
                )
        self._epoch, self._position = (0, 0) if cursor is None else (int(cursor["epoch"]), int(cursor["position"]))
        self._pool: tuple[int, int, int] = (-1, 0, 0)  # the epoch and the positions that it holds
        self._held: DatasetSamples | None = None
        self._mixed: Array = np.zeros(0, np.int64)
        self._planned: tuple[int, list[Array], Array] = (-1, [], self._mixed)

    @property
    def cursor(self) -> dict[str, Any]:
        """Return the position after the last batch, as JSON values, for resuming."""
        return self._identity | {"epoch": self._epoch, "position": self._position}

    def __next__(self) -> DatasetSamples:
        parts: list[DatasetSamples] = []
        missing = self._batch
        while missing and (self._epochs is None or self._epoch < self._epochs):
            epoch, start, stop = self._pool
            if epoch != self._epoch or not start <= self._position < stop:
                self._fill()
                _, start, stop = self._pool
            assert self._held is not None
            taken, first = min(missing, stop - self._position), self._position - start
            parts.append(self._held.select(self._mixed[first : first + taken]))
            missing -= taken
            self._position += taken
            if self._position == self._frames:
                self._epoch, self._position = self._epoch + 1, 0
        if not parts:
            raise StopIteration
        return DatasetSamples.concatenate(parts)

    def _fill(self) -> None:
        """Read the pool at the current position."""
        if self._planned[0] != self._epoch:
            self._plan()
        _, pools, stops = self._planned
        number = int(np.searchsorted(stops, self._position, "right"))
        rows = pools[number]
        self._held = None  # free its memory before reading the next pool
        self._held = self._dataset.read(rows, self._horizon)
        self._mixed = np.arange(len(rows))
        if not self._shuffle.ordered:
            self._mixed = np.random.default_rng([self._shuffle.seed, self._epoch, 1 + number]).permutation(len(rows))
        self._pool = (self._epoch, int(stops[number]) - len(rows), int(stops[number]))

    def _plan(self) -> None:
        """Plan the epoch: the frame numbers of each pool, and the cumulative number of frames after each pool."""
        runs = self._runs
        if not self._shuffle.ordered:
            runs = runs[np.random.default_rng([self._shuffle.seed, self._epoch, 0]).permutation(len(runs))]
        lengths = runs[:, 1] - runs[:, 0]
        pool = (np.cumsum(lengths) - lengths) // self._shuffle.buffer
        frames = np.repeat(runs[:, 0] - (np.cumsum(lengths) - lengths), lengths) + np.arange(self._frames)
        stops = np.cumsum(lengths)[np.append(np.diff(pool) != 0, True)]
        self._planned = (self._epoch, np.split(frames, stops[:-1]), stops)


def _runs(dataset: LeRobotDataset, episodes: Sequence[int] | None, length: int, kept: Array | None) -> Array:
    """Return the first frame and the end of each run, int64 [m, 2], end excluded.

    No run spans two episodes, or a frame that is not kept.
    """
    chosen = np.arange(len(dataset.episodes)) if episodes is None else np.asarray(episodes, np.int64)
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(dataset.episodes):
        raise DatasetError(
            f"{dataset.folder} holds {len(dataset.episodes)} episodes; there is no {chosen.max()}",
            code="episode-out-of-range",
        )
    runs: list[tuple[int, int]] = []
    for episode in chosen.tolist():
        first, end = int(dataset.starts[episode]), int(dataset.stops[episode])
        read = np.ones(end - first, bool) if kept is None else kept[first:end]
        edges = first + np.flatnonzero(np.diff(np.concatenate([[False], read, [False]]).astype(np.int8)))
        for begin, stop in edges.reshape(-1, 2).tolist():  # spans of consecutive frames that are kept
            runs += [(start, min(start + length, stop)) for start in range(begin, stop, length)]
    if not runs:
        raise DatasetError(f"{dataset.folder}: there is no episode to read", code="dataset-empty")
    return np.array(runs, np.int64)
