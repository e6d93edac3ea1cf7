"""SmolVLA out of lerobot's format and back into it: the same folder, whatever the network itself never reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.building_checkpoints import simulator
from tests.support.using_checkpoints import assert_same_tensors, exported, save, small_files, stored, velocity

pytest.importorskip("transformers")

from embodied_rl.assembly import build
from embodied_rl.config.schema import PolicyNode
from embodied_rl.learning.checkpoint import CheckpointError

SIZES = {
    "width": 32, "layers": 2, "hidden": 40, "heads": 2, "key_value_heads": 1, "head_dim": 8, "vocabulary": 60,
    "expert_width": 24, "expert_hidden": 32, "vision_width": 16, "vision_layers": 1, "vision_hidden": 24,
    "vision_heads": 2, "patch": 8, "resolution": 32, "pixel_shuffle": 2, "horizon": 4, "action_dim": 7, "state_dim": 8,
    "token_length": 40,
}  # fmt: skip
TOLD = {"head_dim": 8, "vision_heads": 2}
"""What tensors do not tell of a vision tower and a language model that were never published."""
CARRIED = "model.vlm_with_expert.vlm.lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small SmolVLA as lerobot stores one: half of it in bfloat16, with the output layer that nothing reads."""
    torch.manual_seed(0)
    network, robot = build.build_backbone(PolicyNode("smolvla", options=SIZES), simulator())
    out = exported(save(tmp_path / "new.safetensors", "smolvla", network, robot), "lerobot", tmp_path / "folder")
    tensors = stored(out / "model.safetensors")
    assert CARRIED in tensors
    tensors[CARRIED] = torch.randn(tensors[CARRIED].shape)
    half = {name: value.bfloat16() if "text_model" in name else value for name, value in tensors.items()}
    save_file(half, out / "model.safetensors", {"format": "pt"})
    return out


def attached(folder: Path, **options: Any):
    return build.build_backbone(PolicyNode("smolvla", checkpoint=str(folder), options=TOLD | options), simulator())


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
