"""Reading LeRobotDataset v3.0 of this program and of lerobot, and errors of damaged datasets."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embodied_rl.datasets.lerobot import dataset_reader, feature_statistics
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.episode_files import read_statistics
from embodied_rl.datasets.lerobot.info import DatasetError, Feature
from embodied_rl.datasets.lerobot.tables import read_numbers
from embodied_rl.datasets.lerobot.video_files import Decoder
from tests.support import recipe
from tests.support.making_datasets import FPS, NUMBERS, PNG, VIDEO, assert_grey, frame, grey, length, made, task, where
from tests.support.refusals import refuses

THEIRS = Path(__file__).parent / "data/lerobot_044"
"""Written by lerobot 0.4.4 with tests/parity/lerobot_dataset.py, which defines its values."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Nine episodes in several files of each kind."""
    path = tmp_path_factory.mktemp("read") / "data"
    return made(path, 9, chunks_size=2, data_files_size_in_mb=0.2, video_files_size_in_mb=0.006)


@pytest.fixture
def dataset(folder) -> LeRobotDataset:
    return LeRobotDataset(folder)


def test_a_dataset_of_lerobot_is_read() -> None:
    dataset = LeRobotDataset(THEIRS)
    assert (len(dataset), len(dataset.episodes), dataset.info.fps, dataset.info.robot_type) == (12, 2, 10, "toy")
    assert dataset.info.features["observation.images.front"].info["video.codec"] == "av1"
    samples = dataset.read(range(12), 2)
    for row, (episode, number) in enumerate(where(dataset)):
        name = f"dataset/{episode}/{number}"
        np.testing.assert_array_equal(samples.observation.state[row], recipe.normal(f"{name}/state", (3,)))
        np.testing.assert_array_equal(samples.actions[row, 0], recipe.normal(f"{name}/action", (2,)))
        np.testing.assert_array_equal(samples.extra["forces"][row], recipe.normal(f"{name}/forces", (2, 3)))
        assert samples.extra["source"][row] == number % 3
        assert samples.extra["next.done"][row] == (number == len(dataset.episodes[episode]) - 1)
        front, wrist = (samples.observation.images[camera][row] for camera in ("front", "wrist"))
        assert abs(front[:, :28].astype(int) - (10 + 20 * number)).max() <= 3
        assert abs(front[:, 36:].astype(int) - (200, 60, 20)).max() <= 3
        assert (wrist[:, :32] == 15 + 20 * number).all() and (wrist[:, 32:] == (200, 60, 20)).all()
    texts = ("push the block", "open the drawer – slowly")
    assert samples.observation.instruction == tuple(texts[episode] for episode in samples.episode)


def test_statistics_are_those_of_lerobot() -> None:
    """Mean, std and bounds to the precision of float32; quantiles to a bin of its histogram, (max - min) / 5000."""
    dataset = LeRobotDataset(THEIRS)
    for episode, theirs in zip(dataset.episodes, read_statistics(THEIRS, 2), strict=True):
        for key in ("observation.state", "action", "forces", "timestamp", "frame_index", "source", "index"):
            rows = dataset.column(key, range(episode.start, episode.stop))
            ours = feature_statistics.summarise(rows)
            assert {name: array.shape for name, array in ours.items()} == {
                name: array.shape for name, array in theirs[key].items()
            }
            for name in ("mean", "std", "min", "max", "count"):
                np.testing.assert_allclose(ours[name], theirs[key][name], atol=2e-6)
            width = (ours["max"] - ours["min"]) / 5000
            for name in feature_statistics.QUANTILES:
                assert (abs(ours[name] - theirs[key][name]) <= width + 1e-6).all()


def test_statistics_of_pictures_are_those_of_lerobot() -> None:
    """Except std: lerobot 0.4.4 squares uint8 without widening it; later versions do not."""
    dataset = LeRobotDataset(THEIRS)
    for episode, theirs in zip(dataset.episodes, read_statistics(THEIRS, 2), strict=True):
        colours = feature_statistics.ColourStatistics()
        for picture in dataset.images("wrist", range(episode.start, episode.stop)):
            colours.add(picture)
        ours, wanted = colours.summary(), theirs["observation.images.wrist"]
        for name, array in wanted.items():
            assert ours[name].shape == array.shape
            if name != "std":
                np.testing.assert_allclose(ours[name], array, atol=2 / 5000)


@pytest.mark.thorough
def test_frames_are_returned_in_the_given_order(dataset) -> None:
    """Forwards, backwards, across files and twice, with numbers and picture of each frame."""
    rng = np.random.default_rng(0)
    places = where(dataset)
    observation = dataset.read([3, 1]).observation
    assert all(image.dtype == np.uint8 and image.shape == (2, 48, 64, 3) for image in observation.images.values())
    assert observation.state.dtype == np.float32 and observation.privileged is None
    for rows in (np.arange(len(dataset)), np.arange(len(dataset))[::-1], rng.integers(0, len(dataset), 200)):
        samples = dataset.read(rows)
        for position, row in enumerate(rows.tolist()):
            episode, number = places[row]
            wanted = frame(episode, number)
            assert_grey(samples.observation.images["front"][position], grey(episode, number))
            np.testing.assert_array_equal(
                samples.observation.images["wrist"][position], wanted["observation.images.wrist"]
            )
            np.testing.assert_array_equal(samples.observation.state[position], wanted["observation.state"])
            assert samples.observation.instruction[position] == task(episode)


def test_a_small_cache_gives_the_same_frames(folder, dataset, monkeypatch) -> None:
    monkeypatch.setattr(dataset_reader, "OPEN_FILES", 1)
    rows = np.random.default_rng(1).permutation(len(dataset))[:40]
    poor, rich = LeRobotDataset(folder, cache_mb=0).read(rows), dataset.read(rows)
    for camera in ("front", "wrist"):
        np.testing.assert_array_equal(poor.observation.images[camera], rich.observation.images[camera])
    np.testing.assert_array_equal(poor.actions, rich.actions)


def test_chunks_end_with_their_episode(dataset) -> None:
    horizon, rows = 4, range(len(dataset))
    samples = dataset.read(rows, horizon)
    assert samples.actions.shape == (len(dataset), horizon, 2)
    for row, (episode, number) in enumerate(where(dataset)):
        last = length(episode) - 1
        for step in range(horizon):
            wanted = frame(episode, min(number + step, last))["action"]
            np.testing.assert_array_equal(samples.actions[row, step], wanted)
            assert samples.padding[row, step] == (number + step > last)


@pytest.mark.thorough
def test_picture_shapes_may_have_channels_first(tmp_path) -> None:
    path = shutil.copytree(THEIRS, tmp_path / "data") / "meta/info.json"
    info = json.loads(path.read_text())
    for camera in ("front", "wrist"):
        info["features"][f"observation.images.{camera}"] |= {"shape": [3, 48, 64]}
    path.write_text(json.dumps(info))
    turned, plain = LeRobotDataset(tmp_path / "data").read(range(12)), LeRobotDataset(THEIRS).read(range(12))
    for camera, image in plain.observation.images.items():
        np.testing.assert_array_equal(turned.observation.images[camera], image)
    added = {f"observation.images.{camera}": image[0] for camera, image in plain.observation.images.items()}
    added |= {"observation.state": np.zeros(3), "action": np.zeros(2), "next.done": True, "source": 1}
    added |= {"forces": np.ones((2, 3))}
    with DatasetWriter.resume(tmp_path / "data") as writer:
        writer.add_episode([added], "more")
    continued = LeRobotDataset(tmp_path / "data").read([12, 0]).observation
    np.testing.assert_array_equal(continued.images["wrist"][0], continued.images["wrist"][1])
    assert abs(continued.images["front"][0].astype(int) - continued.images["front"][1]).mean() < 3


def test_statistics_are_those_of_the_frames(dataset) -> None:
    """NumPy's; quantiles, `inverted_cdf`, to half a bin of (max - min) / 5000."""
    rows = range(len(dataset))
    for key in ("observation.state", "action", "next.reward", "source", "next.done", "timestamp"):
        values, found = dataset.column(key, rows).astype(np.float64), dataset.statistics[key]
        np.testing.assert_allclose(found["mean"], values.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found["std"], values.std(0), rtol=1e-9)
        np.testing.assert_array_equal(found["min"], values.min(0))
        np.testing.assert_array_equal(found["max"], values.max(0))
        assert found["count"] == len(dataset)
        for name, share in feature_statistics.QUANTILES.items():
            wanted = np.quantile(values, share, axis=0, method="inverted_cdf")
            assert (abs(found[name] - wanted) <= 0.5001 * (values.max(0) - values.min(0)) / 5000).all()


def test_statistics_of_pictures_are_those_of_the_pictures(dataset) -> None:
    """Per channel, in [0, 1]; for videos, those of the pictures before they were encoded."""
    pictures = dataset.images("wrist", range(len(dataset))) / 255
    found = dataset.statistics["observation.images.wrist"]
    assert all(array.shape == ((1,) if name == "count" else (3, 1, 1)) for name, array in found.items())
    np.testing.assert_allclose(found["mean"].ravel(), pictures.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(found["std"].ravel(), pictures.std((0, 1, 2)), rtol=1e-9)
    first = feature_statistics.ColourStatistics()
    for picture in dataset.images("wrist", range(5)):
        first.add(picture)
    for name, share in feature_statistics.QUANTILES.items():
        wanted = np.quantile(pictures[:5].reshape(-1, 3), share, axis=0, method="inverted_cdf")
        np.testing.assert_allclose(first.summary()[name].ravel(), wanted, rtol=1e-9)
    greys = [grey(episode, number) / 255 for episode, number in where(dataset)]
    video = dataset.statistics["observation.images.front"]
    np.testing.assert_allclose(video["mean"].ravel(), np.mean(greys), rtol=1e-9)
    np.testing.assert_allclose(video["std"].ravel(), np.std(greys), rtol=1e-9)


def test_statistics_use_a_part_of_large_pictures() -> None:
    """As in lerobot from 300 pixels on: every n-th row and column, so that about 150 remain."""
    picture = np.zeros((480, 640, 3), np.uint8)
    picture[::4, ::4] = 255
    colours = feature_statistics.ColourStatistics()
    colours.add(picture)
    assert (colours.summary()["mean"] == 1).all()


def test_missing_statistics_are_combined_from_the_episodes(folder, tmp_path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    (tmp_path / "data/meta/stats.json").unlink()
    found, wanted = LeRobotDataset(tmp_path / "data").statistics["action"], LeRobotDataset(folder).statistics["action"]
    for name in ("mean", "std", "min", "max", "count"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9)


@pytest.mark.parametrize(("between", "group"), [(2, 12), (1, 2), (3, 250), (0, 250)])
def test_frames_of_any_encoder_are_found(tmp_path, between, group) -> None:
    """Far from key frames, and in streams with frames out of order."""
    count, path = 60, tmp_path / "video.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("h264", rate=FPS, options={"bf": f"{between}", "g": f"{group}"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 4 * number, np.uint8), format="rgb24")
            output.mux(stream.encode(picture))
        output.mux(stream.encode(None))
    decoder = Decoder(path)
    rng = np.random.default_rng(0)
    for numbers in (np.arange(count), np.arange(count)[::-1], rng.integers(0, count, 50), np.array([59])):
        pictures = decoder.frames(numbers / FPS, 0.5 / FPS)
        assert abs(pictures.mean((1, 2, 3)) - 4 * numbers).max() < 2
    for number in rng.integers(0, count, 30).tolist():
        assert abs(decoder.frames(np.array([number / FPS]), 0.5 / FPS).mean() - 4 * number) < 2
    with refuses("dataset-damaged", "3.0500 s", "2.9500 s"):
        decoder.frames(np.array([(count + 1) / FPS]), 0.5 / FPS)


def edited(key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "meta/info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return edit


def without(pattern: str) -> Callable[[Path], None]:
    return lambda folder: sorted(folder.glob(pattern))[-1].unlink()


def cut(pattern: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        path.write_bytes(path.read_bytes()[:100])

    return edit


def shortened(folder: Path) -> None:
    """Replace the last video by the first one, which is shorter."""
    first, *_, last = sorted(folder.glob("videos/*/*/*.mp4"), key=lambda path: path.stat().st_size)
    shutil.copy(first, last)


def narrowed(folder: Path) -> None:
    path = min(folder.glob("data/*/*.parquet"))
    pq.write_table(pq.read_table(path).drop_columns(["source"]), path)


def shifted(folder: Path) -> None:
    path = min(folder.glob("meta/episodes/*/*"))
    rows = pq.read_table(path).to_pylist()
    rows[3]["dataset_from_index"] -= 1
    pq.write_table(pa.Table.from_pylist(rows), path)


def feature(name: str, **changes: object) -> Callable[[Path], None]:
    """Damage that changes the description of a feature."""

    def edit(folder: Path) -> None:
        path = folder / "meta/info.json"
        info = json.loads(path.read_text())
        info["features"][name] |= changes
        path.write_text(json.dumps(info))

    return edit


def without_time(folder: Path) -> None:
    """Replace the time at which a clip begins by NaN."""
    path = min(folder.glob("meta/episodes/*/*"))
    rows = pq.read_table(path).to_pylist()
    rows[1]["videos/observation.images.front/from_timestamp"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows), path)


def named_twice(folder: Path) -> None:
    """Add a camera, with its videos, whose name is that of another one."""
    first, second = "observation.images.front", "observation.front"
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"][second] = info["features"][first]
    path.write_text(json.dumps(info))
    shutil.copytree(folder / "videos" / first, folder / "videos" / second)
    path = min(folder.glob("meta/episodes/*/*"))
    rows = pq.read_table(path).to_pylist()
    copied = [{key.replace(first, second): value for key, value in row.items()} for row in rows]
    pq.write_table(pa.Table.from_pylist([row | twin for row, twin in zip(rows, copied, strict=True)]), path)


DAMAGED = "dataset-damaged"


@pytest.mark.parametrize(
    ("damage", "code", "data"),
    [
        (edited("codebase_version", "v2.1"), "dataset-version-unsupported", ("v2.1", "convert_dataset_v21_to_v30")),
        (edited("codebase_version", "v4.0"), "dataset-version-unsupported", ("v4.0", "v3.0")),
        (edited("total_frames", 1000), DAMAGED, ("9 episodes", "1000 frames")),
        (edited("total_episodes", 10), DAMAGED, ("10 episodes",)),
        (edited("features", {"x": 1}), DAMAGED, ("info.json",)),
        (edited("fps", 10**400), DAMAGED, ("info.json", "fps")),
        (edited("fps", 1e-300), DAMAGED, ("info.json", "fps")),
        (feature("action", shape=[-1]), DAMAGED, ("info.json", "shape")),
        (feature("action", shape=[10**30]), DAMAGED, ("info.json", "shape")),
        (feature("action", names=["\ud800", "b"]), DAMAGED, ("info.json",)),
        (without_time, DAMAGED, ("episodes", "front")),
        (named_twice, DAMAGED, ("observation.front", "observation.images.front")),
        (without("meta/info.json"), "not-a-dataset", ("info.json",)),
        (without("meta/tasks.parquet"), DAMAGED, ("tasks.parquet",)),
        (without("meta/episodes/*/*"), DAMAGED, ("9 episodes",)),
        (without("data/*/*"), DAMAGED, ("data/", ".parquet")),
        (without("videos/*/*/*"), DAMAGED, ("videos/", ".mp4")),
        (cut("data/*/*"), DAMAGED, ("data/", ".parquet")),
        (cut("videos/*/*/*"), DAMAGED, ("videos/", ".mp4")),
        (cut("meta/info.json"), "file-damaged", ("info.json",)),
        (cut("meta/stats.json"), "file-damaged", ("stats.json",)),
        (shortened, DAMAGED, (".mp4", " s long")),
        (shifted, DAMAGED, ("episode 3",)),
        (narrowed, DAMAGED, ("'source'",)),
    ],
)
def test_damage_is_reported_when_a_dataset_is_opened(folder, tmp_path, damage, code, data) -> None:
    damage(shutil.copytree(folder, tmp_path / "data"))
    with refuses(code, *data, kind=DatasetError):
        LeRobotDataset(tmp_path / "data")


@pytest.mark.parametrize("number", [-1, 99])
def test_a_frame_of_a_task_that_is_not_listed_is_refused(folder, tmp_path, number) -> None:
    shutil.copytree(folder, tmp_path / "data")
    for path in (tmp_path / "data").glob("data/*/*.parquet"):
        table = pq.read_table(path)
        place = table.column_names.index("task_index")
        pq.write_table(table.set_column(place, "task_index", pa.array([number] * len(table), pa.int64())), path)
    with refuses(DAMAGED, f"task {number}"):
        LeRobotDataset(tmp_path / "data").read([0])


def test_a_frame_without_a_time_or_a_picture_is_refused(folder, tmp_path, monkeypatch) -> None:
    """A time that is NaN hides no other that is wrong."""
    dataset = LeRobotDataset(shutil.copytree(folder, tmp_path / "data"))
    read = LeRobotDataset.column
    times = {0: np.nan, 1: 7.0}

    def spoil(self: LeRobotDataset, name: str, rows: np.ndarray) -> np.ndarray:
        values = read(self, name, rows)
        if name == "timestamp":
            values[[row in times for row in rows]] = [[times[row]] for row in rows if row in times]
        return values

    monkeypatch.setattr(LeRobotDataset, "column", spoil)
    for rows in ([0], [0, 1, 2]):
        with refuses(DAMAGED, "has no frame at"):
            dataset.images("front", rows)
    for path in (tmp_path / "data").glob("data/*/*.parquet"):
        table, key = pq.read_table(path), "observation.images.wrist"
        place = table.column_names.index(key)
        empty = pa.array([{"bytes": None, "path": "a.png"}] * len(table), table.schema.field(key).type)
        pq.write_table(table.set_column(place, key, empty), path)
    with refuses(DAMAGED, "picture"):
        LeRobotDataset(tmp_path / "data").images("wrist", [0])


def test_missing_content_is_refused(dataset, tmp_path) -> None:
    with refuses("not-a-dataset", tmp_path):
        LeRobotDataset(tmp_path)
    with refuses("frame-out-of-range", "frame 72"):
        dataset.read([0, 72])
    with refuses("frame-out-of-range", "72 frames"):
        dataset.read([-1])
    with refuses("camera-unknown", "'top'", "front, wrist"):
        dataset.images("top", [0])
    with refuses("feature-unknown", "'speed'", "action, "):
        dataset.column("speed", [0])
    with refuses("feature-not-numeric", "'observation.images.front'", "video"):
        dataset.column("observation.images.front", [0])
    features = {"action": Feature("float32", (1,))}
    with DatasetWriter(tmp_path / "blind", features, FPS) as writer:
        writer.add_episode([{"action": 1.0}, {"action": 2.0}], "count")
    with refuses("feature-unknown", "'observation.state'"):
        LeRobotDataset(tmp_path / "blind").read([0])
    assert LeRobotDataset(tmp_path / "blind").column("action", [1, 0]).ravel().tolist() == [2, 1]


def test_an_empty_dataset_is_read(tmp_path) -> None:
    DatasetWriter(tmp_path / "data", NUMBERS | VIDEO | PNG, FPS).close()
    dataset = LeRobotDataset(tmp_path / "data")
    assert (len(dataset), dataset.episodes, dataset.tasks, dataset.statistics) == (0, [], (), {})


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        (pa.array(["a", "b"]), "uint8", None),
        (pa.array([4, 260]), "uint8", None),
        (pa.array([-1, 2]), "uint8", None),
        (pa.array([1.0, float("nan")]), "uint8", None),
        (pa.array([1.5, 2.0]), "int64", None),
        (pa.array([2, 0]), "bool", None),
        (pa.array([1.0, 4.0]), "uint8", [1, 4]),
        (pa.array([1, 0]), "bool", [True, False]),
        (pa.array([0.1, float("nan")]), "float32", np.float32([0.1, np.nan]).tolist()),
        (pa.array([True, False]), "float32", [1.0, 0.0]),
    ],
)
def test_numbers_have_the_declared_type(values: pa.Array, dtype: str, found: list[Any] | None) -> None:
    """They are not truncated; only floats are rounded."""
    feature = Feature(dtype, (1,))
    if found is None:
        with refuses("dataset-damaged", "here", dtype, kind=DatasetError):
            read_numbers(values, feature, "here")
    else:
        np.testing.assert_array_equal(read_numbers(values, feature, "here").ravel(), np.array(found, dtype))
