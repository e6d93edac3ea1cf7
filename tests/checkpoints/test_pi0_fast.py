"""Folders of lerobot's π0-FAST: what is read, exported and refused by name; the code in them is never run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.assembly import build
from embodied_rl.commands import inspect
from embodied_rl.schema import InspectConfig
from tests.support import building_checkpoints as building
from tests.support import fast_sizes, small_fast
from tests.support import pi_sizes as sizes
from tests.support.refusals import refuses
from tests.support.small_fast import attach, folder
from tests.support.using_checkpoints import SEEN, save, small_files, stored, there_and_back

pytestmark = pytest.mark.thorough
each = pytest.mark.parametrize
CODE = "action_tokenizer/processing_action_tokenizer.py"


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_prompts_and_actions_are_lerobots(tmp_path: Path) -> None:
    network, robot = attach(folder(tmp_path / "folder"))
    state = robot.state.normalise(torch.from_numpy(sizes.state()))
    tokens = robot.tokens(network.prompts(sizes.TASKS, state))
    assert torch.equal(tokens, small_fast.GOLDEN["policy.tokens"])
    torch.testing.assert_close(state, small_fast.GOLDEN["policy.state"], rtol=1e-5, atol=1e-5)
    written = small_fast.close(small_fast.golden_rows("policy.written"), network)
    found = robot.action.restore(network.read_tokens(written).numpy())
    np.testing.assert_allclose(found, small_fast.GOLDEN["policy.actions"].numpy(), rtol=1e-5, atol=1e-5)
    assert (robot.executed, network.longest) == (sizes.CHUNK, fast_sizes.WRITTEN - 3)


def test_a_folder_comes_back_byte_for_byte_without_its_code(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder")
    back = there_and_back(path, "lerobot", attach(path), "pi0_fast")
    assert (back / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    kept = small_files(path)
    assert kept.pop(CODE) and small_files(back) == kept
    attach(back)


def test_a_policy_file_has_all_that_it_needs(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder")
    attached = attach(path)
    network, robot = build.load_backbone(save(tmp_path / "policy.safetensors", "pi0_fast", *attached))
    assert network.config == attached[0].config and robot == attached[1]
    chunks = fast_sizes.walks("demonstrated", 3)
    assert network.fast.encode(chunks) == small_fast.golden_rows("network.codes")


def test_statistics_that_the_folder_cannot_hold_make_new_files(tmp_path: Path) -> None:
    """As after a base checkpoint without statistics, which `policy.statistics` gave."""
    path = folder(tmp_path / "folder")
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        change(path / name, lambda content: [step.pop("state_file", None) for step in content["steps"]])
    stats = {
        name: {key: np.asarray(value, float).tolist() for key, value in building.statistics()[short].items()}
        for name, short in building.NUMBERS.items()
    }
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    attached = attach(path, statistics=str(tmp_path / "stats.json"))
    back = there_and_back(path, "lerobot", attached, "pi0_fast")
    again, robot = attach(back, cameras=SEEN)
    np.testing.assert_allclose(robot.action.center, attached[1].action.center, rtol=1e-5)
    assert again.config == attached[0].config
    assert stored(back / "model.safetensors").keys() == stored(path / "model.safetensors").keys()
    told, before = (json.loads((back / name).read_text()) for name in ("config.json", "policy_preprocessor.json"))
    assert told["action_tokenizer_name"] == "lerobot/fast-action-tokenizer"
    step = next(step for step in before["steps"] if step["registry_name"] == "action_tokenizer_processor")
    assert step["artifacts"] == {"action_tokenizer_name": "action_tokenizer"}


def test_lerobot_executes_what_it_decodes(tmp_path: Path) -> None:
    """It would decode a chunk of fewer actions as a shorter one, so that an export says all of them."""
    path = folder(tmp_path / "folder")
    back = there_and_back(path, "lerobot", attach(path, executed=2), "pi0_fast")
    assert json.loads((back / "config.json").read_text())["n_action_steps"] == sizes.CHUNK


def test_inspect_leaves_out_the_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "folder")
    file = save(tmp_path / "policy.safetensors", "pi0_fast", *attach(path))
    inspect.run(InspectConfig(checkpoint=str(file)))
    shown = capsys.readouterr().out
    assert "action_tokens 300" in " ".join(shown.split()) and "added_tok" not in shown


def test_the_byte_pair_encoding_may_lie_beside_its_settings(tmp_path: Path) -> None:
    """As on the hub, where transformers 4 stored it."""
    path = folder(tmp_path / "folder")
    for file in (path / "action_tokenizer" / "bpe_tokenizer").iterdir():
        file.rename(path / "action_tokenizer" / file.name)
    network, _ = attach(path)
    assert network.choices == 300


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], object], str, tuple[object, ...]]] = {
    "a setting": ("processor_config.json", lambda c: c.update(wavelet="haar"), "checkpoint-unsupported", ("wavelet",)),
    "another class": (
        "processor_config.json", lambda c: c.update(processor_class="Other"), "checkpoint-unsupported", ("Other",),
    ),
    "no scale": ("processor_config.json", lambda c: c.update(scale=0), "checkpoint-unsupported", ("scale",)),
    "a horizon": (
        "processor_config.json", lambda c: c.update(time_horizon=9), "tokenizer-does-not-fit", ("time_horizon", 9),
    ),
    "dimensions": (
        "processor_config.json", lambda c: c.update(action_dim=9), "tokenizer-does-not-fit", ("action_dim", 9),
    ),
    "spaces": (
        "bpe_tokenizer/tokenizer_config.json", lambda c: c.update(clean_up_tokenization_spaces=True),
        "checkpoint-unsupported", ("clean_up_tokenization_spaces",),
    ),
    "a prefix": (
        "bpe_tokenizer/tokenizer_config.json", lambda c: c.update(add_prefix_space=True), "checkpoint-unsupported",
        ("add_prefix_space",),
    ),
    "damage": ("bpe_tokenizer/tokenizer.json", lambda c: c.pop("model"), "tokenizer-damaged", ()),
}  # fmt: skip


@each("name", REFUSED)
def test_a_tokenizer_that_is_not_understood_is_refused(tmp_path: Path, name: str) -> None:
    file, edit, code, data = REFUSED[name]
    path = folder(tmp_path / "folder")
    change(path / "action_tokenizer" / file, edit)
    with refuses(code, *data):
        attach(path)


@each("name", ["processor_config.json", "bpe_tokenizer/tokenizer.json"])
def test_a_missing_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "folder")
    (path / "action_tokenizer" / name).unlink()
    with refuses("tokenizer-missing", "lerobot/fast-action-tokenizer"):
        attach(path)


@each(
    ("key", "value", "code"),
    [
        ("n_action_steps", 3, "checkpoint-unsupported"),
        ("temperature", 0.5, "checkpoint-unsupported"),
        ("fast_skip_tokens", 20, "checkpoint-unsupported"),
        ("max_decoding_steps", 0, "checkpoint-damaged"),
        ("image_resolution", [70, 70], "checkpoint-unsupported"),
        ("beam_width", 4, "checkpoint-unsupported"),
    ],
)
def test_settings_that_change_actions_are_refused(tmp_path: Path, key: str, value: Any, code: str) -> None:
    path = folder(tmp_path / "folder", **{key: value})
    with refuses(code, key):
        attach(path)


def test_a_step_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder")
    name = "action_tokenizer_processor"

    def drop(content: dict[str, Any]) -> None:
        content["steps"] = [step for step in content["steps"] if step["registry_name"] != name]

    change(path / "policy_preprocessor.json", drop)
    with refuses("checkpoint-unsupported", name):
        attach(path)


def test_the_tokenizer_of_another_language_model_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder")
    other = building.tokenizer_files(tmp_path / "other")
    with refuses("tokenizer-does-not-fit", "policy.tokenizer_size"):
        attach(path, tokenizer=str(other))


def test_another_robot_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder", output_features={"action": {"type": "ACTION", "shape": [4]}})
    with refuses("checkpoint-too-small", 4):
        attach(path)


def test_an_export_to_another_project_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder")
    with refuses("format-does-not-support-policy"):
        there_and_back(path, "openpi", attach(path), "pi0_fast")
