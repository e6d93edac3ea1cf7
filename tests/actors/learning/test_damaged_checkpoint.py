"""A checkpoint that is damaged, or is none, is refused by name, and the one before is used."""

import json
import pickle

import pytest
import torch

from embodied_rl.actors.learning import checkpoint
from tests.support.refusals import refuses
from tests.support.stepped_tensors import assert_equal, tensors


@pytest.mark.parametrize("keep_bytes", [0, 7, 100, -1])
def test_a_truncated_newest_checkpoint_falls_back(folder, keep_bytes):
    file = folder / "00000020" / checkpoint.TENSORS
    file.write_bytes(file.read_bytes()[:keep_bytes])
    with pytest.warns(RuntimeWarning, match=rf"{file}.*Using step 10"):
        step, found, _ = checkpoint.load_latest_checkpoint(folder)
    assert step == 10
    assert_equal(found, 10)


@pytest.mark.parametrize("text", ["", '{"step": 20', "[]", '{"step": 20, "metadata": {}}'])
def test_a_damaged_state_file_is_refused(folder, text):
    (folder / "00000020" / checkpoint.STATE).write_text(text)
    with pytest.warns(RuntimeWarning, match=r"00000020.state\.json"):
        assert checkpoint.load_latest_checkpoint(folder)[0] == 10


@pytest.fixture
def whole(tmp_path):
    """Checkpoints 10 and 20 of three files each."""
    for step in (10, 20):
        metadata = {"version": step, "totals": {"time": 0.1}}
        files = {checkpoint.POLICY: lambda path, step=step: path.write_text(f"policy {step}")}
        checkpoint.save_checkpoint(tmp_path, step, tensors(step), metadata, files=files)
    return tmp_path


def without_digest(folder):
    """What earlier versions wrote."""
    for file in folder.glob(f"*/{checkpoint.STATE}"):
        state = json.loads(file.read_text())
        state.pop("digest", None)
        file.write_text(json.dumps(state, indent=1) + "\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"step": 20', '"step": 10'),
        ('"version": 20', '"version": 21'),
        ('"time": 0.1', '"time": 0.2'),
        ('"version"', '"versiom"'),
        ('"metadata"', '"metadatb"'),
        ('"policy.safetensors"', '"policy.safetensort"'),
        ('"digest"', '"digesu"'),
    ],
)
def test_a_changed_state_file_falls_back(whole, old, new):
    file = whole / "00000020" / checkpoint.STATE
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    with pytest.warns(RuntimeWarning, match=rf"{file}.*Using step 10"):
        assert checkpoint.load_latest_checkpoint(whole)[0] == 10


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.POLICY, checkpoint.STATE])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_changed_letter_or_digit_anywhere_falls_back(whole, name, share):
    """Spaces of JSON alone may change: they mean nothing."""
    file = whole / "00000020" / name
    content = bytearray(file.read_bytes())
    place = next(at for at in range(int(share * len(content)), len(content)) if chr(content[at]).isalnum())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"00000020.*Using step 10"):
        assert checkpoint.load_latest_checkpoint(whole)[0] == 10


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.POLICY, checkpoint.STATE])
@pytest.mark.parametrize("damage", ["gone", "folder", "loop"])
def test_a_file_that_cannot_be_read_falls_back(whole, name, damage):
    file = whole / "00000020" / name
    file.unlink()
    if damage == "folder":
        file.mkdir()
    if damage == "loop":
        file.symlink_to(file)
    with pytest.warns(RuntimeWarning, match=rf"{file}.*Using step 10"):
        assert checkpoint.load_latest_checkpoint(whole)[0] == 10


def test_checkpoints_of_earlier_versions_are_read_and_their_step_must_be_their_folders(whole):
    without_digest(whole)
    step, found, metadata = checkpoint.load_latest_checkpoint(whole)
    assert (step, metadata["version"]) == (20, 20)
    assert_equal(found, 20)
    file = whole / "00000020" / checkpoint.STATE
    file.write_text(file.read_text().replace('"step": 20', '"step": 10'))
    with pytest.warns(RuntimeWarning, match=rf"{file} belongs to another checkpoint: its step is 10.*Using step 10"):
        assert checkpoint.load_latest_checkpoint(whole)[1]["count"][0] == 10


@pytest.mark.parametrize(
    "change",
    [
        {"step": "20"},
        {"step": True},
        {"metadata": []},
        {"sha256": {}},
        {"sha256": {checkpoint.TENSORS: None}},
        {"sha256": []},
    ],
)
def test_an_invalid_earlier_checkpoint_falls_back(whole, change):
    without_digest(whole)
    file = whole / "00000020" / checkpoint.STATE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.warns(RuntimeWarning, match=rf"{file} is damaged.*Using step 10"):
        assert checkpoint.load_latest_checkpoint(whole)[0] == 10


def test_a_pointer_that_is_not_text_is_refused(folder):
    (folder / "best").write_bytes(b"\xff\xfe00")
    with refuses("checkpoint-pointer-damaged", "best"):
        checkpoint.resolve_checkpoint(folder)


def test_no_usable_checkpoint_is_refused_with_reasons(folder):
    for step in ("00000010", "00000020"):
        (folder / step / checkpoint.TENSORS).unlink()
    with refuses("checkpoint-none-usable", "00000020", "00000010", folder) as error:
        checkpoint.load_latest_checkpoint(folder)
    assert f"Restore one of them from a copy; or remove {folder}" in str(error.value), "what to do"


@pytest.mark.parametrize("write", ["torch.save", "pickle"])
def test_a_pickle_is_never_opened(tmp_path, write):
    file = tmp_path / "weights.pt"
    if write == "pickle":
        file.write_bytes(pickle.dumps({"weight": 1}))
    else:
        torch.save({"weight": torch.zeros(2)}, file)
    with refuses("checkpoint-pickle", file):
        checkpoint.read_tensors(file)


def test_a_file_that_is_not_safetensors_is_refused(tmp_path):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with refuses("checkpoint-damaged", file):
        checkpoint.read_tensors(file)
