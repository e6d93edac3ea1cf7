"""Writing LeRobotDataset v3.0, and its content if the writer ends at any moment."""

import errno
import json
import os
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embodied_rl.datasets.lerobot import episode_files as listing
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.feature_statistics import combine
from embodied_rl.datasets.lerobot.info import DatasetError, Feature
from embodied_rl.datasets.lerobot.video_files import CODECS, Encoder
from embodied_rl.system.atomic_write import StorageError
from tests.support.making_datasets import (
    FEATURES,
    FPS,
    NUMBERS,
    PNG,
    VIDEO,
    assert_holds,
    frame,
    frames,
    length,
    made,
    record,
    task,
)
from tests.support.refusals import refuses


@pytest.mark.thorough
@pytest.mark.parametrize("codec", ["h264", "libsvtav1"])
def test_written_episodes_are_read(tmp_path, codec) -> None:
    dataset = LeRobotDataset(made(tmp_path / "data", 4, codec=codec))
    assert_holds(dataset, 4)
    assert (dataset.info.fps, dataset.info.robot_type) == (FPS, "toy")
    assert dataset.info.features["action"].names == ["x", "y"]


@pytest.mark.thorough
@pytest.mark.parametrize("features", [NUMBERS, NUMBERS | PNG, NUMBERS | VIDEO], ids=["numbers", "png", "video"])
def test_pictures_are_optional(tmp_path, features) -> None:
    assert_holds(LeRobotDataset(made(tmp_path / "data", 2, features)), 2, features)
    assert (tmp_path / "data/videos").exists() == (features == NUMBERS | VIDEO)


@pytest.mark.thorough
def test_fractional_frame_rates(tmp_path) -> None:
    """Timestamps of a video and of its frames agree."""
    features = NUMBERS | VIDEO
    for fps in (12.5, 33.3, 500 / 15):
        with DatasetWriter(tmp_path / f"{fps}", features, fps) as writer:
            record(writer, range(4), features)
        dataset = LeRobotDataset(tmp_path / f"{fps}")
        assert_holds(dataset, 4, features)
        numbers, times = (dataset.column(name, range(len(dataset))) for name in ("frame_index", "timestamp"))
        np.testing.assert_allclose(times, numbers / fps, rtol=1e-6)


def test_bookkeeping_features(tmp_path) -> None:
    dataset = LeRobotDataset(made(tmp_path / "data", 3, NUMBERS))
    rows = range(len(dataset))
    numbers = [number for episode in range(3) for number in range(length(episode))]
    assert dataset.column("frame_index", rows).ravel().tolist() == numbers
    assert dataset.column("index", rows).ravel().tolist() == list(rows)
    assert dataset.column("timestamp", rows).ravel().tolist() == [np.float32(number / FPS) for number in numbers]
    assert dataset.column("episode_index", rows).ravel().tolist() == [0] * 5 + [1] * 8 + [2] * 11


@pytest.mark.thorough
def test_the_files_are_those_of_the_format(tmp_path) -> None:
    """Names and entries as in lerobot's src/lerobot/datasets."""
    folder = made(tmp_path / "data", 3)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet", "videos/observation.images.front/chunk-000/file-000.mp4",
    }  # fmt: skip
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 24, 3)
    assert info["splits"] == {"train": "0:3"}
    assert info["fps"] == 20 and isinstance(info["fps"], int)
    columns = pq.read_schema(folder / "data/chunk-000/file-000.parquet")
    assert str(columns.field("action").type) == "fixed_size_list<element: float>[2]"
    assert str(columns.field("observation.images.wrist").type) == "struct<bytes: binary, path: string>"
    assert str(columns.field("source").type) == "uint8"
    listed = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["tasks"] for row in listed] == [[task(episode)] for episode in range(3)]
    assert [row["videos/observation.images.front/from_timestamp"] for row in listed] == [0, 5 / FPS, 13 / FPS]
    assert [row["videos/observation.images.front/to_timestamp"] for row in listed] == [5 / FPS, 13 / FPS, 24 / FPS]
    assert [len(row["stats/observation.images.front/mean"]) for row in listed] == [3, 3, 3]


@pytest.mark.thorough
def test_files_roll_over_at_their_limits(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(listing, "FILE_EPISODES", 2)
    folder = made(tmp_path / "data", 9, chunks_size=2, data_files_size_in_mb=0.15, video_files_size_in_mb=0.005)
    limits = {"data": 0.15, "videos": 0.005}
    for kind, megabytes in limits.items():
        sizes = [path.stat().st_size for path in sorted((folder / kind).rglob("file-*"))]
        assert len(sizes) > 2
        assert max(sizes) < megabytes * 2**20
    assert [path.parent.name + "/" + path.name for path in sorted((folder / "meta/episodes").rglob("file-*"))] == [
        f"chunk-00{chunk}/file-00{file}.parquet" for chunk, file in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]
    assert_holds(LeRobotDataset(folder), 9)


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [{}, {"data_files_size_in_mb": 0.1, "video_files_size_in_mb": 0.003}])
def test_a_continued_dataset_equals_one_written_at_once(tmp_path, limits) -> None:
    for start in range(0, 6, 2):
        with DatasetWriter(tmp_path / "parts", FEATURES, FPS, "toy", **limits) as writer:
            record(writer, range(start, start + 2))
    made(tmp_path / "whole", 6, **limits)
    assert_holds(LeRobotDataset(tmp_path / "parts"), 6)
    left, right = (LeRobotDataset(tmp_path / name) for name in ("parts", "whole"))
    assert (left.info, left.episodes, left.tasks) == (right.info, right.episodes, right.tasks)
    for key, summary in right.statistics.items():
        for name, array in summary.items():
            np.testing.assert_allclose(left.statistics[key][name], array, rtol=1e-12)


@pytest.mark.thorough
def test_videos_of_another_encoder_get_new_files(tmp_path) -> None:
    made(tmp_path / "data", 2)
    with DatasetWriter.resume(tmp_path / "data", codec="libsvtav1") as writer:
        record(writer, range(2, 4))
    assert len(list((tmp_path / "data/videos").rglob("*.mp4"))) == 2
    assert_holds(LeRobotDataset(tmp_path / "data"), 4)


@pytest.mark.thorough
@pytest.mark.parametrize(("episodes", "more"), [(0, 3), (3, 0), (3, 4)])
def test_a_killed_writer_leaves_its_episodes(tmp_path, episodes, more) -> None:
    """Killed before the first episode, between two, and within one; another writer continues what it left."""
    with DatasetWriter(tmp_path / "data", FEATURES, FPS, "toy") as writer:
        record(writer, range(episodes))
        for _, each in zip(range(more), frames(episodes), strict=False):
            writer.add(each, task(episodes))
        left = shutil.copytree(tmp_path / "data", tmp_path / "left")
    assert_holds(LeRobotDataset(left), episodes)
    with DatasetWriter.resume(left) as writer:
        record(writer, range(episodes, episodes + 2))
    assert_holds(LeRobotDataset(left), episodes + 2)
    assert not list(left.rglob(".tmp-*"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "limits",
    [{}, pytest.param({"data_files_size_in_mb": 0.01, "video_files_size_in_mb": 0.002}, marks=pytest.mark.slow)],
)
def test_a_writer_may_be_killed_after_each_replaced_file(tmp_path, monkeypatch, limits) -> None:
    """The earlier episodes stay, and another writer continues."""
    folder, left = tmp_path / "data", []
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        result = replace(self, target)
        left.append(shutil.copytree(folder, tmp_path / f"left{len(left)}"))
        return result

    with DatasetWriter(folder, FEATURES, FPS, "toy", **limits) as writer:
        record(writer, range(1))
        monkeypatch.setattr(Path, "replace", replaced)
        record(writer, range(1, 2))
        monkeypatch.setattr(Path, "replace", replace)
    assert len(left) == 6  # numbers, video, tasks, list of episodes, statistics, info
    for step, copy in enumerate(left):
        kept = 2 if step == 5 else 1
        assert_holds(LeRobotDataset(copy), kept)
        with DatasetWriter.resume(copy) as writer:
            rows = sum(pq.read_metadata(path).num_rows for path in (copy / "data").rglob("*.parquet"))
            assert rows == writer.info.total_frames  # lerobot reads all that lies in the folder
            record(writer, range(kept, 4))
        assert_holds(LeRobotDataset(copy), 4)
        assert not list(copy.rglob(".tmp-*"))
        assert limits or len(list(copy.rglob("*.mp4"))) == 1


@pytest.mark.thorough
def test_a_full_disk_keeps_earlier_episodes(tmp_path, monkeypatch) -> None:
    made(tmp_path / "data", 2)
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if "meta/episodes" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    with DatasetWriter.resume(tmp_path / "data") as writer:
        monkeypatch.setattr(Path, "replace", full)
        with refuses("disk-full", kind=StorageError):
            record(writer, range(2, 3))
        with refuses("writer-closed"):
            record(writer, range(2, 3))
        monkeypatch.setattr(Path, "replace", replace)
    assert_holds(LeRobotDataset(tmp_path / "data"), 2)
    assert not list((tmp_path / "data").rglob(".tmp-*"))
    with DatasetWriter.resume(tmp_path / "data") as writer:
        record(writer, range(2, 4))
    assert_holds(LeRobotDataset(tmp_path / "data"), 4)


@pytest.mark.thorough
def test_a_disk_that_fills_up_within_an_episode_keeps_earlier_episodes(tmp_path, monkeypatch) -> None:
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with DatasetWriter(tmp_path / "data", FEATURES, FPS, "toy") as writer:
        record(writer, range(2))
        with monkeypatch.context() as patch, refuses("disk-full"):
            patch.setattr(Encoder, "add", full)
            record(writer, range(2, 3))
        record(writer, range(2, 4))
    assert_holds(LeRobotDataset(tmp_path / "data"), 4)


@pytest.mark.thorough
def test_refused_and_discarded_episodes_are_not_stored(tmp_path) -> None:
    with DatasetWriter(tmp_path / "data", FEATURES, FPS, "toy") as writer:
        record(writer, range(1))
        broken = [frame(7, 0), frame(7, 1) | {"action": np.full(2, np.nan, np.float32)}]
        with refuses("not-finite", "'action'"):
            writer.add_episode(broken, "no")
        record(writer, range(1, 2))
        writer.add(frame(7, 0), "no")
        writer.discard_episode()
        record(writer, range(2, 3))
        writer.add(frame(7, 0), "no")
    assert_holds(LeRobotDataset(tmp_path / "data"), 3)


def test_an_episode_may_have_several_tasks(tmp_path) -> None:
    with DatasetWriter(tmp_path / "data", NUMBERS, FPS) as writer:
        for number, text in enumerate(["first", "first", "second"]):
            writer.add(frame(0, number, NUMBERS), text)
        writer.save_episode()
    dataset = LeRobotDataset(tmp_path / "data")
    assert dataset.episodes[0].tasks == ("first", "second")
    assert dataset.read([2, 0]).observation.instruction == ("second", "first")


def test_one_writer_at_a_time(tmp_path) -> None:
    with (
        DatasetWriter(tmp_path / "data", NUMBERS, FPS),
        refuses("dataset-in-use", tmp_path / "data", kind=DatasetError),
    ):
        DatasetWriter(tmp_path / "data", NUMBERS, FPS)
    DatasetWriter(tmp_path / "data", NUMBERS, FPS).close()


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        ({"action": np.zeros(3, np.float32)}, "feature-mismatch", ("'action'", "float32 [3]", "float32 [2]")),
        ({"action": None}, "feature-missing", ("'action'",)),
        ({"speed": np.zeros(1)}, "feature-unknown", ("'speed'",)),
        ({"source": 256}, "feature-mismatch", ("'source'", "int64")),
        ({"source": 0.5}, "feature-mismatch", ("'source'", "float64")),
        ({"observation.images.front": np.zeros((48, 64, 3))}, "feature-mismatch", ("float64", "uint8")),
        ({"observation.images.front": np.zeros((64, 48, 3), np.uint8)}, "feature-mismatch", ("[64, 48, 3]",)),
    ],
)
def test_frames_are_checked(tmp_path, change, code, data) -> None:
    broken = {name: value for name, value in (frame(0, 0) | change).items() if value is not None}
    with DatasetWriter(tmp_path / "data", FEATURES, FPS) as writer, refuses(code, *data):
        writer.add(broken, "task")


@pytest.mark.parametrize(
    ("features", "settings", "code", "data"),
    [
        ({"a/b": Feature("float32", (1,))}, {}, "feature-invalid", ("'a/b'",)),
        ({"index": Feature("int64", (1,))}, {}, "feature-invalid", ("'index'", "timestamp")),
        ({"x": Feature("float", (0,))}, {}, "feature-invalid", ("'x'", "(0,)")),
        ({"x": Feature("complex64", (1,))}, {}, "feature-invalid", ("'complex64'",)),
        ({"x": Feature("video", (48, 63, 3))}, {}, "feature-invalid", ("(48, 63, 3)",)),
        ({"x": Feature("image", (48, 63))}, {}, "feature-invalid", ("(height, width, 3)",)),
        (NUMBERS, {"codec": "vp9"}, "codec-unknown", ("'vp9'", "h264, libsvtav1")),
        (NUMBERS, {"chunks_size": 0}, "value-out-of-range", ("chunks_size",)),
    ],
)
def test_invalid_features_and_settings_are_refused(tmp_path, features, settings, code, data) -> None:
    with refuses(code, *data):
        DatasetWriter(tmp_path / "data", features, FPS, **settings)
    assert not (tmp_path / "data/meta").exists()


def test_other_folders_and_uses_are_refused(tmp_path) -> None:
    with refuses("not-a-dataset"):
        DatasetWriter.resume(tmp_path / "elsewhere")
    with DatasetWriter(tmp_path / "empty", NUMBERS, FPS) as writer, refuses("episode-empty"):
        writer.save_episode()
    with refuses("writer-closed"):
        writer.add(frame(0, 0, NUMBERS), "late")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/dear.txt").write_text("you")
    with refuses("folder-not-empty", "letters"):
        DatasetWriter(tmp_path / "letters", NUMBERS, FPS)
    (tmp_path / "data/meta").mkdir(parents=True)  # left by a killed writer
    made(tmp_path / "data", 1, NUMBERS)
    with refuses("dataset-mismatch", "'observation.images.wrist'", "absent", "('image', "):
        DatasetWriter(tmp_path / "data", NUMBERS | PNG, FPS)
    with refuses("dataset-mismatch", "20", "30"):
        DatasetWriter(tmp_path / "data", NUMBERS, 30)


def test_statistics_of_a_killed_writer_bound_the_quantiles(tmp_path) -> None:
    """Exact quantiles are written by `close`."""
    writer = DatasetWriter(tmp_path / "data", NUMBERS, FPS)
    record(writer, range(3), NUMBERS)
    before = LeRobotDataset(tmp_path / "data").statistics["action"]
    writer.close()
    after = LeRobotDataset(tmp_path / "data").statistics["action"]
    parts = [statistics["action"] for statistics in listing.read_statistics(tmp_path / "data", 3)]
    for name, wanted in combine(parts).items():
        np.testing.assert_allclose(before[name], wanted, rtol=1e-12)
    assert (before["q01"] <= after["q01"]).all() and (before["q99"] >= after["q99"]).all()


def policies() -> set[tuple[int, int]]:
    """Scheduling policy and priority of every thread of this process."""
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return {(os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority) for thread in threads}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed by Linux alone")
@pytest.mark.parametrize("codec", CODECS)
def test_an_encoder_keeps_the_priority_of_all_threads(tmp_path, codec) -> None:
    """As root, SVT-AV1 sets real-time priority."""
    before = policies()
    encoder = Encoder(tmp_path / "video.mp4", codec, Fraction(10), Feature("video", (64, 64, 3), ()))
    try:
        for frame in range(3):
            encoder.add(np.full((64, 64, 3), 40 * frame, np.uint8))
            assert policies() == before
    finally:
        encoder.close()
    assert policies() == before
