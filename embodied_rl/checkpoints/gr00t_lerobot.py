"""Reader of lerobot's GR00T N1.7 folders (policy `groot`, lerobot 0.6): what `lerobot.py` reads elsewhere is here.

config.json has none of the network's sizes; those that tensors do not tell are the published ones. The first processor
file has a step that packs state and robot, with statistics in a safetensors file or, after a fine-tuning from NVIDIA's
folder, in NVIDIA's groups; and a step that encodes pictures and texts. The second one has a step that decodes actions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.checkpoints import foreign, gr00t, gr00t_settings, lerobot_processors, unsupported
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics
from embodied_rl.system.untrusted_files import shorten

PACK, ENCODE = "groot_n1_7_pack_inputs_v1", "groot_n1_7_vlm_encode_v1"
DECODE, UNPACK = "groot_n1_7_action_decode_v1", "groot_action_unpack_unnormalize_v2"
OLDER = (
    "groot_pack_inputs_v3",
    "groot_eagle_encode_v3",
    "groot_eagle_collate_v3",
    "groot_action_unpack_unnormalize_v1",
)
"""Steps of N1.5, which lerobot had until 0.5."""
USUAL = ("rename_observations_processor", "to_batch_processor", "device_processor")
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."

HARMLESS = frozenset(
    {
        # where and how lerobot computes, what is published, and where the weights came from
        "base_model_path", "device", "license", "pretrained_path", "pretrained_revision", "private", "push_to_hub",
        "repo_id", "rtc_ramp_rate", "tags", "use_amp", "use_bf16", "use_flash_attention",
        # what training does, and what only N1.5 had
        "balance_dataset_weights", "balance_trajectory_weights", "batch_size", "dataloader_num_workers",
        "dataset_paths", "image_size", "lora_alpha", "lora_dropout", "lora_full_model", "lora_rank", "max_steps",
        "model_params_fp32", "output_dir", "relative_exclude_joints", "report_to", "resume", "save_steps",
        "tune_diffusion_model", "tune_llm", "tune_projector", "tune_top_llm_layers", "tune_visual", "tune_vlln",
        "video_backend", "warmup_ratio",
        # what the processors do, without it
        "normalization_mapping",
    }
)  # fmt: skip
READ = frozenset(
    {"action_decode_transform", "chunk_size", "embodiment_tag", "input_features", "max_action_dim", "max_state_dim",
     "n_action_steps", "num_inference_timesteps", "output_features", "type"}
)  # fmt: skip
ONLY: Mapping[str, Any] = {
    "n_obs_steps": 1, "rtc_config": None, "tokenizer_assets_repo": None, "use_peft": False,
    "use_relative_actions": False,
}  # fmt: skip
STARTS = ("optimizer_", "scheduler_")
WHOLE = frozenset({"action_horizon", "max_action_dim", "max_state_dim", "valid_action_horizon"})
PACK_KEYS = frozenset(
    {"action_horizon", "clip_outliers", "embodiment_mapping", "embodiment_tag", "formalize_language", "max_action_dim",
     "max_state_dim", "modality_config", "raw_stats", "state_dropout_prob", "use_percentiles", "valid_action_horizon",
     "video_modality_keys"}
)  # fmt: skip
ENCODE_KEYS = frozenset(
    {"crop_fraction", "device", "image_crop_size", "image_target_size", "letter_box_transform", "model_name",
     "shortest_image_edge", "use_albumentations"}
)  # fmt: skip
DECODE_KEYS = frozenset(
    {"action_decode_transform", "env_action_dim", "modality_config", "raw_stats", "use_percentiles"}
)
UNPACK_KEYS = frozenset(
    {"clip_normalized_action", "env_action_dim", "libero_gripper_action", "libero_gripper_binarize"}
)
STEPS: Mapping[str, tuple[frozenset[str], Mapping[str, Any]]] = {
    PACK: (
        PACK_KEYS,
        {"language_key": "task", "normalize_min_max": True, "state_horizon": 1, "video_horizon": (1, None)},
    ),
    ENCODE: (ENCODE_KEYS, {}),
    DECODE: (DECODE_KEYS, {"use_relative_action": False}),
    UNPACK: (UNPACK_KEYS, {"normalize_min_max": True}),
    USUAL[0]: (frozenset({"rename_map"}), {}),
    USUAL[1]: (frozenset(), {}),
    USUAL[2]: (frozenset({"device"}), {"float_dtype": (None, "float32", "float")}),
}
"""Step → its keys that are read or change no action, and those with the only values that are supported."""
GRIPPER = "one_zero"
"""Convention of the actions where lerobot decodes them for LIBERO: -sign(2 g - 1)."""


def read_folder(
    folder: Path, config: Mapping[str, Any], before: Path, after: Path, asset: str | None
) -> FoundCheckpoint:
    """Read a folder of lerobot's policy `groot`, whose config.json is `config`; `asset` is the tag of its only robot.

    Raises:
        CheckpointError: a file is missing or damaged, or a setting is not supported.
    """
    _check_config(folder, config)
    first, second = _read_steps(before, (PACK, ENCODE), folder), _read_steps(after, (), folder)
    pack, encode = (first[name].get("config") or {} for name in (PACK, ENCODE))
    decode = next((name for name in (DECODE, UNPACK) if name in second), None)
    if decode is None:
        raise unsupported_error(f"{after} has no step {DECODE!r} or {UNPACK!r}, which decode actions.")
    decoding, tag = second[decode].get("config") or {}, str(pack.get("embodiment_tag", ""))
    if asset not in (None, tag):
        message = f"policy.embodiment={asset}: {folder} is for {tag!r} alone."
        raise CheckpointError(message, code="embodiment-unknown")
    state = _bounds(folder, before, first[PACK], STATE)
    if decode == DECODE:
        robot = gr00t.Robot(decoding.get("modality_config") or {}, decoding.get("raw_stats") or {},
                            {"use_percentiles": decoding.get("use_percentiles", False)}, after)  # fmt: skip
        action, trained = robot.action(), robot.count_actions()
    else:
        action, trained = _bounds(folder, after, second[UNPACK], ACTION), pack.get("valid_action_horizon", 40)
    forms = ["clipped" if pack.get("clip_outliers", True) else "plain"]
    numbers = pack.get("embodiment_mapping")
    if not isinstance(numbers, dict) or type(numbers.get(tag)) is not int:
        message = f"{before}: embodiment_mapping has no number for embodiment_tag={tag!r}."
        raise CheckpointError(message, code="embodiment-unknown")
    seen = [name.removeprefix(IMAGES) for name in config.get("input_features", {}) if name.startswith(IMAGES)]
    prepared = _read_preparation(encode, before) | {
        "embodiment": tag, "robot": numbers[tag], "trained": trained, "horizon": pack.get("action_horizon", 40),
        "state_sizes": [len(state)], "state_forms": forms, "formal": pack.get("formalize_language", True),
    }  # fmt: skip
    statistics = str(folder / str(first[PACK].get("state_file", before.name)))
    return FoundCheckpoint(
        format="lerobot",
        folder=folder,
        policy="gr00t",
        config={**config, "gr00t": prepared, "normalization_mapping": {"STATE": "MIN_MAX", "ACTION": "MIN_MAX"}},
        tensors=foreign.find_tensors(folder),
        statistics=FoundStatistics(state, action, statistics),
        cameras=tuple(pack.get("video_modality_keys") or sorted(seen)),
        executed=min(config.get("n_action_steps") or trained, trained),
        denoise_steps=config.get("num_inference_timesteps"),
        clipped=decode == DECODE or decoding.get("clip_normalized_action", False) is True,
        gripper=read_gripper(decoding),
        files=foreign.read_contents(
            folder, [*folder.glob("*.json"), *lerobot_processors.list_state_files(folder, first, second)]
        ),
    )


def read_gripper(decoding: Mapping[str, Any]) -> str:
    """Return the convention of gripper actions in the settings of a step that decodes; see `Embodiment.gripper`."""
    libero = decoding.get("action_decode_transform") == "libero" or decoding.get("libero_gripper_action") is True
    return GRIPPER if libero else "same"


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    known = {key: value for key, value in config.items() if not key.startswith(STARTS)}
    if config.get("tokenizer_assets_repo") is not None:
        raise unsupported.refuse_network(folder, "GR00T N1.5", "lerobot's ")
    foreign.check_keys(known, HARMLESS | READ, ONLY, str(folder / "config.json"))


def _read_steps(file: Path, needed: tuple[str, ...], folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the steps of a processor file by their names.

    Raises:
        CheckpointError: the file is missing or damaged, a step or a setting is not understood, or a step is missing.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; the policy's statistics are in it.", code="checkpoint-file-missing")
    steps = lerobot_processors.read_steps(file)
    for name, step in steps:
        settings = step.get("config") or {}
        if name in OLDER:
            raise unsupported.refuse_network(folder, "GR00T N1.5", "lerobot's ")
        if name not in STEPS:
            raise unsupported_error(f"{file} has the step {name!r}, which is not understood for a GR00T.")
        foreign.check_keys(settings, *STEPS[name], f"{file}: {name}")
        for key in WHOLE & settings.keys():
            if type(settings[key]) is not int or settings[key] < 1:
                raise damaged_error(f"{file}: {key}={settings[key]!r:.40} should be a whole number from 1.")
    if absent := [name for name in needed if name not in dict(steps)]:
        raise unsupported_error(f"{file} has no step {absent[0]!r}: the policy would act differently than in lerobot.")
    return dict(steps)


def _bounds(folder: Path, file: Path, step: Mapping[str, Any], feature: str) -> Normalisation:
    """Return the normalisation of a feature by the minima and maxima of a step's file."""
    stored = folder / Path(str(step.get("state_file", ""))).name
    if "state_file" not in step or not stored.is_file():
        message = f"{file} names no file of statistics of {feature} that is there, and the policy acts by them."
        raise CheckpointError(message, code="statistics-missing")
    try:
        values = load_file(stored)
        low, high = (values[f"{feature}.{name}"].astype(np.float64).reshape(-1) for name in ("min", "max"))
        still, part = low == high, gr00t.CONSTANT_ACTION * np.maximum(abs(low), 1)
        scale = np.where(still, gr00t.CONSTANT_STATE if feature == STATE else part, (high - low) / 2)
        return Normalisation("min_max", tuple(((low + high) / 2).tolist()), tuple(scale.tolist()))
    except KeyError as error:
        message = f"{stored} has no {error.args[0]!r}, which the policy is normalised with."
        raise CheckpointError(message, code="statistics-missing") from None
    except (SafetensorError, ValueError) as error:
        raise damaged_error(f"{stored} is damaged: {shorten(error)}.") from error


def _read_preparation(encode: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return our keys of how lerobot prepares pictures."""
    if encode.get("image_target_size") is None:
        raise unsupported_error(f"{file}: {ENCODE} has no image_target_size; pictures of any size are not supported.")
    given = {"crop_fraction": None, "shortest_image_edge": None, **encode}
    if given["crop_fraction"] is None and given.get("image_crop_size") is None:
        given["crop_fraction"] = 1.0
    found = gr00t_settings.read_preparation(given, file)
    area = found["resize"] == "area"
    return found | {
        "resize": "area" if area else "bicubic", "keep_aspect": True, "shortest_edge": given["shortest_image_edge"],
    }  # fmt: skip
