"""Datasets by lerobot's own code: run with a Python in which lerobot works, for that is no dependency of ours.

    python lerobot_dataset.py write FOLDER [CODEC]   # a small dataset, written by lerobot
    python lerobot_dataset.py append FOLDER          # two more episodes, by lerobot, in a dataset of the same features
    python lerobot_dataset.py read FOLDER            # what lerobot reads in a dataset of ours, as JSON

PYTHONPATH names the checkout, for `support`.
Values are those of `recipe`, and of `frame` below. torchvision is replaced, for where it is missing: of it, lerobot's
datasets use a video reader, which PyAV is behind in any case, and `ToTensor`. Works with lerobot 0.4.4 and
0.6.2, commit 7427f31; tests/datasets/data/lerobot_044 is what `write` of 0.4.4 left.
"""

import json
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import torch

from tests.support import recipe

FPS, HEIGHT, WIDTH, LENGTHS = 10, 48, 64, (5, 7)
HORIZON = 4
FEATURES = {
    "observation.images.front": ("video", (HEIGHT, WIDTH, 3), ["height", "width", "channels"]),
    "observation.images.wrist": ("image", (HEIGHT, WIDTH, 3), ["height", "width", "channels"]),
    "observation.state": ("float32", (3,), ["x", "y", "z"]),
    "action": ("float32", (2,), ["dx", "dy"]),
    "next.done": ("bool", (1,), None),
    "source": ("uint8", (1,), None),
    "forces": ("float32", (2, 3), None),
}


def task(episode: int) -> str:
    return ("push the block", "open the drawer – slowly")[episode % 2]


def frame(episode: int, number: int, length: int) -> dict[str, Any]:
    """One frame; every picture of an episode has its own grey on the left, and the same colour on the right."""
    name = f"dataset/{episode}/{number}"
    return {
        "observation.images.front": picture(10 + 20 * number),
        "observation.images.wrist": picture(15 + 20 * number),
        "observation.state": recipe.normal(f"{name}/state", (3,)),
        "action": recipe.normal(f"{name}/action", (2,)),
        "next.done": np.array([number == length - 1]),
        "source": np.array([number % 3], np.uint8),
        "forces": recipe.normal(f"{name}/forces", (2, 3)),
    }


def picture(grey: int) -> np.ndarray:
    picture = np.full((HEIGHT, WIDTH, 3), grey, np.uint8)
    picture[:, WIDTH // 2 :] = (200, 60, 20)
    return picture


class VideoReader:
    """What lerobot uses of torchvision.io.VideoReader, on PyAV."""

    def __init__(self, path: str, _: str):
        self.container = av.open(path)
        self.frames: Iterator[Any] = iter(())

    def seek(self, seconds: float, keyframes_only: bool) -> None:
        stream = self.container.streams.video[0]
        self.container.seek(int(seconds / stream.time_base), stream=stream)
        self.frames = self.container.decode(stream)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for frame in self.frames:
            data = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"data": data, "pts": float(frame.pts * frame.time_base)}


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


class Replaced(ModuleType):
    """A module of torchvision: what is not given is there, and does nothing."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def replace_torchvision() -> None:
    parts = ("", ".transforms", ".transforms.v2", ".transforms.v2.functional", ".transforms.functional", ".io")
    modules = {part: Replaced(f"torchvision{part}") for part in parts}
    modules[""].set_video_backend = lambda _: None
    modules[".transforms"].ToTensor, modules[".io"].VideoReader = ToTensor, VideoReader
    for part, module in modules.items():
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
        if part:
            parent, _, name = part.rpartition(".")
            setattr(modules[parent], name, module)


def record(dataset: Any, episodes: range) -> None:
    for episode in episodes:
        length = LENGTHS[episode % len(LENGTHS)]
        for number in range(length):
            dataset.add_frame({**frame(episode, number, length), "task": task(episode)})
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()


def write(folder: str, codec: str = "") -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {name: {"dtype": d, "shape": s, "names": n} for name, (d, s, n) in FEATURES.items()}
    chosen = {"vcodec": codec} if codec else {}  # lerobot 0.4; later versions take an object
    dataset = LeRobotDataset.create("own/small", FPS, features, root=folder, robot_type="toy", **chosen)
    record(dataset, range(len(LENGTHS)))


def append(folder: str) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if hasattr(LeRobotDataset, "resume"):
        dataset = LeRobotDataset.resume("own/small", root=folder)
    else:  # lerobot 0.4
        dataset = LeRobotDataset("own/small", root=folder)
        dataset.episode_buffer = dataset.create_episode_buffer()
    record(dataset, range(dataset.meta.total_episodes, dataset.meta.total_episodes + 2))


def read(folder: str) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    fps = json.loads(Path(folder, "meta/info.json").read_text())["fps"]
    ahead = {"action": [step / fps for step in range(HORIZON)]}
    dataset = LeRobotDataset("own/small", root=folder, delta_timestamps=ahead, video_backend="pyav")
    statistics = {
        key: {name: np.asarray(array).tolist() for name, array in entry.items()}
        for key, entry in dataset.meta.stats.items()
    }
    rows = [row_of(dataset[index]) for index in range(len(dataset))]
    found = {"fps": dataset.fps, "episodes": dataset.num_episodes, "rows": rows, "statistics": statistics}
    json.dump(found, sys.stdout)


def row_of(item: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they are; of a picture, the mean colour of each half, 0 to 255."""
    row: dict[str, Any] = {}
    for name, value in item.items():
        if name.startswith("observation.images."):
            half = value.shape[-1] // 2
            halves = torch.stack([value[:, :, :half], value[:, :, half:]]).flatten(2).mean(-1)
            row[name] = (halves * 255).tolist()
        else:
            row[name] = value.tolist() if isinstance(value, torch.Tensor) else value
    return row


if __name__ == "__main__":
    replace_torchvision()
    {"write": write, "append": append, "read": read}[sys.argv[1]](*sys.argv[2:])
