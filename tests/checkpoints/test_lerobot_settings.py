"""lerobot's config.json: what its releases write is read, what would change the actions is refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import detection
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import FAMILIES, configuration, lerobot
from tests.support.using_checkpoints import Attached, attach, attach_any, smolvla_folder, there_and_back, velocity

COMMON = {
    "use_amp": False, "use_peft": False, "push_to_hub": True, "repo_id": None, "private": None, "tags": None,
    "license": None, "pretrained_path": None, "pretrained_revision": None, "device": "cuda", "empty_cameras": 0,
    "rtc_config": None, "compile_model": False, "compile_mode": "max-autotune", "freeze_vision_encoder": False,
    "train_expert_only": False, "optimizer_lr": 2.5e-5, "optimizer_betas": [0.9, 0.95], "optimizer_eps": 1e-8,
    "optimizer_weight_decay": 0.01, "optimizer_grad_clip_norm": 1.0, "scheduler_warmup_steps": 1000,
    "scheduler_decay_steps": 30000, "scheduler_decay_lr": 2.5e-6, "min_period": 4e-3, "max_period": 4.0,
}  # fmt: skip
PI0 = COMMON | {
    "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m", "dtype": "bfloat16",
    "time_sampling_beta_alpha": 1.5, "time_sampling_beta_beta": 1.0, "time_sampling_scale": 0.999,
    "time_sampling_offset": 0.001, "use_relative_actions": False, "relative_exclude_joints": ["gripper"],
    "action_feature_names": None, "gradient_checkpointing": True,
}  # fmt: skip
PI05 = PI0 | {
    "use_visual_memory": False, "use_proprioceptive_memory": False, "memory_frames": 6, "memory_stride": 30,
    "memory_temporal_attention_every": 4, "rtc_training_max_delay": 0,
}  # fmt: skip
SMOLVLA = COMMON | {
    "adapt_to_pi_aloha": False, "use_delta_joint_actions_aloha": False, "use_cache": True, "train_state_proj": True,
    "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "load_vlm_weights": True, "prefix_length": -1,
    "add_image_special_tokens": False, "attention_mode": "cross_attn", "pad_language_to": "longest",
    "num_expert_layers": -1, "self_attn_every_n_layers": 2, "expert_width_multiplier": 0.75,
}  # fmt: skip
DEFAULTS = {"pi0": PI0, "pi05": PI05, "smolvla": SMOLVLA}
"""What lerobot's releases write, less the sizes of the network."""


def rewrite(folder: Path, changes: Mapping[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | dict(changes)))


def refused(folder: Path, family: str, *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        attach_any(folder, family)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each policy; a test that changes one restores it."""
    place = tmp_path_factory.mktemp("lerobot")
    made = {family: lerobot(place / family, family) for family in FAMILIES}
    return made | {"smolvla": smolvla_folder(place)}


@pytest.fixture
def changed(folders: dict[str, Path]):
    """What changes the config.json of a policy's folder for one test."""
    before = {family: (folder / "config.json").read_bytes() for family, folder in folders.items()}

    def change(family: str, **changes: Any) -> Path:
        rewrite(folders[family], changes)
        return folders[family]

    yield change
    for family, content in before.items():
        (folders[family] / "config.json").write_bytes(content)


@pytest.mark.parametrize("family", DEFAULTS)
def test_everything_that_releases_write_is_read(family: str, changed, folders: dict[str, Path]) -> None:
    expected = velocity(attach_any(folders[family], family)[0])
    assert torch.equal(velocity(attach_any(changed(family, **DEFAULTS[family]), family)[0]), expected)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("pi05", "use_visual_memory", True),
        ("pi05", "use_proprioceptive_memory", True),
        ("pi0", "n_obs_steps", 2),
        ("pi0", "adapt_to_pi_aloha", True),
        ("pi0", "use_peft", True),
        ("smolvla", "use_cache", False),
        ("smolvla", "use_delta_joint_actions_aloha", True),
        ("pi0", "rtc_config", {"enabled": True, "execution_horizon": 10}),
        ("pi05", "rtc_config", {}),
        ("pi0", "image_resolution", [112, 56]),
        ("smolvla", "resize_imgs_with_padding", [64, 64]),
        ("smolvla", "resize_imgs_with_padding", None),
        ("pi0", "normalization_mapping", ["VISUAL"]),
        ("pi0", "normalization_mapping", {"VISUAL": 3}),
        ("pi0", "temporal_ensemble_coeff", 0.01),
        ("pi05", "crop_shape", None),
        ("smolvla", "min_periods", 4e-3),
    ],
)
def test_what_would_change_the_actions_is_refused_by_name(family: str, key: str, value: object, changed) -> None:
    refused(changed(family, **{key: value}), family, key)


def test_guidance_by_the_last_chunk_may_be_switched_off(changed) -> None:
    off = {"enabled": False, "mode": "guided"}
    switched_off, _ = attach_any(changed("pi0", rtc_config=off), "pi0")
    assert torch.equal(velocity(switched_off), velocity(attach_any(changed("pi0"), "pi0")[0]))


def test_a_picture_that_is_no_view_is_refused(changed) -> None:
    """lerobot's networks see every picture, whatever its name."""
    seen = configuration("pi0", {})["input_features"] | {"observation.image": {"type": "VISUAL", "shape": [3, 48, 64]}}
    refused(changed("pi0", input_features=seen), "pi0", "input_features has the picture 'observation.image'")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("n_action_steps", "x", "n_action_steps='x' should be a whole number from 1"),
        ("n_action_steps", 0, "n_action_steps=0 should be a whole number from 1"),
        ("n_action_steps", True, "n_action_steps=True should be a whole number from 1"),
        ("num_inference_steps", 0, "num_inference_steps=0 should be a whole number from 1"),
        ("num_inference_steps", -3, "num_inference_steps=-3 should be a whole number from 1"),
        ("chunk_size", [6], "chunk_size=[6] should be a whole number from 1"),
        ("chunk_size", 6.5, "chunk_size=6.5 should be a whole number from 1"),
        ("tokenizer_max_length", "48", "tokenizer_max_length='48' should be a whole number from 1"),
        ("min_period", "short", "min_period='short' should be a value of type float"),
        ("max_period", 1e-3, "policy.min_period=0.004 must lie between 0 and policy.max_period"),
        ("input_features", None, "input_features should map names to types and shapes, not be null"),
        ("input_features", [], "input_features should map names to types and shapes, not be []"),
        ("output_features", 3, "output_features should map names to types and shapes, not be 3"),
        ("input_features", {"observation.state": None}, "observation.state should have a 'shape'"),
        ("input_features", {"observation.state": {"type": "STATE", "shape": None}}, "should have a 'shape', a list"),
        ("output_features", {"action": {"type": "ACTION", "shape": ["7"]}}, "action should have a 'shape', a list"),
    ],
)
def test_a_value_that_is_none_is_refused_in_one_line(key: str, value: object, said: str, changed) -> None:
    refused(changed("pi0", **{key: value}), "pi0", said)


# periods


def waves(t: np.ndarray, width: int, shortest: float, longest: float) -> np.ndarray:
    """Sines, then cosines, of periods in a geometric series, one time after the other."""
    count = width // 2
    periods = [shortest * (longest / shortest) ** (index / (count - 1)) for index in range(count)]
    angles = np.array([[2 * np.pi * time / period for period in periods] for time in t])
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def with_periods(place: Path, family: str) -> Attached:
    return attach(lerobot(place / "folder", family, min_period=0.01, max_period=2), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_periods_of_the_time_are_the_checkpoints(tmp_path: Path, family: str) -> None:
    network, _ = with_periods(tmp_path, family)
    times = np.array(sizes.TIMES)
    expected = waves(times, sizes.EXPERT["width"], 0.01, 2.0)
    np.testing.assert_allclose(network.time_embedding(torch.from_numpy(times)), expected, atol=1e-6)
    usual = attach(lerobot(tmp_path / "usual", family), family)[0]
    assert not torch.allclose(velocity(network), velocity(usual), atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_periods_go_with_the_policy_and_only_to_who_has_them(tmp_path: Path, family: str) -> None:
    network, robot = with_periods(tmp_path, family)
    network.source = None
    back = there_and_back(tmp_path / "folder", "lerobot", (network, robot), family)
    said = json.loads((back / "config.json").read_text())
    assert (said["min_period"], said["max_period"]) == (0.01, 2.0)
    with pytest.raises(ValueError, match=r"openpi has the periods 0\.004 to 4\.0 alone: give format=lerobot"):
        there_and_back(tmp_path / "folder", "openpi", (network, robot), family)


@pytest.mark.parametrize("kind", [5, None, ["act"], True, "absent"])
def test_a_type_that_is_no_name_is_said_to_be_none(tmp_path: Path, kind: object) -> None:
    """Without one no key could be checked."""
    folder = lerobot(tmp_path / "folder", "pi0", type=kind)
    if kind == "absent":
        kind, file = None, folder / "config.json"
        content = json.loads(file.read_text())
        del content["type"]
        file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        detection.read_checkpoint(folder)
    written = json.dumps(kind)
    assert f"{folder / 'config.json'}: type={written} should be the name of a policy" in str(caught.value)
