"""Checkpoints are complete after any interruption, and the best and the newest are kept and found."""

import errno
import os
import stat
import warnings

import pytest
from safetensors import SafetensorError

from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.system.atomic_write import StorageError
from tests.support.refusals import refuses
from tests.support.stepped_tensors import assert_equal, tensors


def test_a_checkpoint_is_loaded_to_the_bit(folder):
    step, found, metadata = checkpoint.load_latest_checkpoint(folder)
    assert (step, metadata) == (20, {"iteration": 20})
    assert_equal(found, 20)
    assert_equal(checkpoint.load_checkpoint(folder / "00000010")[1], 10)
    assert checkpoint.resolve_checkpoint(folder / "last").name == "00000020"


@pytest.mark.parametrize("metadata", [{"b": (1, 2), "a": {3: None}}, {"x": 0.1 + 0.2, "ü": "é"}, {"nan": float("nan")}])
def test_metadata_of_any_kind_keeps_its_digest(tmp_path, metadata):
    checkpoint.save_checkpoint(tmp_path, 1, tensors(1), metadata)
    assert checkpoint.load_checkpoint(tmp_path / "00000001")[2].keys() == metadata.keys()


def test_further_files_belong_to_the_checkpoint(tmp_path):
    final = checkpoint.save_checkpoint(
        tmp_path, 1, tensors(1), {}, files={"policy.txt": lambda path: path.write_text("abc")}
    )
    assert (final / "policy.txt").read_text() == "abc"
    (final / "policy.txt").write_text("abd")
    with refuses("checkpoint-damaged", "policy.txt", kind=CheckpointError):
        checkpoint.load_checkpoint(final)
    (final / "policy.txt").unlink()
    with refuses("checkpoint-file-missing", "policy.txt"):
        checkpoint.load_checkpoint(final)


@pytest.fixture(params=[0o022, 0o002, 0o077])
def usual(request):
    """The permissions of a new file under a umask of the user."""
    before = os.umask(request.param)
    yield 0o666 & ~request.param
    os.umask(before)


def test_files_may_be_read_by_whom_the_umask_lets(tmp_path, usual):
    def write(path):
        path.write_text("abc")
        path.chmod(0o600)

    final = checkpoint.save_checkpoint(tmp_path, 1, tensors(1), {}, files={"policy.txt": write})
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in [*final.iterdir(), tmp_path / "last"]}
    assert modes == dict.fromkeys(("tensors.safetensors", "policy.txt", "state.json", "last"), usual)


@pytest.mark.parametrize("moment", ["tensors", "state", "rename"])
def test_a_kill_while_saving_leaves_the_earlier_ones(folder, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    targets = {"tensors": "save_file", "state": "write_text", "rename": "sync_path"}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint, targets[moment], kill)
        patch.setattr(checkpoint, "_remove_temporary", lambda _: None)  # a killed process cleans nothing up
        checkpoint.save_checkpoint(folder, 30, tensors(30), {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step, found, _ = checkpoint.load_latest_checkpoint(folder)
    assert step == (30 if moment == "rename" else 20)
    assert_equal(found, step)
    checkpoint.save_checkpoint(folder, 40, tensors(40), {})
    assert not list(folder.glob(".*")), "the next save removes what the kill left"


def test_saving_a_step_again_replaces_it(folder):
    checkpoint.save_checkpoint(folder, 20, tensors(7), {"again": True})
    step, found, metadata = checkpoint.load_latest_checkpoint(folder)
    assert (step, metadata) == (20, {"again": True})
    assert_equal(found, 7)


def test_pruning_keeps_the_newest_and_the_best(folder):
    checkpoint.mark_best(folder, 10)
    for step in (30, 40, 50):
        checkpoint.save_checkpoint(folder, step, tensors(step), {}, keep=2)
    assert checkpoint.list_steps(folder) == [10, 40, 50]
    assert checkpoint.resolve_checkpoint(folder).name == "00000010", "a folder of checkpoints means the best"
    with refuses("checkpoint-keep-out-of-range", "checkpoint.keep"):
        checkpoint.prune_checkpoints(folder, 0)


def test_marking_the_best_removes_temporary_files(folder):
    left = folder / ".tmp-best-4711"
    left.write_text("00000")
    checkpoint.mark_best(folder, 10)
    assert not left.exists() and (folder / "best").read_text() == "00000010\n"


def test_a_refused_one_goes_when_the_run_is_on_its_way_there_again(folder):
    """Kept as the newest, it would push out the sound one that was just written."""
    checkpoint.mark_best(folder, 20)
    (folder / "00000020" / checkpoint.TENSORS).write_bytes(b"")
    checkpoint.save_checkpoint(folder, 15, tensors(15), {}, keep=1)
    assert checkpoint.list_steps(folder) == [15]
    assert checkpoint.resolve_checkpoint(folder).name == "00000015"
    assert sorted(path.name for path in folder.iterdir()) == ["00000015", "last"]


@pytest.mark.parametrize("text", [None, "", "\0" * 9, "00000003\n"])
def test_a_run_that_continues_points_last_at_where_it_continues(tmp_path, text, recwarn):
    """Whatever the pointer held: a crash or a careless hand may have left anything there."""
    for step in (3, 10):
        checkpoint.save_checkpoint(tmp_path / "checkpoints", step, tensors(step), {})
    pointer = tmp_path / "checkpoints" / "last"
    pointer.unlink() if text is None else pointer.write_text(text)
    checkpoint.repair_last(tmp_path / "checkpoints", 10)
    assert pointer.read_text() == "00000010\n"
    said = [str(warning.message) for warning in recwarn]
    assert len(said) == (text in ("", "\0" * 9)) and all("last is damaged" in each for each in said)


def test_a_run_folder_means_its_best_or_last(tmp_path):
    checkpoint.save_checkpoint(tmp_path / "checkpoints", 3, tensors(3), {})
    assert checkpoint.resolve_checkpoint(tmp_path).name == "00000003"
    with refuses("checkpoint-missing", "elsewhere"):
        checkpoint.resolve_checkpoint(tmp_path / "elsewhere")


def test_a_run_that_holds_a_policy_alone_means_itself(tmp_path):
    (tmp_path / checkpoint.POLICY).write_bytes(b"")
    assert checkpoint.resolve_checkpoint(tmp_path) == tmp_path


@pytest.mark.parametrize("failing", ["save_file", "write_text", "sync_path"])
def test_a_full_disk_names_path_and_key_and_harms_nothing(folder, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"disk is full.*00000030.*run\.root"):
        patch.setattr(checkpoint, failing, full)
        checkpoint.save_checkpoint(folder, 30, tensors(30), {})
    assert checkpoint.load_latest_checkpoint(folder)[0] in (20, 30)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_failed_write_of_safetensors_is_converted_to_an_oserror(folder, monkeypatch, code):
    """It reports the system's error as text alone."""

    def full(*_):
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(code)} (os error {code})")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(StorageError, match=r"disk is full"):
        checkpoint.save_checkpoint(folder, 30, tensors(30), {})
