"""Exports name their tokenizer for every version of lerobot: in the folder, and on the hub where that is known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import FlowBackbone, PolicyInput
from embodied_rl.interfaces.sim import Observation
from tests.support import building_checkpoints as building
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import FAMILIES, lerobot, openpi, use_tokenizer
from tests.support.tiny_tokenizer import llama_tokenizer
from tests.support.using_checkpoints import OPENPI, attach, attach_any, exported, save, smolvla_folder, there_and_back

HUB = "google/paligemma-3b-pt-224"
PALIGEMMA = {"<loc0000>": 256_000, "<seg127>": 257_151}
"""Ids of two tokens that PaliGemma's tokenizer has and Gemma's has not."""


def tokenizer_with(folder: Path, tokens: dict[str, int]) -> str:
    """The path of a tokenizer's folder: the tiny one, with further tokens."""
    file = building.tokenizer_files(folder) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= tokens
    file.write_text(json.dumps(content))
    return str(folder)


def tokenizer_step(folder: Path) -> dict[str, Any]:
    steps = json.loads((folder / "policy_preprocessor.json").read_text())["steps"]
    return next(step for step in steps if step["registry_name"] == "tokenizer_processor")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (PALIGEMMA, HUB),
        ({}, "tokenizer"),
        (PALIGEMMA | {"<seg127>": 257_150}, "tokenizer"),
        ({"<loc0000>": 256_000}, "tokenizer"),
    ],
)
def test_what_came_from_openpi_names_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, tokens: dict[str, int], name: str
) -> None:
    """Version 0.6.2 takes the folder of the artifacts; older ones take the name, and the user is told if it is none."""
    folder = openpi(tmp_path / "folder", family)
    given = tokenizer_with(tmp_path / "tokenizer", tokens)
    there = there_and_back(folder, "lerobot", attach(folder, family, options=OPENPI, tokenizer=given), family)
    step = tokenizer_step(there)
    assert step["config"]["tokenizer_name"] == name and step["artifacts"] == {"tokenizer_name": "tokenizer"}
    assert (there / "tokenizer/tokenizer.json").read_text() == (Path(given) / "tokenizer.json").read_text()
    told = f'preprocessor_overrides={{"tokenizer_processor": {{"tokenizer_name": "{there / "tokenizer"}"}}}}'
    assert (told in capsys.readouterr().out) == (name == "tokenizer")


@pytest.mark.parametrize("family", [*FAMILIES, "smolvla"])
@pytest.mark.parametrize("name", ["somebody/tokenizer", "tokenizer"])
def test_processors_that_are_made_anew_keep_the_name_of_the_source(tmp_path: Path, family: str, name: str) -> None:
    """They are where they cannot hold the statistics."""
    folder = smolvla_folder(tmp_path) if family == "smolvla" else lerobot(tmp_path / "folder", family)
    for file in folder.glob("policy_*.json"):
        content = json.loads(file.read_text())
        for step in content["steps"]:
            if "norm_map" in step["config"]:
                step["config"]["norm_map"]["STATE"] = "IDENTITY"
            if "tokenizer_name" in step["config"]:
                step["config"]["tokenizer_name"] = name
        file.write_text(json.dumps(content))
    network, robot = attach_any(folder, family)
    measured = robot.with_statistics(np.random.default_rng(0).normal(size=(50, sizes.STATE_DIM)))
    file = save(tmp_path / "changed.safetensors", family, network, replace(robot, state=measured.state))
    again = exported(file, "lerobot", tmp_path / "again")
    assert tokenizer_step(again)["config"]["tokenizer_name"] == name
    assert tokenizer_step(again)["artifacts"] == {"tokenizer_name": "tokenizer"}


def test_the_tokenizer_is_that_of_the_step(tmp_path: Path) -> None:
    """Others lie in its folder: lerobot reads the one that `artifacts` names."""
    folder = lerobot(tmp_path / "folder", "pi0")
    for place in (folder, folder / "backup"):
        place.mkdir(exist_ok=True)
        (place / "tokenizer.json").write_text(llama_tokenizer())
    found = attach(folder, "pi0")[1]
    assert found.tokenizer == (folder / "tokenizer/tokenizer.json").read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_told_of_openpis_format(tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str) -> None:
    folder = lerobot(tmp_path / "folder", family)
    there_and_back(folder, "openpi", attach(folder, family), family)
    assert "0.6.2" not in capsys.readouterr().out


PADS = {"pi0": 0, "pi05": 0, "smolvla": 2}
"""The id that lerobot pads each policy's prompts with."""


def folder_of(family: str, place: Path) -> Path:
    return smolvla_folder(place) if family == "smolvla" else lerobot(place / "folder", family)


def observed(text: str) -> Observation:
    images = {name: np.full((1, 48, 64, 3), 90, np.uint8) for name in ("front", "wrist")}
    return Observation(images, sizes.state()[:1], (text,))


@torch.no_grad()
def velocity(network: FlowBackbone, inputs: PolicyInput) -> Tensor:
    spec = network.spec
    x = torch.linspace(-1, 1, spec.horizon * spec.action_dim).reshape(1, spec.horizon, spec.action_dim)
    return network.velocity(x, torch.tensor([0.6]), network.encode(inputs))[0]


@pytest.mark.parametrize("family", PADS)
def test_a_tokenizer_that_was_used_gives_the_same_actions(family: str, tmp_path: Path) -> None:
    """Pads are no words: neither the tokens nor what the network makes of them change."""
    folder = folder_of(family, tmp_path)
    network, robot = attach_any(folder, family)
    expected = robot.inputs(observed("pick up"), network)
    use_tokenizer(folder / "tokenizer/tokenizer.json", length=robot.token_length, pad=PADS[family])
    network, robot = attach_any(folder, family)
    inputs = robot.inputs(observed("pick up"), network)
    assert torch.equal(inputs.tokens, expected.tokens)
    assert torch.equal(velocity(network, inputs), velocity(network, expected))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_added_token_beyond_the_networks_words_is_plain_text(family: str, tmp_path: Path) -> None:
    """PaliGemma's tokenizer has `<image>` as id 257,152, one more than the table of π0 and π0.5 has rows."""
    folder = folder_of(family, tmp_path)
    network, robot = attach_any(folder, family)
    rows, file = network.config.vocabulary, folder / "tokenizer/tokenizer.json"
    expected = robot.inputs(observed("pick up"), network)
    content = json.loads(file.read_text())
    extra = {"id": rows, "content": "<image>", "special": True}
    content["added_tokens"] += [content["added_tokens"][0] | extra]
    content["model"]["vocab"] |= {f"word{index}": index for index in range(len(content["model"]["vocab"]), rows)}
    file.write_text(json.dumps(content))
    network, robot = attach_any(folder, family)
    assert torch.equal(robot.inputs(observed("pick up"), network).tokens, expected.tokens)
    assert robot.inputs(observed("an <image>"), network).tokens.max() < rows
    again = exported(save(tmp_path / "policy.safetensors", family, network, robot), "lerobot", tmp_path / "again")
    assert (again / "tokenizer/tokenizer.json").read_bytes() == file.read_bytes(), "as it was"
