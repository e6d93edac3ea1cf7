"""Adapters leave as peft and lerobot store them; peft itself puts them on the base and gets the merged network."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from embodied_rl.actors.learning.trainable import choose_trainable
from embodied_rl.assembly import build
from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import LoraNode
from tests.support.building_checkpoints import lerobot, openpi, prefixed, tensors
from tests.support.refusals import refuses
from tests.support.using_checkpoints import attach_any, exported, save, smolvla_folder, stored, velocity

pytestmark = pytest.mark.thorough
FAMILIES = ("pi0", "pi05", "smolvla")
RANK, ALPHA = 2, 6.0
families = pytest.mark.parametrize("family", FAMILIES)


def base_folder(place: Path, family: str) -> Path:
    return smolvla_folder(place) if family == "smolvla" else lerobot(place / "base", family)


def adapted(place: Path, family: str) -> tuple[Path, Path]:
    """A base of lerobot's, and a policy file with adapters and heads that have learned."""
    base = base_folder(place, family)
    network, robot = attach_any(base, family)
    choose_trainable(network, "lora", LoraNode(RANK, ALPHA))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return base, save(place / "adapted.safetensors", family, network, robot)


class Container(nn.Module):
    """A module that only holds others."""


def as_lerobot_has_it(network: FlowBackbone) -> nn.Module:
    """A model with the network's own modules, under lerobot's names: what is put into it is in the network, too."""
    root, cls = Container(), type(weight_names.as_foreign(network))
    children = list(network.named_children())
    for name, _ in children:
        delattr(network, name)
    for name, child in children:
        path = "model." + weight_names.to_their_name(cls, f"{name}.").removesuffix(".")
        *parents, last = path.split(".")
        place: Any = root
        for parent in parents:
            if not hasattr(place, parent):
                place.add_module(parent, Container())
            place = getattr(place, parent)
        for part, module in child.named_children() if hasattr(place, last) else ():
            getattr(place, last).add_module(part, module)
        if not hasattr(place, last):
            place.add_module(last, child)
    return root


def put_back(network: FlowBackbone, root: nn.Module, names: list[str]) -> None:
    """Give the network the modules of the model again, with what was put into them or in their place."""
    cls = type(weight_names.as_foreign(network))
    for name in names:
        path = "model." + weight_names.to_their_name(cls, f"{name}.").removesuffix(".")
        network.add_module(name, root.get_submodule(path))


@families
def test_peft_makes_the_merged_network_of_base_and_adapters(tmp_path: Path, family: str) -> None:
    """The package's own loader, on a model with lerobot's names, gives what our merged weights give."""
    base, file = adapted(tmp_path, family)
    folder = exported(file, "peft", tmp_path / "adapter", base=str(base))
    merged, _ = build.load_backbone(file)
    network, _ = attach_any(base, family)
    before = velocity(network)
    names = [name for name, _ in network.named_children()]
    from peft import PeftModel

    model = PeftModel.from_pretrained(as_lerobot_has_it(network), str(folder))
    put_back(network, model.base_model.model, names)
    after = velocity(network)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, velocity(merged), rtol=1e-5, atol=1e-5)


@families
def test_the_folder_is_laid_out_as_peft_and_lerobot_expect(tmp_path: Path, family: str) -> None:
    """From the layout that peft documents, without peft: W + alpha / r B A, and trained modules whole."""
    base, file = adapted(tmp_path, family)
    folder = exported(file, "peft", tmp_path / "adapter", base=str(base))
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", RANK, ALPHA)
    assert settings["base_model_name_or_path"] == str(base)
    config = json.loads((folder / "config.json").read_text())
    whole = exported(file, "lerobot", tmp_path / "whole")
    assert config == json.loads((whole / "config.json").read_text()) | {"use_peft": True}
    assert {file.name for file in folder.iterdir()} - {"adapter_config.json", "adapter_model.safetensors"} == {
        file.name for file in whole.iterdir()
    } - {"model.safetensors"}
    weights, expected = stored(base / "model.safetensors"), stored(whole / "model.safetensors")
    kept = load_file(folder / "adapter_model.safetensors")
    used: set[str] = set()
    for name in settings["target_modules"]:
        a, b = (f"base_model.model.{name}.lora_{part}.weight" for part in "AB")
        weights[f"{name}.weight"] = weights[f"{name}.weight"].float() + ALPHA / RANK * kept[b] @ kept[a]
        used |= {a, b}
    for name in settings["modules_to_save"]:
        for part in ("weight", "bias"):
            weights[f"{name}.{part}"] = kept[f"base_model.model.{name}.{part}"]
            used.add(f"base_model.model.{name}.{part}")
    assert used == kept.keys() and settings["modules_to_save"]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name].to(value.dtype), value, rtol=0.01, atol=1e-5)


def test_a_base_of_other_weights_is_refused(tmp_path: Path) -> None:
    base, file = adapted(tmp_path, "pi0")
    changed = load_file(base / "model.safetensors")
    name = next(name for name in changed if name.endswith("expert.model.layers.1.mlp.up_proj.weight"))
    changed[name] = changed[name] + 0.01
    other = lerobot(tmp_path / "other", "pi0", weights=changed)
    with refuses("base-weights-differ", f"base={other}", name):
        exported(file, "peft", tmp_path / "adapter", base=str(other))
    assert not (tmp_path / "adapter").exists()


def test_a_base_that_is_rounded_is_the_same(tmp_path: Path) -> None:
    _, file = adapted(tmp_path, "pi0")
    half: dict[str, Tensor] = {name: value.bfloat16() for name, value in prefixed(tensors("pi0")).items()}
    base = lerobot(tmp_path / "half", "pi0", weights=half)
    folder = exported(file, "peft", tmp_path / "adapter", base=str(base))
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)


def test_a_name_on_the_hub_is_written_and_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, file = adapted(tmp_path, "pi0")
    folder = exported(file, "peft", tmp_path / "adapter", base="lerobot/pi0_base")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "lerobot/pi0_base"
    assert "Not checked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "base", "message"),
    [
        ("peft", None, "base is missing: format=peft needs base="),
        ("peft", "not/there/at_all", "there is no such folder"),
        ("peft", "file", "there is no such folder"),
        ("peft", "empty", "is not a checkpoint folder"),
        ("peft", "openpi", "is a checkpoint of openpi"),
        ("peft", "pi05", "holds policy 'pi05'; the adapters are of 'pi0'"),
        ("lerobot", "lerobot/pi0_base", "base=lerobot/pi0_base"),
    ],
)
def test_a_base_that_cannot_be_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, base: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _, file = adapted(tmp_path, "pi0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    openpi(tmp_path / "openpi", "pi0")
    lerobot(tmp_path / "pi05", "pi05")
    with pytest.raises(UserError, match=message):
        exported(file, form, tmp_path / "adapter", base=base)


def test_a_policy_without_adapters_is_refused(tmp_path: Path) -> None:
    base = lerobot(tmp_path / "base", "pi0")
    file = save(tmp_path / "policy.safetensors", "pi0", *attach_any(base, "pi0"))
    with pytest.raises(UserError, match=r"has no adapters, which policy\.train=lora makes: give format=lerobot"):
        exported(file, "peft", tmp_path / "adapter", base=str(base))
