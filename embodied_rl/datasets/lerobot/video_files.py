"""Encoder and decoder of videos, and writer that joins an episode's video to a video file.

Encoded videos have no B-frames, and every other frame is a key frame, as in lerobot. A decoder therefore reaches
any frame after a seek in at most two steps.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from embodied_rl.datasets.lerobot.dataset_files import KEY, FilePlace, damaged, find_file, remove_beyond
from embodied_rl.datasets.lerobot.info import Feature, Info
from embodied_rl.datasets.lerobot.tables import MEGABYTE
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.atomic_write import make_folder, settle_file

CODECS: dict[str, dict[str, str]] = {
    "h264": {"g": "2", "bf": "0", "crf": "20", "preset": "veryfast"},
    "libsvtav1": {"g": "2", "crf": "30", "preset": "12"},
}
"""Options by encoder."""


@contextmanager
def keep_priority() -> Iterator[None]:
    """Restore the scheduling policy and priority of all threads to those of this thread at the end of the context.

    If the process runs as root, SVT-AV1 gives the thread that opens it, and its own threads, real-time priority 99.
    Child processes inherit it, and would block all other processes on their cores.
    """
    threads = Path("/proc/self/task")
    if not threads.is_dir():
        yield
        return
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (int(task.name) for task in threads.iterdir()):
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
    """An encoder of one camera's video of an episode to an MP4 file; `codec` is one of `CODECS`."""

    def __init__(self, path: Path, codec: str, rate: Fraction, feature: Feature):
        self.path, self.frames, self._rate = path, 0, rate
        self._output = av.open(str(path), "w", format="mp4")
        self._stream: Any = self._output.add_stream(codec, rate=rate, options=CODECS[codec])
        self._stream.height, self._stream.width = feature.memory_shape[:2]
        self._stream.pix_fmt = "yuv420p"
        self._converter = VideoReformatter()

    def add(self, picture: Array) -> None:
        """Encode the next frame, uint8 [h, w, 3]."""
        colours = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame = self._converter.reformat(colours, format="yuv420p", threads=1)  # starting threads takes longer
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


def probe_video(path: Path) -> tuple[float, bytes]:
    """Return the length of a video in seconds, and the codec's extra data for a decoder.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            seconds = float((stream.duration or 0) * (stream.time_base or 0))
            return seconds, bytes(stream.codec_context.extradata or b"")
    except (OSError, IndexError, FFmpegError) as error:
        raise damaged(f"{path} is missing or damaged ({error})") from error


class Decoder:
    """A decoder of the frames of one video file; it decodes consecutive frames in sequence, and seeks for others.

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
            raise damaged(f"{path} is missing or damaged ({error})") from error
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
        times = self._pts * self._unit
        after = np.clip(np.searchsorted(times, seconds), 0, len(times) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(seconds - times[before] <= times[after] - seconds, before, after)
        far = np.abs(times[nearest] - seconds)
        if not (far <= tolerance).all():  # also where a time is NaN
            worst = far.argmax()
            raise damaged(
                f"{self._path} has no frame at {seconds[worst]:.4f} s: the nearest is at "
                f"{times[nearest[worst]]:.4f} s. The video is shorter than its episodes, or damaged; copy it again."
            )
        found = {int(number): self._decode(int(number)) for number in np.unique(nearest)}
        return np.stack([found[number] for number in nearest.tolist()])

    def close(self) -> None:
        """Close the file."""
        self._container.close()

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
            raise damaged(f"{self._path} is damaged at frame {number} ({error})") from error
        raise damaged(f"{self._path} is damaged: frame {number} cannot be decoded; copy it again.")


def join_videos(first: Path, frames: int, second: Path, out: Path, rate: Fraction) -> bool:
    """Write the first `frames` frames of one file, then all frames of another, without encoding them again.

    Returns:
        Whether joining is possible: both files need the same encoder and options, with frames stored in order of time.
    """
    if probe_video(first)[1] != probe_video(second)[1]:
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
    with open_video(path) as source:
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
        last: the last file that shows an episode, or None.
        frames: number of valid frames in the last file.
    """

    def __init__(self, folder: Path, info: Info, key: str, last: FilePlace | None, frames: int):
        self._folder, self._info, self._key = folder, info, key
        self._place, self._frames = last, frames
        remove_beyond(folder / "videos" / key, last, ".mp4")

    def append(self, episode: Path, frames: int) -> tuple[FilePlace, int]:
        """Add an episode's video file; return the place of its new file, and the number of frames before it there."""
        if self._place is not None:
            path, start = self._find(self._place), self._frames
            joined = episode.with_name(f"{episode.name}-joined")
            size = path.stat().st_size + episode.stat().st_size
            try:
                fits = size < self._info.video_files_size_in_mb * MEGABYTE
                if fits and join_videos(path, start, episode, joined, self._info.rate):
                    settle_file(joined, path)
                    self._frames += frames
                    episode.unlink()
                    return self._place, start
            finally:
                joined.unlink(missing_ok=True)
        following = FilePlace(0, 0) if self._place is None else self._place.following(self._info.chunks_size)
        self._place, self._frames = following, frames
        path = self._find(following)
        make_folder(path.parent, KEY)
        settle_file(episode, path)
        return following, 0

    def _find(self, place: FilePlace) -> Path:
        return find_file(self._folder, self._info.video_file(self._key, place))
