"""A small dataset whose every value says which episode and frame it belongs to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.info import Feature
from embodied_rl.interfaces.sim import Array

FPS, HEIGHT, WIDTH = 20, 48, 64
PICTURE = ["height", "width", "channels"]
NUMBERS = {
    "observation.state": Feature("float32", (3,), ["a", "b", "c"]),
    "action": Feature("float32", (2,), ["x", "y"]),
    "next.reward": Feature("float32", (1,)),
    "next.done": Feature("bool", (1,)),
    "source": Feature("uint8", (1,)),
    "forces": Feature("float64", (2, 3)),
}
VIDEO = {"observation.images.front": Feature("video", (HEIGHT, WIDTH, 3), PICTURE)}
PNG = {"observation.images.wrist": Feature("image", (HEIGHT, WIDTH, 3), PICTURE)}
FEATURES = {**VIDEO, **PNG, **NUMBERS}


def length(episode: int) -> int:
    return 5 + 3 * (episode % 3)


def task(episode: int) -> str:
    return ("push the block", "öffne die Tür", "stack")[episode % 3]


def grey(episode: int, number: int) -> int:
    """Of a frame's pictures: neighbours differ by far more than a codec's error."""
    return (37 * episode + 20 * number) % 251


def frame(episode: int, number: int, features: dict[str, Feature] = FEATURES) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    colours = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    values = {
        "observation.images.front": np.full((HEIGHT, WIDTH, 3), grey(episode, number), np.uint8),
        "observation.images.wrist": colours,
        "observation.state": rng.standard_normal(3).astype(np.float32),
        "action": rng.standard_normal(2).astype(np.float32),
        "next.reward": float(episode + 0.01 * number),
        "next.done": number == length(episode) - 1,
        "source": number % 5,
        "forces": rng.standard_normal((2, 3)),
    }
    return {name: values[name] for name in features}


def frames(episode: int, features: dict[str, Feature] = FEATURES) -> Iterator[dict[str, Any]]:
    return (frame(episode, number, features) for number in range(length(episode)))


def record(writer: DatasetWriter, episodes: range, features: dict[str, Feature] = FEATURES) -> None:
    for episode in episodes:
        assert writer.add_episode(frames(episode, features), task(episode)) == episode


def made(folder: Path, episodes: int, features: dict[str, Feature] = FEATURES, **settings: Any) -> Path:
    with DatasetWriter(folder, features, FPS, "toy", **settings) as writer:
        record(writer, range(episodes), features)
    return folder


def where(dataset: LeRobotDataset) -> list[tuple[int, int]]:
    """Episode and number of each frame."""
    return [(episode.index, number) for episode in dataset.episodes for number in range(len(episode))]


def assert_holds(dataset: LeRobotDataset, episodes: int, features: dict[str, Feature] = FEATURES) -> None:
    """Those episodes, each wholly, and nothing else."""
    wanted = [(episode, number) for episode in range(episodes) for number in range(length(episode))]
    assert where(dataset) == wanted
    assert dataset.info.total_episodes == len(dataset.episodes) == episodes
    if not episodes:
        return
    samples = dataset.read(range(len(dataset)))
    for row, (episode, number) in enumerate(wanted):
        for name, value in frame(episode, number, features).items():
            assert_value(name, value, samples, row)
        assert samples.observation.instruction[row] == task(episode)
        assert samples.episode[row] == episode


def assert_value(name: str, value: Any, samples: Any, row: int) -> None:
    shown = samples.observation
    if name == "observation.images.front":
        assert_grey(shown.images["front"][row], int(value[0, 0, 0]))
    elif name == "observation.images.wrist":
        np.testing.assert_array_equal(shown.images["wrist"][row], value)
    elif name == "observation.state":
        np.testing.assert_array_equal(shown.state[row], value)
    elif name == "action":
        np.testing.assert_array_equal(samples.actions[row, 0], value)
    else:
        wanted = np.asarray(value, FEATURES[name].dtype).reshape(FEATURES[name].shape)
        np.testing.assert_array_equal(samples.extra[name][row], wanted)


def assert_grey(picture: Array, wanted: int) -> None:
    """Of that grey but for the codec's error, which is far smaller than what sets frames apart."""
    assert abs(picture.astype(int) - wanted).max() <= 6
