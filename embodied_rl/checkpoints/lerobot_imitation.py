"""Rules of lerobot's config.json for ACT and Diffusion Policy (lerobot 0.4 to 0.6), and the statistics of images.

Each key is read, changes no action, or has its only supported values; any other key is refused by name.
"""

from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.checkpoints import foreign
from embodied_rl.checkpoints.lerobot_processors import Rule, accept, one_of
from embodied_rl.system.untrusted_files import shorten


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_count, value))


COMMON: Mapping[str, Rule] = dict.fromkeys(
    ("device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path", "type",
     "pretrained_revision", "input_features", "output_features", "normalization_mapping",
     "pretrained_backbone_weights", "optimizer_lr", "optimizer_weight_decay"), accept,
) | {
    "use_peft": one_of(False), "vision_backbone": one_of("resnet18", "resnet34"), "n_action_steps": _is_count,
}  # fmt: skip
RULES: Mapping[str, Mapping[str, Rule]] = {
    "act": COMMON
    | dict.fromkeys(("dropout", "optimizer_lr_backbone"), accept)
    | dict.fromkeys(
        ("chunk_size", "dim_model", "n_heads", "dim_feedforward", "n_encoder_layers", "n_decoder_layers", "latent_dim",
         "n_vae_encoder_layers"), _is_count,
    )
    | {
        "n_obs_steps": one_of(1),
        "replace_final_stride_with_dilation": one_of(False),
        "feedforward_activation": one_of("relu", "gelu"),
        "pre_norm": _is_flag,
        "use_vae": _is_flag,
        "kl_weight": _is_number,
        "temporal_ensemble_coeff": one_of(None),
    },
    "diffusion": COMMON
    | dict.fromkeys(
        ("drop_n_last_frames", "crop_is_random", "gradient_checkpointing", "compile_model", "compile_mode",
         "optimizer_betas", "optimizer_eps", "scheduler_name", "scheduler_warmup_steps"), accept,
    )
    | dict.fromkeys(
        ("n_obs_steps", "horizon", "spatial_softmax_num_keypoints", "kernel_size", "n_groups",
         "diffusion_step_embed_dim", "num_train_timesteps"), _is_count,
    )
    | dict.fromkeys(
        ("use_group_norm", "use_separate_rgb_encoder_per_camera", "use_film_scale_modulation", "clip_sample",
         "do_mask_loss_for_padding"), _is_flag,
    )
    | dict.fromkeys(("beta_start", "beta_end", "clip_sample_range", "crop_ratio"), _is_number)
    | {
        "resize_shape": _is_pair,
        "crop_shape": _is_pair,
        "down_dims": _are_counts,
        "noise_scheduler_type": one_of("DDPM", "DDIM"),
        "beta_schedule": one_of("squaredcos_cap_v2", "linear", "scaled_linear"),
        "prediction_type": one_of("epsilon", "sample"),
        "num_inference_steps": lambda value: value is None or _is_count(value),
    },
}  # fmt: skip
"""lerobot's name of a policy → key of its config.json → which values are supported."""


def check_keys(config: Mapping[str, Any], file: Path) -> None:
    """Check the keys and values of a config.json whose `type` is in `RULES`, and the kinds of its features.

    Raises:
        CheckpointError: a key is not understood, or a value or a feature is not supported; the message names it.
    """
    rules = RULES[config["type"]]
    foreign.check_keys(config, frozenset(rules), {}, str(file))
    for key, value in config.items():
        if not rules[key](value):
            raise unsupported_error(f"{file}: {key}={foreign.as_json(value)} is not supported.")
    for name, entry in config.get("input_features", {}).items():
        if entry.get("type") not in ("VISUAL", "STATE") or (entry["type"] == "VISUAL" and len(entry["shape"]) != 3):
            message = f"{file}: input_features has {name!r} of type {entry.get('type')}, shape {entry['shape']}; "
            raise unsupported_error(f"{message}supported are images and the state.")


def read_image_statistics(file: Path | None, mode: str, cameras: Mapping[str, str], where: Path) -> list[Any]:
    """Return means and deviations of red, green and blue for each camera: 0 and 1 where images are not normalised.

    Args:
        file: the statistics of the normaliser; None if there are none.
        mode: lerobot's mode of normalisation of images.
        cameras: names of the cameras → names of their features, in order.
        where: the file with the mode, for messages.

    Raises:
        CheckpointError: the mode is not supported, or statistics are missing or damaged.
    """
    if mode == "IDENTITY":
        return [((0.0,) * 3, (1.0,) * 3) for _ in cameras]
    if mode != "MEAN_STD":
        message = f"{where} normalises pictures by {mode} (VISUAL); supported are MEAN_STD and IDENTITY."
        raise unsupported_error(message)
    try:
        stored = {} if file is None else load_file(file)
    except (SafetensorError, FileNotFoundError) as error:
        raise damaged_error(f"{file} is damaged or missing: {shorten(error)}.") from error
    found: list[Any] = []
    for feature in cameras.values():
        parts = [stored.get(f"{feature}.{name}") for name in ("mean", "std")]
        if any(part is None or part.numel() != 3 or not part.isfinite().all() for part in parts):
            raise CheckpointError(
                f"{file or where} has no mean and std of the red, green and blue of {feature}, by which its policy "
                "normalises images: store it again with lerobot and its dataset's statistics.",
                code="statistics-missing",
            )
        mean, std = (tuple(part.flatten().tolist()) for part in parts if part is not None)
        found.append((mean, tuple(value + 1e-8 for value in std)))
    return found
