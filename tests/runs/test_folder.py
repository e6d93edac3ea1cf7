"""Run folders never overwrite each other, and errors name the key that chose the path."""

import errno
import json
import os
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest

from embodied_rl.runs.folder import RunFolder
from embodied_rl.system.atomic_write import StorageError, explain_errors, write_text
from tests.support.refusals import refuses

NOW = datetime(2031, 2, 3, 4, 5, 6)


def with_checkpoint(folder, step=1):
    folder.write_config("train:\n  iterations: 3\n", [])
    (folder.checkpoints / f"{step:08d}").mkdir()
    (folder.checkpoints / f"{step:08d}" / "state.json").write_text("{}")
    return folder


def test_folders_are_new_and_keep_their_configuration(tmp_path):
    folder = RunFolder.create(tmp_path, "demo", 3, NOW)
    assert (folder.path, folder.experiment, folder.seed) == (tmp_path / "demo" / "20310203-040506_s3", "demo", 3)
    assert {path.name for path in folder.path.iterdir()} == {"checkpoints", "videos", "eval"}
    folder.write_config("seed: 0\n", ["experiment=demo", "algo.lr=1e-4"])
    again = RunFolder.open(folder.path)
    assert again.config.read_text() == "seed: 0\n" and again.overrides() == ("experiment=demo", "algo.lr=1e-4")
    names = [RunFolder.create(tmp_path, "demo", 3, NOW).path.name for _ in range(2)]
    assert names == ["20310203-040506_s3_2", "20310203-040506_s3_3"]
    assert RunFolder(tmp_path / "demo" / names[1]).seed == 3


def test_latest_is_the_newest_training_run(tmp_path):
    def create(experiment, year):
        return RunFolder.create(tmp_path, experiment, 0, datetime(year, 1, 1))

    newest = with_checkpoint(create("demo", 2032))
    with_checkpoint(create("tabletop", 2031))
    with_checkpoint(create("cloned", 2033)).write_config("algo:\n  train: 3\neval_episodes: 5\n", [])
    create("tabletop", 2034)
    assert RunFolder.latest(tmp_path) == newest
    begun = create("tabletop", 2033)
    begun.write_config("train:\n  iterations: 3\n", [])
    assert RunFolder.latest(tmp_path) == begun


@pytest.mark.parametrize("content", [b"", b"sim:\n  name: tablet", b"sim:\n  name: \xff\xfe\ntrain:\n"])
def test_latest_refuses_a_newer_damaged_configuration(tmp_path, content):
    older = with_checkpoint(RunFolder.create(tmp_path, "demo", 0, datetime(2031, 1, 1)))
    damaged = with_checkpoint(RunFolder.create(tmp_path, "demo", 0, datetime(2032, 1, 1)))
    damaged.config.write_bytes(content)
    with refuses("config-damaged", damaged.config, "resume="):
        RunFolder.latest(tmp_path)
    newer = with_checkpoint(RunFolder.create(tmp_path, "demo", 0, datetime(2033, 1, 1)))
    assert RunFolder.latest(tmp_path) == newer
    shutil.rmtree(newer.path)
    shutil.rmtree(damaged.path)
    assert RunFolder.latest(tmp_path) == older


def test_damaged_overrides_are_refused(tmp_path):
    folder = RunFolder.create(tmp_path, "demo", 0, NOW)
    (folder.path / "overrides.txt").write_bytes(b"seed=\xff\n")
    with refuses("overrides-damaged", "overrides.txt"):
        folder.overrides()


def test_latest_of_one_second_is_the_last_saved(tmp_path):
    first, second = (with_checkpoint(RunFolder.create(tmp_path, "demo", seed, NOW)) for seed in (9, 1))
    for age, folder in ((2000, first), (1000, second)):
        os.utime(folder.checkpoints / "00000001" / "state.json", (age, age))
    assert RunFolder.latest(tmp_path) == first


@pytest.fixture
def far_east(monkeypatch):
    """A clock 14 hours ahead of UTC."""
    monkeypatch.setenv("TZ", "XXX-14")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_names_hold_utc(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    run = RunFolder.create(tmp_path, "demo", 0)
    names = [run.path.name.removesuffix("_s0"), run.new_evaluation("eval").name.removeprefix("eval_")]
    for name in names:
        begun = datetime.strptime(name, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
        assert timedelta() <= begun - before < timedelta(hours=1)


def test_latest_uses_the_start_in_the_provenance(tmp_path):
    """Two runs of a version that named folders by local time, in the hour that a clock shows twice; one has no
    provenance, so that its name counts."""
    started = {"20311026-025500_s0": "2031-10-26T00:55:00+00:00", "20311026-020500_s0": "2031-10-26T01:05:00+00:00"}
    for name, when in started.items():
        run = with_checkpoint(RunFolder.create(tmp_path, "demo", 0))
        (run.path / "provenance.json").write_text(json.dumps({"started": when}))
        run.path.rename(tmp_path / "demo" / name)
    with_checkpoint(RunFolder.create(tmp_path, "demo", 0, datetime(2031, 10, 26, 1, 0, 0)))
    assert RunFolder.latest(tmp_path).path.name == "20311026-020500_s0"


def test_a_damaged_provenance_is_refused(tmp_path):
    run = with_checkpoint(RunFolder.create(tmp_path, "demo", 0))
    (run.path / "provenance.json").write_text("{")
    with refuses("provenance-damaged", "provenance.json"):
        RunFolder.latest(tmp_path)


@pytest.mark.parametrize("name", ["..", ".", "", "../elsewhere", "a/b", "/tmp/x", "a\\b", "a\nb", "a\0b", "ü" * 101])
def test_an_experiment_must_be_one_folder_name(tmp_path, name):
    root = tmp_path / "runs"
    with pytest.raises(ValueError, match=r"run\.experiment must"):
        RunFolder.create(root, name, 0)
    assert list(tmp_path.iterdir()) == []


def test_missing_runs_are_refused(tmp_path):
    with refuses("run-missing", tmp_path, "run.root"):
        RunFolder.latest(tmp_path)
    with refuses("run-missing", tmp_path):
        RunFolder.open(tmp_path)


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses("path-not-writable", "file", "run.root", kind=StorageError):
        RunFolder.create(tmp_path / "file", "demo", 0)


def test_other_errors_pass_unchanged(tmp_path):
    with pytest.raises(OSError, match="broken") as caught, explain_errors(tmp_path):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(caught.value, StorageError)


def test_a_failed_write_leaves_the_old_text(tmp_path, monkeypatch):
    write_text(tmp_path / "file", "old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
