"""SmolVLA out of lerobot's format and back into it: the same folder, whatever the network itself never reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.schema import PolicyNode
from tests.support.building_checkpoints import simulator
from tests.support.using_checkpoints import (
    SMOLVLA_TOLD,
    assert_same_tensors,
    exported,
    save,
    small_files,
    smolvla_folder,
    stored,
    velocity,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small SmolVLA as lerobot stores one."""
    return smolvla_folder(tmp_path)


def attached(folder: Path, **options: Any):
    return build.build_backbone(
        PolicyNode("smolvla", checkpoint=str(folder), options=SMOLVLA_TOLD | options), simulator()
    )


def test_a_folder_comes_back_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    network, robot = attached(folder)
    again = exported(save(tmp_path / "policy.safetensors", "smolvla", network, robot), "lerobot", tmp_path / "again")
    assert_same_tensors(stored(again / "model.safetensors"), stored(folder / "model.safetensors"))
    assert small_files(again) == small_files(folder)


def test_a_network_that_is_read_back_says_the_same(folder: Path, tmp_path: Path) -> None:
    network, robot = attached(folder)
    file = save(tmp_path / "policy.safetensors", "smolvla", network, robot)
    assert torch.equal(velocity(build.load_backbone(file)[0]), velocity(network))


def test_a_missing_tensor_is_named(folder: Path) -> None:
    tensors = stored(folder / "model.safetensors")
    del tensors["model.state_proj.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: state_proj\.bias"):
        attached(folder)


def test_sizes_that_contradict_the_folder_are_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"policy\.horizon=4, not 5"):
        attached(folder, horizon=5)
