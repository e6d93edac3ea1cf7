"""Encoder of an episode's video, and writer that joins it to a video file, for fast access to single frames.

Encoded videos have no B-frames, and every other frame is a key frame, as in lerobot. A decoder therefore reaches
any frame after a seek in at most two steps.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from embodied_rl.datasets.lerobot.dataset_files import remove_beyond, settle_file
from embodied_rl.datasets.lerobot.file_patterns import find_file
from embodied_rl.datasets.lerobot.info import DatasetError, Feature, FilePlace, Info
from embodied_rl.datasets.lerobot.tables import MEGABYTE
from embodied_rl.interfaces.sim import Array

CODECS: dict[str, dict[str, str]] = {
    "h264": {"g": "2", "bf": "0", "crf": "20", "preset": "veryfast"},
    "libsvtav1": {"g": "2", "crf": "30", "preset": "12"},
}
"""Options by encoder."""


_THREADS = Path("/proc/self/task")


@contextmanager
def keep_priority() -> Iterator[None]:
    """Restore the scheduling policy and priority of all threads to those of this thread at the end of the context.

    If the process runs as root, SVT-AV1 gives the thread that opens it, and its own threads, real-time priority 99.
    Child processes inherit it, and would block all other processes on their cores.
    """
    if not _THREADS.is_dir():
        yield
        return
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (int(task.name) for task in _THREADS.iterdir()):
            with suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameter)


def open_video(path: Path) -> Any:
    """Open an MP4 file for reading. Playlists are not accepted, and nothing is downloaded.

    Raises:
        FFmpegError, OSError: the file is missing or damaged.
    """
    return av.open(str(path.absolute()), format="mp4", options={"protocol_whitelist": "file"})


class Encoder:
    """An encoder that writes one camera's video of an episode to a file, frame by frame.

    Args:
        path: the MP4 file.
        codec: one of `CODECS`.
        rate: frames per second.
        feature: the recorded feature; its shape is that of the pictures.
    """

    def __init__(self, path: Path, codec: str, rate: Fraction, feature: Feature):
        self.path = path
        self._rate = rate
        self._output = av.open(str(path), "w", format="mp4")
        self._stream: Any = self._output.add_stream(codec, rate=rate, options=CODECS[codec])
        self._stream.height, self._stream.width = feature.memory_shape[:2]
        self._stream.pix_fmt = "yuv420p"
        self._converter = VideoReformatter()
        self.frames = 0

    def add(self, picture: Array) -> None:
        """Encode the next frame, uint8 [h, w, 3]."""
        colours = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame = self._converter.reformat(
            colours, format="yuv420p", threads=1
        )  # starting threads takes longer than the work
        frame.pts, frame.time_base = self.frames, 1 / self._rate
        with keep_priority() if self.frames == 0 else nullcontext():  # the first frame opens the encoder
            packets = self._stream.encode(frame)
        self._output.mux(packets)
        self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._output.mux(self._stream.encode(None))
        self._output.close()

    def discard(self) -> None:
        """Stop encoding, and remove the file."""
        with suppress(OSError):  # on a full disk; the file is removed anyway
            self._output.close()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class VideoProperties:
    """Properties of a video file: `seconds` is its length, `setup` the codec's extra data for a decoder."""

    seconds: float
    setup: bytes


def probe_video(path: Path) -> VideoProperties:
    """Read the length and the codec's extra data of a video file.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            seconds = float((stream.duration or 0) * (stream.time_base or 0))
            return VideoProperties(seconds, bytes(stream.codec_context.extradata or b""))
    except (OSError, IndexError, FFmpegError) as error:
        raise DatasetError(f"{path} is missing or damaged ({error})", code="dataset-damaged") from error


def join_videos(first: Path, frames: int, second: Path, out: Path, rate: Fraction) -> bool:
    """Write the first `frames` frames of one file, then all frames of another, without encoding them again.

    Returns:
        Whether joining is possible: both files need the same encoder and options, with frames stored in order of time.
    """
    if probe_video(first).setup != probe_video(second).setup:
        return False
    with open_video(second) as source, av.open(str(out), "w", format="mp4") as output:
        stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
        stream.time_base = unit = 1 / rate
        count = 0
        for path, most in ((first, frames), (second, None)):
            for packet in _in_order(path, rate, most):
                packet.stream, packet.time_base = stream, unit
                packet.pts = packet.dts = count
                packet.duration = 1
                output.mux(packet)
                count += 1
            if path == first and count != frames:
                return False
    return True


def _in_order(path: Path, rate: Fraction, most: int | None) -> Iterator[Any]:
    """Yield up to `most` packets, and stop at the first packet that is out of order."""
    source = open_video(path)
    with source:
        stream = source.streams.video[0]
        step = 1 / (rate * stream.time_base)
        packets = (packet for packet in source.demux(stream) if packet.size)
        for number, packet in enumerate(packets):
            if number == most or packet.pts != packet.dts or packet.pts * step.denominator != number * step.numerator:
                return
            yield packet


class VideoFiles:
    """A writer for the video files of one camera; it rewrites the last file with each episode.

    Args:
        folder: folder of the dataset.
        info: the dataset's info.
        key: name of the feature.
        last: the last file that shows an episode, or None.
        frames: number of valid frames in the last file.
    """

    def __init__(self, folder: Path, info: Info, key: str, last: FilePlace | None, frames: int):
        self._folder, self._info, self._key = folder, info, key
        self._place, self._frames = last, frames
        remove_beyond(folder / "videos" / key, last, ".mp4")

    def append(self, episode: Path, frames: int) -> tuple[FilePlace, int]:
        """Add an episode's video file; return the place of its new file, and the number of frames before it there."""
        if self._place is not None and (start := self._join(episode, frames)) is not None:
            return self._place, start
        following = FilePlace(0, 0) if self._place is None else self._place.following(self._info.chunks_size)
        self._place, self._frames = following, frames
        settle_file(episode, self._path())
        return self._place, 0

    def _path(self) -> Path:
        assert self._place is not None
        return find_file(self._folder, self._info.video_file(self._key, self._place))

    def _join(self, episode: Path, frames: int) -> int | None:
        path, start = self._path(), self._frames
        size = path.stat().st_size + episode.stat().st_size
        if size >= self._info.video_files_size_in_mb * MEGABYTE:
            return None
        joined = episode.with_name(f"{episode.name}-joined")
        try:
            if not join_videos(path, start, episode, joined, self._info.rate):
                return None
            settle_file(joined, path)
        finally:
            joined.unlink(missing_ok=True)
        self._frames += frames
        episode.unlink()
        return start
