"""Content of a dataset's meta/info.json: its features, sizes and file paths."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_rl.datasets.lerobot.dataset_files import DatasetError, FilePlace, check_pattern, damaged
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.system.untrusted_files import check_ends, parse_json, shorten

VERSION = "v3.0"
INFO, STATISTICS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

MOST_NUMBERS, RATES = 2**28, (1e-3, 1e6)
"""Numbers of a frame's value at most; the lowest and highest number of frames per second."""
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
REWARD, SUCCESS, DONE, SOURCE = "next.reward", "next.success", "next.done", "source"


@dataclass(frozen=True)
class Feature:
    """A feature, of which every frame has a value.

    Attributes:
        dtype: a NumPy dtype by name, "string", "image" (a PNG in the table) or "video".
        shape: shape of one frame's value; (1,) for a single number, (height, width, 3), or (3, height, width) in other
            programs, for pictures.
        names: names of the entries.
        info: for videos: codec, pixel format and size.
    """

    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: dict[str, Any] | None = None

    @property
    def is_image(self) -> bool:
        return self.dtype in ("image", "video")

    @property
    def is_depth(self) -> bool:
        info = self.info or {}
        return bool(info.get("video.is_depth_map") or info.get("is_depth_map"))

    @property
    def numeric(self) -> bool:
        try:
            return np.dtype(self.dtype).kind in "biuf"
        except (TypeError, ValueError, SyntaxError):  # a comma makes NumPy parse the text
            return False

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Return the shape of one frame's value in memory: pictures are [height, width, 3]."""
        channels_first = self.is_image and len(self.shape) == 3 and self.shape[0] == 3 != self.shape[2]
        return (*self.shape[1:], 3) if channels_first else self.shape

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> "Feature":
        """Parse an entry of `features`; raise KeyError, TypeError or ValueError if it is invalid."""
        info, dtype = entry.get("info") or entry.get("video_info"), entry["dtype"]
        if not isinstance(dtype, str) or not isinstance(info, dict | None):
            raise TypeError(f"dtype {dtype!r:.80} should be text, and info a mapping")
        shape, names = tuple(map(int, entry["shape"])), entry.get("names")
        if not 1 <= math.prod(shape) <= MOST_NUMBERS or any(size < 1 for size in shape):
            raise ValueError(f"shape {shape!r:.80} is not that of a frame's value")
        json.dumps(names, ensure_ascii=False).encode()  # raises UnicodeEncodeError
        return Feature(dtype, shape, names, info)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `features` in meta/info.json."""
        entry = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return entry if self.info is None else entry | {"info": self.info}


BOOKKEEPING = {
    "timestamp": Feature("float32", (1,)),
    "frame_index": Feature("int64", (1,)),
    "episode_index": Feature("int64", (1,)),
    "index": Feature("int64", (1,)),
    "task_index": Feature("int64", (1,)),
}
"""Features that every dataset has and that follow from the order of its frames; `timestamp` in seconds."""


def make_features(spec: SimulatorSpec, images: Literal["video", "png"] = "video") -> dict[str, Feature]:
    """Return the features that are recorded in each control step of a simulator.

    They are the pictures and the state before the step, the executed action, the reward, success after the step,
    whether it was the episode's last step, and the `Source` of the action.
    """
    dtype = "video" if images == "video" else "image"
    seen = {
        f"{IMAGES}{camera.name}": Feature(dtype, (camera.height, camera.width, 3), ["height", "width", "channels"])
        for camera in spec.cameras
    }
    return {
        **seen,
        STATE: Feature("float32", (len(spec.state_names),), list(spec.state_names)),
        ACTION: Feature("float32", (spec.action_dim,), list(spec.action_names)),
        REWARD: Feature("float32", (1,)),
        SUCCESS: Feature("bool", (1,)),
        DONE: Feature("bool", (1,)),
        SOURCE: Feature("uint8", (1,)),
    }


@dataclass(frozen=True)
class Info:
    """The content of meta/info.json.

    Attributes:
        fps: frames per second.
        features: features by name, including `BOOKKEEPING`.
        robot_type: type of the controlled robot.
        total_episodes, total_frames, total_tasks: size of the dataset. Data beyond it in the files is not valid.
        chunks_size: files in a folder.
        data_files_size_in_mb, video_files_size_in_mb: largest size of a file; a new file is started instead.
        splits: ranges of episodes by name.
        data_path, video_path: patterns of file names.
        other: further keys, kept unchanged.
    """

    fps: float
    features: dict[str, Feature]
    robot_type: str | None = None
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: float = 100
    video_files_size_in_mb: float = 200
    splits: dict[str, str] = field(default_factory=dict)
    data_path: str = DATA
    video_path: str | None = VIDEO
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> Fraction:
        """Return the frames per second as a fraction, as videos need it."""
        return Fraction(self.fps).limit_denominator(10_000)

    @property
    def videos(self) -> list[str]:
        """Return the names of the features that are videos."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    def data_file(self, place: FilePlace) -> str:
        """Return the path of a file of frames, relative to the dataset's folder."""
        return self.data_path.format(chunk_index=place.chunk, file_index=place.file)

    def video_file(self, key: str, place: FilePlace) -> str:
        """Return the path of a camera's video file, relative to the dataset's folder."""
        return (self.video_path or VIDEO).format(video_key=key, chunk_index=place.chunk, file_index=place.file)

    def with_episode(self, frames: int, tasks: int) -> "Info":
        """Return the info after adding an episode of `frames` frames; `tasks` is the new total of tasks."""
        episodes = self.total_episodes + 1
        return replace(
            self,
            total_episodes=episodes,
            total_frames=self.total_frames + frames,
            total_tasks=tasks,
            splits={"train": f"0:{episodes}"},
        )

    def to_json(self) -> str:
        """Return the text of meta/info.json."""
        entries = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "other"}
        entries["features"] = {name: feature.to_json() for name, feature in self.features.items()}
        entries["fps"] = int(self.fps) if self.fps == int(self.fps) else self.fps
        return json.dumps({"codebase_version": VERSION, **entries, **self.other}, indent=4, ensure_ascii=False)

    @staticmethod
    def from_json(text: str, where: str) -> "Info":
        """Parse the text of meta/info.json; raise `DatasetError` if it is damaged or of another version."""
        found = parse_json(text, f"{where} does not describe a LeRobotDataset: it", DatasetError)
        if not isinstance(found, dict) or "codebase_version" not in found:
            raise DatasetError(
                f"{where} does not describe a LeRobotDataset: it has no 'codebase_version'.", code="not-a-dataset"
            )
        if (version := str(found.pop("codebase_version"))) != VERSION:
            remedy = (
                "Convert it with lerobot: python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=<name> "
                "(a dataset of v2.0 to v2.1 first)."
                if version.startswith("v2")
                else "Use the version of lerobot that wrote it to convert it."
            )
            raise DatasetError(
                f"{where}: a LeRobotDataset of {version}, and this program reads {VERSION}. {remedy}",
                code="dataset-version-unsupported",
            )
        try:
            found["features"] = {name: Feature.from_json(entry) for name, entry in found["features"].items()}
            names = {f.name for f in fields(Info)} - {"other"}
            known = {name: found.pop(name) for name in names & set(found)}
            info = Info(**known, other=found)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise damaged(f"{where} is damaged: {type(error).__name__}: {shorten(error)}.") from error
        info._check_entries(where)
        return info

    def _check_entries(self, where: str) -> None:
        """Check the types of values, names and file patterns of an untrusted file."""
        for key in ("fps", "data_files_size_in_mb", "video_files_size_in_mb"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise damaged(f"{where} is damaged: {key} should be a positive number.")
        if not RATES[0] <= self.fps <= RATES[1]:
            raise damaged(f"{where} is damaged: fps should lie between {RATES[0]:g} and {RATES[1]:g}.")
        for key in ("total_episodes", "total_frames", "total_tasks", "chunks_size"):
            value = getattr(self, key)
            if type(value) is not int or value < 0:
                raise damaged(f"{where} is damaged: {key} should be a whole number from 0.")
        for name in self.features:  # the name of a video becomes a folder
            if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
                raise damaged(f"{where} is damaged: the feature name {name!r:.200} is empty, a path, or not printable.")
        check_pattern(self.data_path, ("chunk_index", "file_index"), f"{where}: data_path")
        if self.video_path is not None:
            check_pattern(self.video_path, ("video_key", "chunk_index", "file_index"), f"{where}: video_path")


def read_info(folder: Path) -> Info:
    """Read the meta/info.json of an existing dataset.

    Raises:
        DatasetError: the folder does not hold a dataset of this version.
    """
    path = folder / INFO
    check_ends(path, DatasetError)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{folder} holds no LeRobotDataset: {path} cannot be read ({error}).", code="not-a-dataset"
        ) from error
    return Info.from_json(text, str(path))


def make_info(features: Mapping[str, Feature], fps: float, codec: str, **settings: Any) -> Info:
    """Return the info of a new, empty dataset; `settings` are further attributes of `Info`.

    Raises:
        DatasetError: a feature, the frame rate or a limit is invalid.
    """
    described = dict(features)
    for name, feature in features.items():
        _check_feature(name, feature)
        if feature.dtype == "video":
            height, width, channels = feature.memory_shape
            about = {
                "video.height": height,
                "video.width": width,
                "video.codec": "av1" if "av1" in codec else codec,
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": int(fps),
                "video.channels": channels,
                "has_audio": False,
                "is_depth_map": False,
            }
            described[name] = replace(feature, info=about)
    info = Info(fps, described | BOOKKEEPING, **settings)
    if min(fps, info.chunks_size, info.data_files_size_in_mb, info.video_files_size_in_mb) <= 0:
        raise DatasetError(
            "fps, chunks_size, data_files_size_in_mb and video_files_size_in_mb must be positive",
            code="value-out-of-range",
        )
    return info if info.videos else replace(info, video_path=None)


def _check_feature(name: str, feature: Feature) -> None:
    if name in BOOKKEEPING or "/" in name or not name:
        problem = f"the name must not contain '/', or be one of {', '.join(BOOKKEEPING)}"
    elif not feature.shape or min(feature.shape) < 1:
        problem = f"shape {feature.shape} must have one size at least, all positive"
    elif feature.is_image and (len(feature.shape) != 3 or feature.memory_shape[2] != 3):
        problem = f"a picture's shape is (height, width, 3), got {feature.shape}"
    elif feature.dtype == "video" and (feature.memory_shape[0] % 2 or feature.memory_shape[1] % 2):
        problem = f"videos need an even height and width, got {feature.shape}; store pictures as PNG"
    elif not (feature.numeric or feature.is_image or feature.dtype == "string"):
        problem = f"dtype '{feature.dtype}' is not one of video, image, string, bool, integers and floats"
    else:
        return
    raise DatasetError(f"feature '{name}': {problem}", code="feature-invalid")
