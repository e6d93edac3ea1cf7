"""The recording of `embodied-rl view`, read back with Rerun's own reader, equals its source to the bit."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embodied_rl.commands.view import run
from embodied_rl.datasets.lerobot.collected import PROPOSED, VALID
from embodied_rl.datasets.lerobot.dataset_files import DatasetError
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.info import Feature
from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.replay.signals import Signal, list_episodes
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.schema import ViewConfig
from tests.support.making_datasets import FPS, frame, length, made, task
from tests.support.refusals import refuses
from tests.support.replaying import Script, layout

rerun: Any = pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install 'embodied-rl[view]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of a dataset, with a camera in video files and one in PNG."""
    return made(tmp_path_factory.mktemp("view") / "data", 3)


def read(out: Path) -> dict[str, dict[str, list]]:
    """Columns of each entity, by its path; those of one name are joined, values without time beside the others."""
    found: dict[str, dict[str, list]] = {}
    for chunk in sorted(rerun.chunk.RrdReader(out).stream(), key=lambda chunk: chunk.id):
        batch = chunk.to_record_batch()
        for name in set(batch.schema.names) - {"rerun.controls.RowId"}:
            column = found.setdefault(chunk.entity_path, {}).setdefault(name, [])
            column += batch[name].cast("int64").to_pylist() if name == "seconds" else batch[name].to_pylist()
    return found


def decode(cells: list) -> np.ndarray:
    return np.stack([np.asarray(Image.open(io.BytesIO(bytes(blob)))) for (blob,) in cells])


def assert_written(found: dict[str, list], signals: list[Signal], rate: float) -> None:
    """An entity holds these parts of a signal, on both time axes."""
    steps = np.concatenate([signal.steps for signal in signals])
    values: Any = signals[0].values
    if isinstance(values, list):  # a word lasts until the next one, the last one until the end
        words = dict(zip(found["control_step"], (word for (word,) in found["StateChange:state"]), strict=True))
        assert words.pop(steps[-1] + 1) == ""
        lasting = [words[max(step for step in words if step <= now)] for now in steps]
        assert lasting == values and len(words) == 1 + np.count_nonzero(np.array(values[1:]) != values[:-1])
        return
    assert found["control_step"] == steps.tolist()
    np.testing.assert_array_equal(found["seconds"], np.round(steps / rate * 1e9).astype(np.int64))
    values = np.concatenate([signal.values for signal in signals])
    if values.ndim == 4:
        assert found["EncodedImage:media_type"] == [["image/png"]] * len(steps)
        np.testing.assert_array_equal(decode(found["EncodedImage:blob"]), values)
    else:
        np.testing.assert_array_equal(np.array(found["Scalars:scalars"]), values)  # float64 holds each float32
        assert found["SeriesLines:names"] == [list(signals[0].names)]


def assert_holds(out: Path, source: Path, chosen: list[int]) -> None:
    """A recording holds all signals of these episodes, and nothing else."""
    found, episodes = read(out), list_episodes(source)[0]
    assert found.pop("/__properties")["RecordingInfo:name"] == [[source.name]]
    for number in chosen:
        assert found.pop(f"/episode_{number}")["TextDocument:text"] == [[episodes[number].title]]
        signals: dict[str, list[Signal]] = {}
        for signal in episodes[number].read():
            place = "/" + rerun.new_entity_path([f"episode_{number}", *signal.path]).lstrip("/")
            signals.setdefault(place, []).append(signal)
        for place, parts in signals.items():
            assert_written(found.pop(place), parts, episodes[number].rate)
    assert not found


def test_a_dataset_is_written_to_the_bit(folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "new folder" / "out.rrd"
    run(ViewConfig(str(folder), str(out), (2, 0)))
    assert_holds(out, folder, [2, 0])
    assert [path.name for path in out.parent.iterdir()] == ["out.rrd"]
    assert f"2 of 3 episodes in {out}" in capsys.readouterr().out


def test_the_numbers_are_those_that_were_recorded(folder: Path, tmp_path: Path) -> None:
    """Not by way of what `view` itself reads."""
    run(ViewConfig(str(folder), str(tmp_path / "out.rrd")))
    found, dataset = read(tmp_path / "out.rrd"), LeRobotDataset(folder)
    for index in range(3):
        rows = [frame(index, step) for step in range(length(index))]
        place, own = f"/episode_{index}", range(dataset.starts[index], dataset.stops[index])
        for name, key in (("state", "observation.state"), ("action/executed", "action")):
            have = found[f"{place}/{name}"]
            np.testing.assert_array_equal(np.array(have["Scalars:scalars"]), np.stack([row[key] for row in rows]))
            assert have["control_step"] == list(range(len(rows)))
            assert have["seconds"] == [step * 10**9 // FPS for step in range(len(rows))]
        np.testing.assert_array_equal(
            decode(found[f"{place}/camera/wrist"]["EncodedImage:blob"]),
            np.stack([row["observation.images.wrist"] for row in rows]),
        )
        np.testing.assert_array_equal(
            decode(found[f"{place}/camera/front"]["EncodedImage:blob"]), dataset.images("front", own)
        )
        words = [*(Source(row["source"]).name.lower() for row in rows), ""]
        assert found[f"{place}/source"]["StateChange:state"] == [[word] for word in words]
        assert found[f"{place}/instruction"]["StateChange:state"] == [[task(index)], [""]]


def test_a_run_is_written_to_the_bit(tmp_path: Path) -> None:
    storage = ReplayStorage(layout(20, tracks=1), tmp_path / "run" / "replay" / "collector_0")
    script = Script(storage)
    for end in ("", "", "terminated", "", "truncated"):
        script.decide([0])
        script.finish([0], [end])
    storage.close()
    run(ViewConfig(str(tmp_path / "run"), str(tmp_path / "out.rrd")))
    assert_holds(tmp_path / "out.rrd", tmp_path / "run", [0, 1])


def test_the_viewers_layout_has_a_view_of_each_camera(folder: Path, tmp_path: Path) -> None:
    run(ViewConfig(str(folder), str(tmp_path / "out.rrd"), (1,)))
    reader = rerun.chunk.RrdReader(tmp_path / "out.rrd")
    (blueprint,) = reader.blueprints()
    batches = [chunk.to_record_batch() for chunk in reader.stream(store=blueprint)]
    cells = [each[name].to_pylist() for each in batches for name in each.schema.names if name.endswith("space_origin")]
    origins = {origin for column in cells for (origin,) in column}
    assert {text.lstrip("/") for text in origins} == {
        f"episode_1{rest}" for rest in ("", "/camera/front", "/camera/wrist")
    }


def test_jpeg_loses_detail_and_takes_less_space(folder: Path, tmp_path: Path) -> None:
    for images in ("png", "jpeg"):
        run(ViewConfig(str(folder), str(tmp_path / f"{images}.rrd"), (0,), images))
    found = read(tmp_path / "jpeg.rrd")["/episode_0/camera/wrist"]
    assert found["EncodedImage:media_type"] == [["image/jpeg"]] * length(0)
    exact = decode(read(tmp_path / "png.rrd")["/episode_0/camera/wrist"]["EncodedImage:blob"]).astype(int)
    assert 0 < abs(decode(found["EncodedImage:blob"]) - exact).mean() < 60
    assert (tmp_path / "jpeg.rrd").stat().st_size < (tmp_path / "png.rrd").stat().st_size


def test_a_full_disk_leaves_no_file(folder: Path, tmp_path: Path, files_up_to) -> None:
    with files_up_to(20_000), refuses("disk-full", tmp_path / "out.rrd"):
        run(ViewConfig(str(folder), str(tmp_path / "out.rrd")))
    assert not list(tmp_path.iterdir())


def test_a_source_that_turns_out_to_be_damaged_leaves_no_file(folder: Path, tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise DatasetError("damaged", code="dataset-damaged")

    monkeypatch.setattr(LeRobotDataset, "images", fail)
    with refuses("dataset-damaged"):
        run(ViewConfig(str(folder), str(tmp_path / "out.rrd")))
    assert not list(tmp_path.iterdir())


def test_a_variable_that_switches_rerun_off_is_named(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RERUN", "off")
    with refuses("rerun-off", "RERUN"):
        run(ViewConfig(str(folder), str(tmp_path / "out.rrd")))
    assert not list(tmp_path.iterdir())


def test_a_source_without_pictures_or_chosen_actions_is_written(tmp_path: Path) -> None:
    features = {"action": Feature("float32", (2,)), PROPOSED: Feature("float32", (2,)), VALID: Feature("bool", (1,))}
    with DatasetWriter(tmp_path / "data", features, FPS, "toy") as writer:
        writer.add_episode(iter([{"action": [1.0, 2.0], PROPOSED: [0.0, 0.0], VALID: False}] * 2), "go")
    run(ViewConfig(str(tmp_path / "data"), str(tmp_path / "out.rrd")))
    found = read(tmp_path / "out.rrd")
    assert found["/episode_0/action/executed"]["Scalars:scalars"] == [[1, 2]] * 2
    assert "/episode_0/action/chosen" not in found
