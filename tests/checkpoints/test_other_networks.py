"""Folders of networks that are not supported are named for what they are, never taken for openpi's π0."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from embodied_rl.checkpoints import detection, unsupported
from embodied_rl.commands import inspect
from embodied_rl.schema import InspectConfig
from tests.support.building_checkpoints import POISON, lerobot, openpi
from tests.support.using_checkpoints import attach

SPATIALVLA = {"architectures": ["SpatialVLAForConditionalGeneration"], "model_type": "spatialvla"}


def folder_with(place: Path, config: dict[str, Any] | None, *names: str) -> Path:
    """A folder of transformers: weights with these names, and a config.json."""
    place.mkdir()
    save_file({name: torch.zeros(2) for name in names}, place / "model.safetensors")
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        (SPATIALVLA, "language_model.model.norm.weight", "SpatialVLA"),
        ({"architectures": ["GR00T_N1_5"], "model_type": "gr00t_n1_5"}, "backbone.eagle_model.a.weight", "GR00T N1.5"),
        ({"model_type": "gr00t_n1"}, "backbone.a.weight", "GR00T N1"),
        ({"architectures": ["Gr00tN1d6"], "model_type": "Gr00tN1d6"}, "backbone.a.weight", "GR00T N1.6"),
        ({"model_type": "molmoact2"}, "vlm.a.weight", "MolmoAct2"),
        ({"architectures": ["XVLA"], "model_type": "xvla"}, "vlm.language_model.a.weight", "X-VLA"),
        ({"architectures": ["Qwen2_5_VLMoEForAction"], "model_type": "qwen2_5_vl"}, "visual.a.weight", "Wall-X"),
        (
            {"architectures": ["PI0ForConditionalGeneration"], "model_type": "pi0"},
            "model.vlm.a.weight",
            "transformers' own π0",
        ),
        ({"model_type": "pi0"}, "model.vlm.a.weight", "transformers' own π0 (pi0)"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "model.norm.weight", "LlamaForCausalLM"),
        ({"architectures": None, "model_type": 3}, "model.norm.weight", "another project's network"),
        (None, "model.vlm_with_expert.lm_expert.a.weight", "lerobot's SmolVLA without its config.json"),
        (None, "encoder.weight", "an unknown network (with a tensor 'encoder.weight')"),
        ({"action_dim": 32}, "encoder.weight", "an unknown network (with a tensor 'encoder.weight')"),
    ],
)
def test_another_network_is_named(tmp_path: Path, config: dict[str, Any] | None, name: str, said: str) -> None:
    folder = folder_with(tmp_path / "folder", config, name)
    for read in (lambda: detection.read_checkpoint(folder), lambda: attach(folder, "pi0", options={"horizon": 6})):
        with pytest.raises(ValueError) as caught:
            read()
        assert f"{folder} holds {said}, which is not supported yet; supported are lerobot's pi0" in str(caught.value)


def test_pickled_weights_of_another_network(tmp_path: Path) -> None:
    """That they are a pickle is not what keeps them from being read."""
    folder = folder_with(tmp_path / "folder", SPATIALVLA)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds SpatialVLA, which is not supported yet"):
        detection.read_checkpoint(folder)


@pytest.mark.parametrize(("kind", "name"), [
    ("xvla", "X-VLA"), ("wall_x", "Wall-X"),
    ("molmoact2", "MolmoAct2"), ("smolvla2", "successor of SmolVLA"), ("vla_jepa", "VLA-JEPA"),
    ("pi0fast", "π0-FAST of lerobot before 0.4"), ("new_one", "'new_one'"),
])  # fmt: skip
def test_lerobots_other_policies(tmp_path: Path, kind: str, name: str) -> None:
    """With keys of their own and without processors, as `inspect` and `import` read them."""
    folder = lerobot(tmp_path / "folder", "pi0", type=kind, latent_dim=32, vision_backbone="resnet18")
    for file in folder.glob("policy_*"):
        file.unlink()
    for read in (lambda: inspect.run(InspectConfig(checkpoint=str(folder))), lambda: attach(folder, "pi0")):
        with pytest.raises(ValueError) as caught:
            read()
        assert f"lerobot's {name}, which is not supported yet; supported are lerobot's pi0" in str(caught.value)


OTHERS: dict[str, dict[str, Any]] = {
    "Octo": {"config.json": {"model": {"heads": {"action": {}}}}, "example_batch.msgpack": POISON},
    "CogACT": {"config.json": {"vla": {"base_vlm": "prism"}, "action_model_type": "DiT-B"}, "checkpoints/a.pt": POISON},
    "OpenVLA as Prismatic stores it": {"config.json": {"vla": {"base_vlm": "prism"}}, "checkpoints/a.pt": POISON},
    "StarVLA": {"config.yaml": {"framework": {"name": "QwenGR00T"}}, "checkpoints/steps_1_pytorch_model.pt": POISON},
}


@pytest.mark.parametrize("name", OTHERS)
def test_projects_whose_weights_are_not_read(tmp_path: Path, name: str) -> None:
    for file, content in {**OTHERS[name], "dataset_statistics.json": b"{}"}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError, match=f"holds {name}, which is not supported yet; supported are lerobot's pi0"):
        inspect.run(InspectConfig(checkpoint=str(tmp_path)))


def test_what_support_would_take_is_said(tmp_path: Path) -> None:
    """By the table that the documentation shows, too."""
    folder = folder_with(tmp_path / "folder", {"model_type": "gr00t_n1_5"}, "backbone.a.weight")
    with pytest.raises(ValueError, match=re.escape(f"It takes {unsupported.NEEDS['GR00T N1.5']}.")):
        detection.read_checkpoint(folder)
    documented = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    for name, needs in unsupported.NEEDS.items():
        assert name in documented and needs in documented, name


def test_openpis_own_are_still_read(tmp_path: Path) -> None:
    for converted in (False, True):
        found = detection.read_checkpoint(openpi(tmp_path / str(converted), "pi05", converted=converted))
        assert (found.format, found.policy) == ("openpi", "pi05")
