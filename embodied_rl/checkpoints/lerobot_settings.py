"""Checks of lerobot's config.json: each key is read, changes no action, or has its only supported value.

The keys are those of the configurations of π0, π0.5, π0-FAST and SmolVLA in lerobot 0.3 to 0.6. Any other key is
refused, as is a value that makes lerobot act differently than the networks here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.actors.learning.checkpoint import damaged_error, unsupported_error
from embodied_rl.checkpoints import lerobot_imitation
from embodied_rl.checkpoints.foreign import as_json, check_keys

POLICIES = ("pi0", "pi05", "pi0_fast", "smolvla")
"""lerobot's policies that have a network here; those that are only cloned are in `lerobot_imitation`."""

IMAGES = "observation.images."

WHOLE = frozenset(
    {"chunk_size", "max_action_dim", "max_action_tokens", "max_decoding_steps", "max_state_dim", "n_action_steps",
     "num_inference_steps", "num_steps", "num_vlm_layers", "tokenizer_max_length"}
)  # fmt: skip
"""Keys of whole numbers from 1; null counts as left out."""

KINDS: Mapping[str, tuple[type, ...]] = {
    "add_image_special_tokens": (bool,),
    "attention_mode": (str,),
    "empty_cameras": (int,),
    "expert_width_multiplier": (int, float),
    "fast_skip_tokens": (int,),
    "head_dim": (int,),
    "max_period": (int, float),
    "min_period": (int, float),
    "num_expert_layers": (int,),
    "prefix_length": (int,),
    "self_attn_every_n_layers": (int,),
    "vision_heads": (int,),
}
"""Further keys that are read → the types of their values; null counts as left out."""

READ = frozenset(
    {"image_resolution", "input_features", "normalization_mapping", "output_features", "resize_imgs_with_padding",
     "rtc_config", "type"}
)  # fmt: skip
"""Keys that are read, and checked where they are."""

HARMLESS = frozenset(
    {
        # where and how lerobot computes
        "attention_implementation", "compile_mode", "compile_model", "device", "dtype", "use_amp",
        # what training does
        "freeze_vision_encoder", "gradient_checkpointing", "load_vlm_weights", "pretrained_path",
        "pretrained_revision", "rtc_training_max_delay", "train_expert_only", "train_state_proj",
        # what is published
        "license", "private", "push_to_hub", "repo_id", "tags",
        # what the weights or the processors determine
        "action_expert_variant", "action_feature_names", "paligemma_variant", "proj_width",
        "relative_exclude_joints", "use_relative_actions", "vlm_model_name",
        # of the sequences of π0-FAST: what the folder holds, and what is always so here
        "action_tokenizer_name", "text_tokenizer_name", "use_kv_cache", "validate_action_token_prefix",
        # of memory that is switched off, and of pads, which nothing attends to
        "memory_frames", "memory_stride", "memory_temporal_attention_every", "pad_language_to",
    }
)  # fmt: skip
"""Keys that change no action here."""

HARMLESS_STARTS = ("optimizer_", "scheduler_", "time_sampling_")

ONLY: Mapping[str, Any] = {
    "adapt_to_pi_aloha": False,
    "n_obs_steps": 1,
    "temperature": 0.0,
    "use_cache": True,
    "use_delta_joint_actions_aloha": False,
    "use_peft": False,
    "use_proprioceptive_memory": False,
    "use_visual_memory": False,
}
"""Key → the only value that is supported: any other changes the actions."""


def check_settings(config: Mapping[str, Any], file: Path) -> None:
    """Check every key and value of a config.json.

    Raises:
        CheckpointError: a value is invalid or not supported, or a key is not understood; the message names it.
    """
    if not isinstance(config.get("type"), str):
        raise damaged_error(
            f'{file}: type={as_json(config.get("type"))} should be the name of a policy, such as "pi0".'
        )
    _check_numbers(config, file)
    for key in ("input_features", "output_features"):
        _check_features(config.get(key, {}), f"{file}: {key}")
    modes = config.get("normalization_mapping", {})
    if not isinstance(modes, Mapping) or not all(isinstance(mode, str) for mode in modes.values()):
        raise damaged_error(f"{file}: normalization_mapping should map kinds of features to modes.")
    if config.get("type") in (*POLICIES, *lerobot_imitation.RULES):
        check = _check_supported if config["type"] in POLICIES else lerobot_imitation.check_keys
        check(config, file)
        for name, entry in config.get("input_features", {}).items():
            if entry.get("type") == "VISUAL" and not name.startswith(IMAGES):
                raise unsupported_error(
                    f"{file}: input_features has the picture {name!r}; supported are names that start with {IMAGES!r}."
                )


def _check_numbers(config: Mapping[str, Any], file: Path) -> None:
    for key in WHOLE & config.keys():
        value = config[key]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise damaged_error(f"{file}: {key}={value!r} should be a whole number from 1.")
    for key in KINDS.keys() & config.keys():
        value, kinds = config[key], KINDS[key]
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise damaged_error(f"{file}: {key}={value!r} should be a value of type {kinds[-1].__name__}.")


def _check_features(listed: object, where: str) -> None:
    """Check that features are a mapping from names to a type and a shape."""
    if not isinstance(listed, Mapping):
        raise damaged_error(f"{where} should map names to types and shapes, not be {as_json(listed)}.")
    for name, entry in listed.items():
        shape = entry.get("shape") if isinstance(entry, Mapping) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise damaged_error(f"{where}: {name} should have a 'shape', a list of whole numbers.")


def _check_supported(config: Mapping[str, Any], file: Path) -> None:
    checked = {key: value for key, value in config.items() if not key.startswith(HARMLESS_STARTS)}
    check_keys(checked, WHOLE | KINDS.keys() | READ | HARMLESS, ONLY, str(file))
    rtc = config.get("rtc_config")
    if rtc is not None and (not isinstance(rtc, Mapping) or rtc.get("enabled", True) is not False):
        raise unsupported_error(
            f"{file}: rtc_config guides a chunk of actions by the last one, which is not supported yet: the policy "
            "acts without it if rtc_config is null in a copy of the file."
        )
