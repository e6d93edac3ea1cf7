"""Decoder of the frames of a video at given times."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from embodied_rl.datasets.lerobot.info import DatasetError
from embodied_rl.datasets.lerobot.video_files import open_video
from embodied_rl.interfaces.sim import Array


class Decoder:
    """A decoder for the frames of one video file. It decodes consecutive frames in sequence, and seeks for others.

    Args:
        path: the video file.

    Raises:
        DatasetError: the file is missing or damaged.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            self._container = open_video(path)
            self._stream: Any = self._container.streams.video[0]
            packets = [p for p in self._container.demux(self._stream) if p.size and p.pts is not None]
        except (OSError, IndexError, FFmpegError) as error:
            raise DatasetError(f"{path} is missing or damaged ({error})", code="dataset-damaged") from error
        self._pts = np.sort(np.array([packet.pts for packet in packets], np.int64))
        self._keys = np.sort(np.array([packet.pts for packet in packets if packet.is_keyframe], np.int64))
        self._unit = float(self._stream.time_base)
        self._converter = VideoReformatter()  # one thread: to start more takes longer than the work
        self._coming: Iterator[Any] = iter(())
        self._next = len(self._pts)

    def frames(self, seconds: Array, tolerance: float) -> Array:
        """Return the pictures at some times, uint8 [n, h, w, 3].

        Args:
            seconds: float64 [n], times from the start of the file.
            tolerance: largest distance in seconds to the nearest frame.

        Raises:
            DatasetError: the file has no frame near one of the times, or is damaged.
        """
        numbers = self._find_frames(np.asarray(seconds, np.float64), tolerance)
        found = {int(number): self._decode(int(number)) for number in np.unique(numbers)}
        return np.stack([found[number] for number in numbers.tolist()])

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _find_frames(self, seconds: Array, tolerance: float) -> Array:
        """Return the number of the frame nearest to each time."""
        times = self._pts * self._unit
        after = np.clip(np.searchsorted(times, seconds), 0, len(times) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(seconds - times[before] <= times[after] - seconds, before, after)
        far = np.abs(times[nearest] - seconds)
        if len(far) and far.max() > tolerance:
            worst = far.argmax()
            raise DatasetError(
                f"{self._path} has no frame at {seconds[worst]:.4f} s: the nearest is at "
                f"{times[nearest[worst]]:.4f} s. The video is shorter than its episodes, or damaged; copy it again.",
                code="dataset-damaged",
            )
        return nearest

    def _decode(self, number: int) -> Array:
        wanted = int(self._pts[number])
        key = int(self._keys[max(0, np.searchsorted(self._keys, wanted, "right") - 1)])
        if number < self._next or self._next >= len(self._pts) or self._pts[self._next] < key:
            self._container.seek(key, stream=self._stream)
            self._coming = self._container.decode(self._stream)
            self._next = int(np.searchsorted(self._pts, key))
        try:
            for frame in self._coming:
                self._next = int(np.searchsorted(self._pts, frame.pts)) + 1
                if frame.pts == wanted:
                    return self._converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                if frame.pts > wanted:
                    break
        except FFmpegError as error:
            raise DatasetError(
                f"{self._path} is damaged at frame {number} ({error})", code="dataset-damaged"
            ) from error
        raise DatasetError(
            f"{self._path} is damaged: frame {number} cannot be decoded; copy it again.", code="dataset-damaged"
        )
