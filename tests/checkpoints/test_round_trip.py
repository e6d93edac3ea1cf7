"""From a checkpoint of another project into a policy file of ours, and back: nothing is lost or changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from embodied_rl.assembly import build
from embodied_rl.schema import PolicyNode
from tests.support import building_checkpoints as building
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import (
    CAMERAS,
    EMBEDDING,
    FAMILIES,
    HEAD,
    OPTIONS,
    lerobot,
    mixed,
    openpi,
    prefixed,
    simulator,
    tensors,
)
from tests.support.using_checkpoints import (
    OPENPI,
    SEEN,
    assert_same_tensors,
    attach,
    attach_any,
    exported,
    save,
    small_files,
    smolvla_folder,
    stored,
    there_and_back,
    velocity,
)

pytestmark = pytest.mark.thorough


def all_bfloat16(family: str) -> dict[str, torch.Tensor]:
    """As openpi's converter writes."""
    return {name: value.bfloat16() for name, value in tensors(family).items() if name != EMBEDDING}


def untied(family: str) -> dict[str, torch.Tensor]:
    """As lerobot writes once it has trained: the output layer stayed as it was."""
    weights = tensors(family)
    return prefixed(weights | {HEAD: weights[HEAD] - 0.5})


def without(name: str, family: str) -> dict[str, torch.Tensor]:
    return prefixed({key: value for key, value in tensors(family).items() if key != name})


LEROBOT = {
    "both names": lambda family: prefixed(tensors(family)),
    "lm_head alone": lambda family: without(EMBEDDING, family),
    "embed_tokens alone": lambda family: without(HEAD, family),
    "no prefix": tensors,
    "bfloat16": lambda family: prefixed(mixed(family, "lerobot", tensors(family))),
    "untied": untied,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", LEROBOT)
def test_a_folder_of_lerobot_comes_back_byte_for_byte(tmp_path: Path, family: str, form: str) -> None:
    folder = lerobot(tmp_path / "folder", family, weights=LEROBOT[form](family))
    back = there_and_back(folder, "lerobot", attach(folder, family), family)
    assert_same_tensors(stored(back / "model.safetensors"), stored(folder / "model.safetensors"))
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert small_files(back) == small_files(folder)


def test_a_folder_of_smolvla_comes_back_byte_for_byte(tmp_path: Path) -> None:
    folder = smolvla_folder(tmp_path)
    back = there_and_back(folder, "lerobot", attach_any(folder, "smolvla"), "smolvla")
    assert_same_tensors(stored(back / "model.safetensors"), stored(folder / "model.safetensors"))
    assert small_files(back) == small_files(folder)


@pytest.mark.parametrize("old", [False, True])
def test_a_folder_without_a_tokenizer_comes_back_with_the_one_that_was_given(tmp_path: Path, old: bool) -> None:
    folder = lerobot(tmp_path / "folder", "pi05", old=old, tokenizer=False)
    given = building.tokenizer_files(tmp_path / "tokenizer") / "tokenizer.json"
    back = there_and_back(folder, "lerobot", attach(folder, "pi05", tokenizer=str(given)), "pi05")
    added = {"tokenizer/tokenizer.json": given.read_bytes()}
    assert small_files(back) == small_files(folder) | added
    attach(back, "pi05")


def test_shards_come_back_as_one_file(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0")
    whole = stored(folder / "model.safetensors")
    building.shard(folder)
    back = there_and_back(folder, "lerobot", attach(folder, "pi0"), "pi0")
    assert not list(back.glob("*index*"))
    assert_same_tensors(stored(back / "model.safetensors"), whole)
    attach(back, "pi0")


OPENPI_FORMS = {
    "trained": {},
    "trained in bfloat16": {"weights": lambda family: _half(family)},
    "converted": {"weights": all_bfloat16, "converted": True},
    "several robots": {"assets": {"lab/one": building.statistics(), "two": building.statistics()}},
    "padded": {"width": 32},
}


def _half(family: str) -> dict[str, torch.Tensor]:
    kept = {name: value for name, value in tensors(family).items() if name != EMBEDDING}
    return mixed(family, "openpi", kept)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", OPENPI_FORMS)
def test_a_folder_of_openpi_comes_back_byte_for_byte(tmp_path: Path, family: str, form: str) -> None:
    """But for the trainer's pickle, which was never opened, and with the tokenizer, which openpi downloads."""
    made = dict(OPENPI_FORMS[form])
    if "weights" in made:
        made["weights"] = made["weights"](family)
    folder = openpi(tmp_path / "folder", family, **made)
    tokenizer = building.tokenizer_files(tmp_path / "tokenizer") / "tokenizer.json"
    asset = {"statistics": "two"} if form == "several robots" else {}
    network = attach(folder, family, options=OPENPI, tokenizer=str(tokenizer), **asset)
    back = there_and_back(folder, "openpi", network, family)
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    expected = small_files(folder) | {"tokenizer.json": tokenizer.read_bytes()}
    expected.pop("metadata.pt", None)
    assert small_files(back) == expected


# between projects


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("half", [False, True])
def test_from_lerobot_to_openpi_and_back(tmp_path: Path, family: str, half: bool) -> None:
    weights = mixed(family, "lerobot", tensors(family)) if half else tensors(family)
    folder = lerobot(tmp_path / "folder", family, weights=prefixed(weights))
    network, robot = attach(folder, family)
    there = there_and_back(folder, "openpi", (network, robot), family)
    assert_same_tensors(stored(there / "model.safetensors"), {n: v for n, v in weights.items() if n != EMBEDDING})
    options = {"token_length": network.spec.token_length}
    second, other = attach(there, family, options=options)
    back = there_and_back(there, "lerobot", (second, other), family)
    third, robot_again = attach(back, family, cameras=SEEN)
    expected = velocity(network)
    assert torch.equal(velocity(second), expected) and torch.equal(velocity(third), expected)
    found, wanted = load_file(back / "model.safetensors"), load_file(folder / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].float(), wanted[name].float()) for name in wanted)
    state = torch.from_numpy(sizes.state())
    moving = slice(0, -1)  # openpi adds 1e-6 to every spread, lerobot 1e-8, which decides on what never moves alone
    for now in (other, robot_again):
        pairs = now.state.normalise(state)[:, moving], robot.state.normalise(state)[:, moving]
        torch.testing.assert_close(*pairs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_openpi_finds_no_layer_missing_in_what_comes_from_lerobot(tmp_path: Path, family: str) -> None:
    """Names and shapes are those of a folder that openpi wrote, its header included."""
    folder = lerobot(tmp_path / "folder", family)
    there = there_and_back(folder, "openpi", attach(folder, family), family)
    original = openpi(tmp_path / "original", family)
    found, wanted = stored(there / "model.safetensors"), stored(original / "model.safetensors")
    assert {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in wanted.items()}
    with safe_open(there / "model.safetensors", "pt") as opened:
        assert opened.metadata()[EMBEDDING] == HEAD


# what started here


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["lerobot", "openpi"])
def test_a_network_that_started_here_is_read_back(tmp_path: Path, family: str, form: str) -> None:
    given = {
        "width": 32, "layers": 2, "hidden": 40, "heads": 2, "head_dim": 8, "vocabulary": None, "expert_width": 24,
        "expert_hidden": 32, "vision_width": 16, "vision_layers": 1, "vision_hidden": 24, "vision_heads": 2, "patch": 8,
        "resolution": 32, "horizon": 4, "action_dim": 7, "state_dim": 8, "token_length": 40,
    }  # fmt: skip
    spec = replace(simulator(), action_low=(-2.0,) * 5, action_high=(1.0, 2.0, 3.0, 4.0, 5.0))
    torch.manual_seed(0)
    network, robot = build.build_backbone(PolicyNode(family, options=given, executed=3), spec)
    measured = np.random.default_rng(0).normal(2.0, 3.0, (50, sizes.STATE_DIM))
    robot = robot.with_statistics(measured, kind=type(network).STATISTICS)
    out = exported(save(tmp_path / "policy.safetensors", family, network, robot), form, tmp_path / "out")
    options = {"vision_heads": 2} | ({"token_length": 40} if form == "openpi" else {"horizon": 4})
    cameras = {} if form == "lerobot" else CAMERAS
    again, other = build.build_backbone(PolicyNode(family, checkpoint=str(out), options=options, cameras=cameras), spec)
    assert {n: v.shape for n, v in again.state_dict().items()} == {n: v.shape for n, v in network.state_dict().items()}
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in again.state_dict().items())
    assert other.executed == (3 if form == "lerobot" else 4) and other.tokenizer == robot.tokenizer
    state = torch.from_numpy(measured[:3])
    torch.testing.assert_close(other.state.normalise(state), robot.state.normalise(state), rtol=1e-5, atol=1e-5)
    x = torch.linspace(-0.9, 0.9, 3 * 4 * 7).reshape(3, 4, 7)
    actions = replace(other, executed=3).actions(x, state), robot.actions(x, state)
    np.testing.assert_allclose(*actions, rtol=1e-6, atol=1e-6)


def test_what_names_cannot_tell_apart_is_not_written(tmp_path: Path) -> None:
    """lerobot excludes an action from being relative by a part of its name."""
    folder = openpi(tmp_path / "folder", "pi0")
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    network, robot = attach(folder, "pi0", options=OPENPI, tokenizer=tokenizer)
    robot = replace(robot, relative=(-1, 1, 2, 3, 4))  # "x" is absolute, and no other name has it
    there_and_back(folder, "lerobot", (network, robot), "pi0")
    robot = replace(robot, relative=(0, 1, 2, -1, 4), action_names=("a", "b", "c", "grip", "gripper"))
    with pytest.raises(ValueError, match="'gripper' has one"):
        exported(save(tmp_path / "second.safetensors", "pi0", network, robot), "lerobot", tmp_path / "second")


def test_a_policy_file_keeps_the_mapping_of_cameras(tmp_path: Path) -> None:
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(lerobot(tmp_path / "folder", "pi0"), "pi0"))
    network, robot = build.build_backbone(PolicyNode("pi0", checkpoint=str(file)), simulator())
    assert network.spec.cameras == robot.views == tuple(SEEN)
    assert OPTIONS["vision_heads"] == network.config.vision_heads
