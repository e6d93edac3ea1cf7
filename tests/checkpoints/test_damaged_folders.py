"""Folders of other projects whose settings or tensors are not what they should be are refused by name."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.assembly.networks import find_network_sizes
from embodied_rl.checkpoints import detection, foreign
from embodied_rl.config import plugins
from embodied_rl.interfaces.errors import UserError
from tests.support import building_checkpoints as building
from tests.support import small_fast, small_gr00t, small_imitation, small_openvla
from tests.support.refusals import refuses
from tests.support.strangers import change_json

HUGE = 10**400
"""A whole number that no float holds."""
WEIGHTS = "model.safetensors"
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "pi0": lambda place: building.lerobot(place, "pi0"),
    "pi0_fast": small_fast.folder,
    "gr00t": lambda place: small_gr00t.nvidia(small_gr00t.tokenizer(place.parent).parent / place.name),
    "openvla_oft": small_openvla.write_folder,
    "act": lambda place: small_imitation.folder(place, "act"),
    "diffusion": lambda place: small_imitation.folder(place, "diffusion"),
}
GIVEN: dict[str, dict[str, Any]] = {
    "pi0": {"vision_heads": 2}, "pi0_fast": {"vision_heads": 2}, "openvla_oft": small_openvla.HEADS,
}  # fmt: skip
"""What the folders do not say."""
Change = Callable[[Any], object]


def set_entry(*path: str | int, value: Any) -> Change:
    """A change of one entry of nested groups and lists."""

    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def read(folder: Path, policy: str) -> object:
    if policy == "gr00t":
        return small_gr00t.attach(folder)
    found = detection.read_checkpoint(folder)
    return find_network_sizes(found, plugins.find_plugin("policies", policy), GIVEN.get(policy, {}))


@contextmanager
def refuses_by_name(folder: Path) -> Iterator[None]:
    """Check that the context raises an error that users understand, with the folder's name and a code."""
    with pytest.raises(UserError) as raised:
        yield
    assert raised.value.code and str(folder) in str(raised.value)


SETTINGS: list[tuple[str, str, Change]] = [
    ("openvla_oft", "config.json", set_entry("text_config", value=["llama"])),
    ("openvla_oft", "preprocessor_config.json", set_entry("tvf_normalize_params", value=["x"])),
    ("openvla_oft", "config.json", set_entry("text_config", "rms_norm_eps", value=float("nan"))),
    ("gr00t", "processor_config.json", set_entry("processor_kwargs", "modality_configs", value=5)),
    ("pi0_fast", "config.json", set_entry("output_features", "action", "shape", value=[])),
    ("pi0_fast", "action_tokenizer/processor_config.json", set_entry("scale", value=HUGE)),
    ("pi0", "policy_preprocessor.json", set_entry("steps", value=5)),
    ("pi0", "config.json", set_entry("input_features", value=[1])),
    ("act", "config.json", set_entry("n_encoder_layers", value=10**9)),
    ("act", "config.json", set_entry("kl_weight", value=float("nan"))),
    ("diffusion", "config.json", set_entry("clip_sample_range", value=HUGE)),
    ("diffusion", "config.json", set_entry("crop_ratio", value=float("-inf"))),
    ("diffusion", "config.json", set_entry("crop_shape", value=[-64, -64])),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "file", "change"), SETTINGS)
def test_settings_of_another_kind(tmp_path: Path, policy: str, file: str, change: Change) -> None:
    folder = FOLDERS[policy](tmp_path / "folder")
    read(folder, policy)
    change_json(folder / file, change)
    with refuses_by_name(folder):
        read(folder, policy)


SHAPES = [
    ("openvla_oft", "embed_tokens.weight", (32, 0)), ("openvla_oft", "embed_tokens.weight", (32,)),
    ("gr00t", "mlp.up_proj.weight", ()), ("gr00t", "q_norm.weight", (0,)),
    ("pi0_fast", "embed_tokens.weight", (32,)), ("pi0_fast", "patch_embedding.weight", (2, 3, 4)),
    ("pi0_fast", "k_proj.weight", (0, 8)),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "name", "shape"), SHAPES)
def test_tensors_of_other_shapes(tmp_path: Path, policy: str, name: str, shape: tuple[int, ...]) -> None:
    folder = FOLDERS[policy](tmp_path / "folder")
    read(folder, policy)
    (file,) = folder.glob("model*.safetensors")
    held = load_file(file)
    changed = [key for key in held if key.endswith(name)]
    assert changed
    save_file(held | {key: torch.zeros(shape) for key in changed}, file)
    with refuses_by_name(folder):
        read(folder, policy)


def test_weights_behind_a_link_are_not_read(tmp_path: Path) -> None:
    folder = FOLDERS["act"](tmp_path / "folder")
    shutil.move(folder / "model.safetensors", tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with refuses("link-outside-folder", folder / "model.safetensors"):
        foreign.find_tensors(folder)


def shift(header: dict[str, Any]) -> None:
    """Let a tensor begin before the file."""
    header["a"]["data_offsets"] = [-5, 3]


def overlap(header: dict[str, Any]) -> None:
    """Let two tensors lie in the same place."""
    header["b"]["data_offsets"] = header["a"]["data_offsets"]


def widen(header: dict[str, Any]) -> None:
    """Give a tensor another shape than its bytes have."""
    header["a"]["shape"] = [3]


@pytest.mark.parametrize("change", [None, shift, overlap, widen])
def test_weights_that_are_cut_or_not_where_they_are_said_to_be(tmp_path: Path, change: Change | None) -> None:
    """Known from the header and the size of the file."""
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2), "b": torch.ones(4)}, file)
    assert set(foreign.find_tensors(tmp_path)) == {"a", "b"}
    content = file.read_bytes()
    if change is None:
        file.write_bytes(content[:-4])
    else:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    with refuses("checkpoint-damaged", file):
        foreign.find_tensors(tmp_path)


@pytest.mark.parametrize(
    "entries",
    [{"__metadata__": "abc"}, {"__metadata__": {"embodied_rl.prefix_trained_to": 5}},
     {"a": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4]}}],
)  # fmt: skip
def test_headers_that_say_something_else(tmp_path: Path, entries: dict[str, Any]) -> None:
    folder = building.lerobot(tmp_path / "folder", "pi0")
    header = json.dumps(entries).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with refuses("checkpoint-damaged", folder / WEIGHTS):
        detection.read_checkpoint(folder)
