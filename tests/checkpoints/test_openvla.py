"""Folders of OpenVLA in Hugging Face's layout: what is read, written back to the byte, chosen, and refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.actors.token import TokenActor
from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection, openvla
from embodied_rl.commands import inspect
from embodied_rl.interfaces.sim import Observation
from embodied_rl.schema import InspectConfig, PolicyNode
from tests.support import openvla_sizes as sizes
from tests.support import recipe, small_openvla
from tests.support.building_checkpoints import POISON
from tests.support.refusals import refuses
from tests.support.small_openvla import PART, attach, simulator, write_folder
from tests.support.using_checkpoints import assert_same_tensors, small_files, stored, there_and_back

each = pytest.mark.parametrize
MODEL, STATISTICS = "model.safetensors", "dataset_statistics.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One camera, no state."""
    return write_folder(tmp_path / "folder")


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the content of a JSON file."""
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


@each("name", ["openvla", "openvla_oft"])
@each("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_comes_back_byte_for_byte(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = write_folder(tmp_path / "folder", dtype=dtype)
    back = there_and_back(folder, "openvla", attach(folder, name), name)
    assert (back / MODEL).read_bytes() == (folder / MODEL).read_bytes()
    assert small_files(back) == small_files(folder)


def test_shards_and_the_projector_of_the_state_come_back(tmp_path: Path) -> None:
    """In one file; the projector without the prefix of distributed training, and with a way to make its pickle."""
    folder = write_folder(tmp_path / "folder", "two", shards=3)
    network, robot = attach(folder)
    assert network.spec.cameras == ("full_image", "wrist_image") and network.spec.state_dim == sizes.STATE_DIM
    back = there_and_back(folder, "openvla", (network, robot), "openvla_oft")
    shards = [stored(file) for file in folder.glob("model-*")]
    assert_same_tensors(stored(back / MODEL), {name: value for shard in shards for name, value in shard.items()})
    (part,) = back.glob("proprio_projector--*_checkpoint.safetensors")
    expected = {name.removeprefix("module."): value for name, value in stored(folder / PART).items()}
    assert_same_tensors(stored(part), expected)
    again, _ = attach(back)
    assert_same_tensors(again.state_dict(), network.state_dict())


def test_a_trained_or_new_network_is_written(tmp_path: Path, folder: Path) -> None:
    network, robot = attach(folder)
    with torch.no_grad():
        network.language_model.lm_head.weight.add_(1)
    robot = replace(robot, action=replace(robot.action, scale=tuple(2 * value for value in robot.action.scale)))
    back = there_and_back(folder, "openvla", (network, robot), "openvla_oft")
    again, other = attach(back, options={"horizon": 8})
    assert_same_tensors(again.state_dict(), network.state_dict())
    np.testing.assert_allclose(other.action.center, robot.action.center, atol=1e-7)
    np.testing.assert_allclose(other.action.scale, robot.action.scale, atol=1e-7)
    network.source = None
    (tmp_path / "new").mkdir()
    new = there_and_back(tmp_path / "new" / "one", "openvla", (network, robot), "openvla_oft")
    expected = {name: value for name, value in stored(folder / MODEL).items() if name in network.unread_shapes()}
    assert {name: value.shape for name, value in stored(new / MODEL).items() if name in expected} == {
        name: value.shape for name, value in expected.items()
    }
    assert_same_tensors(attach(new, options={"horizon": 8})[0].state_dict(), network.state_dict())


@each("variant", sizes.VARIANTS)
def test_deployed_actions_are_those_of_the_official_evaluation(tmp_path: Path, variant: str) -> None:
    """From images, state and prompt in the simulator's units; the gripper 2x - 1, its sign, inverted (LIBERO)."""
    folder = write_folder(tmp_path / "folder", variant)
    network, robot = attach(folder)
    actor, (cameras, _) = TokenActor(network, None, robot).eval(), sizes.VARIANTS[variant]
    size = sizes.RESOLUTION
    names = dict(zip(("front", "wrist"), sizes.CAMERAS[:cameras], strict=False))
    images = {name: recipe.picture(view, sizes.ROWS, size, size) for name, view in names.items()}
    state = recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM))
    observation = Observation(images, state, ("",) * sizes.ROWS)
    inputs = replace(actor.observation_inputs(observation), tokens=small_openvla.observation().tokens)
    logits, _ = network.action_logits(network.encode(inputs))
    actions = robot.all_actions(network.bin_centres()[logits.argmax(dim=-1)], state)
    expected = small_openvla.golden("openvla_oft")[f"{variant}/actions"].numpy().copy()
    expected[..., -1] = -np.sign(2 * expected[..., -1] - 1)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    closed = robot.model_actions(actions, state, sizes.ACTION_DIM)[..., -1]
    assert set(closed.unique().tolist()) <= {0.0, 1.0} and robot.gripper == "one_zero_binary"


def test_the_prompt_is_openvlas(folder: Path) -> None:
    """`prismatic`'s evaluation writes it so; the tokenizer begins it, and the network adds the empty token."""
    network, robot = attach(folder, options={"token_length": 70})
    (text,) = network.prompts(["Pick up the CUBE"], torch.zeros(1, 8))
    assert text == "In: What action should the robot take to pick up the cube?\nOut:"
    ids = robot.tokens([text])
    assert ids[0, 0] == 1 and (ids[0] != 0).sum() == len(text) + 2


def test_inspect_tells_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "folder", "two")
    inspect.run(InspectConfig(str(folder), tensors=True))
    out = capsys.readouterr().out
    assert "openvla" in out and "8 entries, quantiles" in out and "policy.dino_heads" in out


# statistics


def several(content: dict[str, Any]) -> None:
    content["bridge_orig"] = json.loads(json.dumps(content[sizes.KEY]))
    content["bridge_orig"]["action"]["q99"][0] = 9.0


def test_statistics_of_several_robots_must_be_chosen(folder: Path) -> None:
    change(folder / STATISTICS, several)
    with refuses("statistics-missing", sizes.KEY, "bridge_orig"):
        attach(folder, options={"horizon": 5})
    network, robot = attach(folder, statistics="bridge_orig")
    assert network.spec.horizon == 5 and robot.action.scale[0] == pytest.approx((9.0 + 0.5) / 2)
    with refuses("statistics-missing", "bridge_org", "bridge_orig"):
        attach(folder, statistics="bridge_org")


def test_statistics_of_config_json_are_those_of_the_base_model(folder: Path, tmp_path: Path) -> None:
    expected = attach(folder)[1].action
    (folder / STATISTICS).rename(tmp_path / "other.json")
    assert attach(folder)[1].action == expected
    change(folder / "config.json", lambda content: content.update(norm_stats={}))
    with refuses("statistics-missing", "policy.statistics"):
        attach(folder, options={"horizon": 8})
    network, robot = attach(folder, options={"horizon": 8}, statistics=str(tmp_path / "other.json"))
    assert robot.action == expected and network.spec.horizon == 8


def test_aloha_is_normalised_by_minimum_and_maximum(folder: Path) -> None:
    change(folder / STATISTICS, lambda content: content.update(aloha_tiny=content.pop(sizes.KEY)))
    change(folder / STATISTICS, lambda content: content["aloha_tiny"]["action"].update(max=[3.0] * 7, min=[-1.0] * 7))
    found = detection.read_checkpoint(folder)
    known = found.statistics.action
    assert known is not None and known.kind == "min_max" and known.center[0] == pytest.approx(1.0)
    assert found.cameras == ("full_image", "left_wrist_image", "right_wrist_image")


def test_a_name_without_a_known_robot_says_no_horizon(folder: Path) -> None:
    change(folder / STATISTICS, lambda content: content.update(other=content.pop(sizes.KEY)))
    with refuses("checkpoint-incomplete", "other", "policy.horizon"):
        attach(folder)
    assert attach(folder, options={"horizon": 3})[0].spec.horizon == 3
    assert attach(folder, "openvla")[0].spec.horizon == 1


def test_statistics_of_another_robot(folder: Path) -> None:
    few = simulator(action_names=("x", "gripper"), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    with refuses("statistics-size-mismatch", 7, 2):
        attach(folder, spec=few)


def test_the_state_of_another_robot(tmp_path: Path, folder: Path) -> None:
    """Only where the state is read."""
    few = simulator(state_names=("x", "y"))
    assert attach(folder, spec=few)[0].spec.state_dim == 2
    with refuses("statistics-size-mismatch", 8, 2):
        attach(write_folder(tmp_path / "two", "two"), spec=few)


@each(
    ("edit", "code", "said"),
    [
        (lambda entry: entry["action"].pop("q99"), "statistics-missing", "q99"),
        (lambda entry: entry["action"].update(q01=[0.0]), "checkpoint-damaged", "action"),
        (lambda entry: entry["action"].update(q01=["a"] * 7), "checkpoint-damaged", "action"),
        (lambda entry: entry["action"].update(mask=[True]), "checkpoint-damaged", "action"),
        (lambda entry: entry["action"].update(q99=[float("nan")] * 7), "checkpoint-damaged", "action"),
        (lambda entry: entry.pop("action"), "checkpoint-damaged", "action"),
    ],
)
def test_damaged_statistics(folder: Path, edit: Callable[..., object], code: str, said: str) -> None:
    change(folder / STATISTICS, lambda content: edit(content[sizes.KEY]))
    with refuses(code, said, STATISTICS):
        attach(folder)


# what is refused


def test_a_pickled_projector_stays_closed(tmp_path: Path) -> None:
    """The message has the words that convert it, and these do."""
    folder = write_folder(tmp_path / "folder", "two")
    pickled = (folder / PART).with_suffix(".pt")
    weights = load_file(folder / PART)
    (folder / PART).unlink()
    pickled.write_bytes(POISON)
    with refuses("checkpoint-is-pickle", pickled, "weights_only=True") as raised:
        attach(folder)
    torch.save(weights, pickled)
    before, after = str(raised.value).split("python -c ")[1].strip('"').split("s.save_file(", 1)
    assert before == "import torch, safetensors.torch as s; "
    expression = after.rsplit(", '", 1)[0].replace(f"'{pickled.name}'", f"{str(pickled)!r}")
    save_file(eval(expression, {"torch": torch}), pickled.with_suffix(".safetensors"))
    assert attach(folder)[0].spec.state_dim == sizes.STATE_DIM


@each("part", ["noisy_action_projector", "something_else"])
@each("suffix", [".pt", ".safetensors"])
def test_parts_that_are_not_supported(folder: Path, part: str, suffix: str) -> None:
    (folder / f"{part}--150000_checkpoint{suffix}").write_bytes(POISON)
    with refuses("checkpoint-unsupported", part, openvla.REFUSED.get(part, "unknown part")):
        detection.read_checkpoint(folder)


def test_two_projectors(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "two")
    (folder / PART.replace("150000", "5")).write_bytes((folder / PART).read_bytes())
    with refuses("checkpoint-ambiguous", PART):
        detection.read_checkpoint(folder)


def test_remote_code_is_never_imported(folder: Path, tmp_path: Path) -> None:
    """config.json names these modules in `auto_map`, as the published ones do; an export leaves them out."""
    seen = tmp_path / "seen"
    for name in ("configuration_prismatic", "modeling_prismatic", "processing_prismatic"):
        (folder / f"{name}.py").write_text(f"open({str(seen)!r}, 'w')\n")
    back = there_and_back(folder, "openvla", attach(folder), "openvla_oft")
    assert not seen.exists() and not list(back.glob("*.py"))
    assert not any(name.rpartition(".")[2].endswith("_prismatic") for name in sys.modules)


def test_pickled_weights(folder: Path) -> None:
    (folder / MODEL).unlink()
    (folder / "pytorch_model.bin").write_bytes(POISON)
    with refuses("checkpoint-is-pickle", "pytorch_model.bin"):
        detection.read_checkpoint(folder)


def test_a_truncated_file(folder: Path) -> None:
    whole = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(whole[: len(whole) // 2])
    with refuses("checkpoint-damaged", MODEL):
        attach(folder)


@each(
    ("old", "new", "said"),
    [
        ("language_model.model.norm.weight", "language_model.model.norm_.weight", "language_model.model.norm_.weight"),
        ("projector.fc2.bias", "", "projector.fc2.bias"),
        ("", "vision_backbone.featurizer.blocks.0.extra.weight", "blocks.0.extra.weight"),
        ("vision_backbone.featurizer.reg_token", "", "reg_token"),
    ],
)
def test_missing_renamed_and_unknown_tensors(folder: Path, old: str, new: str, said: str) -> None:
    tensors = load_file(folder / MODEL)
    value = tensors.pop(old) if old else torch.zeros(2)
    save_file(tensors | ({new: value} if new else {}), folder / MODEL)
    with pytest.raises(ValueError, match=said):
        attach(folder)


@each(
    ("edit", "said"),
    [
        (lambda config: config.update(vision_backbone_id="siglip-vit-so400m"), "vision_backbone_id"),
        (lambda config: config.update(llm_backbone_id="vicuna-v15-7b"), "llm_backbone_id"),
        (lambda config: config.update(use_fused_vision_backbone=False), "use_fused_vision_backbone"),
        (lambda config: config.update(quantization_config={"bits": 4}), "quantization_config"),
        (lambda config: config.update(image_sizes=[224, 224]), "image_sizes"),
        (lambda config: config.update(window=3), "window"),
        (lambda config: config["text_config"].update(rope_scaling={"type": "linear"}), "text_config.rope_scaling"),
        (lambda config: config["text_config"].update(hidden_act="gelu"), "text_config.hidden_act"),
        (lambda config: config["text_config"].update(sliding_window=9), "text_config.sliding_window"),
    ],
)
def test_settings_that_are_not_implemented(folder: Path, edit: Callable[..., object], said: str) -> None:
    change(folder / "config.json", edit)
    with refuses("checkpoint-unsupported", said):
        attach(folder)


def test_settings_of_the_language_model_are_read(folder: Path) -> None:
    change(folder / "config.json", lambda config: config["text_config"].update(rms_norm_eps=1e-3))
    assert attach(folder)[0].config.norm_epsilon == 1e-3
    assert attach(folder)[0].language_model.model.norm.variance_epsilon == 1e-3
    change(folder / "config.json", lambda config: config["text_config"].update(num_attention_heads=3))
    with refuses("checkpoint-damaged", "num_attention_heads"):
        attach(folder)


def test_colours(folder: Path) -> None:
    file = folder / "preprocessor_config.json"
    change(file, lambda content: content.update(means=[[0.1, 0.2, 0.3], [0.4, 0.4, 0.4]]))
    with refuses("checkpoint-damaged", "means"):
        attach(folder)
    change(file, lambda content: content.pop("tvf_normalize_params"))
    assert attach(folder)[0].config.dino_mean == (0.1, 0.2, 0.3)
    change(file, lambda content: content.update(interpolations=["nearest", "nearest"]))
    with refuses("checkpoint-unsupported", "interpolations"):
        attach(folder)
    file.unlink()
    with refuses("checkpoint-file-missing", file):
        attach(folder)


def test_a_tokenizer_without_llamas_start(folder: Path) -> None:
    change(folder / "tokenizer.json", lambda content: content.update(post_processor=None))
    with refuses("checkpoint-unsupported", "<s>", "tokenizer.json"):
        attach(folder)
    (folder / "tokenizer.json").unlink()
    with refuses("tokenizer-missing", "policy.tokenizer"):
        attach(folder)


def test_another_policy_or_format(folder: Path, tmp_path: Path) -> None:
    with refuses("checkpoint-of-another-policy", "pi0", "policy=openvla_oft"):
        build.build_backbone(PolicyNode("pi0", checkpoint=str(folder)), simulator())
    two = write_folder(tmp_path / "two", "two")
    with refuses("checkpoint-of-another-policy", "'openvla_oft'"):
        attach(two, "openvla")
    with refuses("checkpoint-not-imported", folder, "openvla_oft"):
        build.resolve_policy_file(str(folder))
    with refuses("format-does-not-support-policy", "openvla"):
        there_and_back(folder, "lerobot", attach(folder), "openvla_oft")
    with refuses("views-undecided", "full_image"):
        attach(folder, cameras={})
