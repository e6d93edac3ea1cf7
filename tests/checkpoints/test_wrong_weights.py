"""Whatever is wrong with a checkpoint's weights is said with the file, the tensor and the remedy."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import building_checkpoints as building
from tests.support.building_checkpoints import EMBEDDING, HEAD
from tests.support.wrong_checkpoints import change_weights, refused


def test_a_tensor_that_is_missing(folder: Path) -> None:
    name = f"model.{building.CORE}gemma_expert.model.layers.1.mlp.up_proj.weight"
    change_weights(folder, lambda weights: weights.pop(name))
    refused(folder, str(folder), "not a checkpoint of this network", f"missing: {name.removeprefix('model.')}")


def test_the_embedding_under_neither_name(folder: Path) -> None:
    def drop(weights: dict[str, Any]) -> None:
        del weights[f"model.{HEAD}"], weights[f"model.{EMBEDDING}"]

    change_weights(folder, drop)
    refused(folder, "not one of π0 or π0.5: language.embed_tokens.weight is missing")


def test_a_tensor_too_many(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.reward_head.weight": torch.zeros(2)}))
    refused(folder, "unknown: model.reward_head.weight")


def test_many_wrong_tensors_are_counted(folder: Path) -> None:
    def rename(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if ".vision_tower." in name and ".encoder." in name and ".1." in name]:
            weights[name.replace("encoder.layers", "blocks")] = weights.pop(name)

    change_weights(folder, rename)
    change_weights(folder, lambda weights: weights.update({f"extra.{index}": torch.zeros(1) for index in range(9)}))
    message = refused(folder, "more are unknown")
    assert message.count("unknown: ") == 6


def test_a_tensor_of_another_shape(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.state_proj.bias": torch.zeros(7)}))
    refused(folder, "model.state_proj.bias is (7,), expected (24,)")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_that_are_no_floating_point_numbers(folder: Path, dtype: torch.dtype) -> None:
    name = "model.state_proj.bias"
    change_weights(folder, lambda weights: weights.update({name: weights[name].to(dtype)}))
    kind = str(dtype).removeprefix("torch.")
    refused(folder, str(folder / "model.safetensors"), f"{name} is {kind}; weights are floating-point numbers")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    name = "model.action_out_proj.weight"
    change_weights(folder, lambda weights: weights[name].view(-1)[3:4].fill_(value))
    refused(folder, str(folder / "model.safetensors"), f"{name} has values that are NaN or infinite")


def test_a_truncated_file_of_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for kept in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:kept])
        refused(folder, str(file), "damaged")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_under_the_name_of_weights(folder: Path, protocol: int) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps({"x": [1.0] * 20}, protocol=protocol))
    refused(folder, "model.safetensors is damaged or not a safetensors file")


@pytest.mark.parametrize("header", [b"[]", b'"a"', b'{"x": 3}', b'{"x": {"dtype": "F99", "shape": []}}'])
def test_a_header_that_is_none(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(folder, "model.safetensors is damaged or not a safetensors file")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
@pytest.mark.parametrize("project", ["lerobot", "openpi"])
def test_pickled_weights_are_refused_unopened(tmp_path: Path, project: str, name: str) -> None:
    folder = getattr(building, project)(tmp_path / "folder", "pi0")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(building.POISON)
    refused(folder, f"{name} is a pickle, which can run any code when opened", "model.safetensors")


def test_the_poison_works() -> None:
    with pytest.raises(SystemExit, match="a pickle was opened"):
        pickle.loads(building.POISON)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights: model.safetensors is missing")


def test_a_shard_that_is_missing(folder: Path) -> None:
    building.shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model.safetensors.index.json names model-00002-of-00002.safetensors, which is missing")


def test_an_index_that_differs_from_its_shards(folder: Path) -> None:
    """It names what no shard holds, or another shard, or leaves a tensor out; or two shards hold one tensor."""
    building.shard(folder)
    index, (first, second) = folder / "model.safetensors.index.json", sorted(folder.glob("model-*.safetensors"))
    listed = json.loads(index.read_text())
    name = next(name for name, place in listed["weight_map"].items() if place == first.name)
    others = {key: place for key, place in listed["weight_map"].items() if key != name}
    for wrong in (listed["weight_map"] | {"model.nowhere": first.name}, others | {name: second.name}, others):
        index.write_text(json.dumps({"weight_map": wrong}))
        refused(folder, str(index), "model.nowhere" if "model.nowhere" in wrong else name)
    index.write_text(json.dumps(listed))
    save_file(load_file(second) | {name: 2 * load_file(first)[name]}, second)
    refused(folder, str(index), second.name, name)


def test_what_is_damaged_in_an_index(folder: Path) -> None:
    building.shard(folder)
    index = folder / "model.safetensors.index.json"
    for damaged in ("{", "[]", '{"weight_map": []}', '{"weight_map": {"model.x": 3}}', "{}"):
        index.write_text(damaged)
        refused(folder, "model.safetensors.index.json is damaged")


def test_an_index_cannot_point_out_of_its_folder(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    names = dict.fromkeys(load_file(outside), "../outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    refused(folder, "names ../outside.safetensors, which is missing")


def test_folders_from_before_processors_are_to_be_migrated(folder: Path) -> None:
    name = "normalize_inputs.buffer_observation_state.mean"
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(6)}))
    refused(folder, "migrate_policy_normalization")
