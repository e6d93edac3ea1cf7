"""Checks of the settings of Isaac-GR00T's N1.7 folders: each key is read, changes no action, or has its only value.

The keys are those of Isaac-GR00T's `Gr00tN1d7Config`, its processor and its modality configurations. Any other key is
refused, as is a value that makes the policy act differently than the network here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.actors.learning.checkpoint import damaged_error, unsupported_error
from embodied_rl.checkpoints.foreign import as_json, check_keys

WHOLE = frozenset(
    {"action_horizon", "attend_text_every_n_blocks", "max_action_dim", "max_num_embodiments", "max_seq_len",
     "max_state_dim", "num_inference_timesteps", "num_timestep_buckets", "select_layer", "max_action_horizon"}
)  # fmt: skip
"""Keys of whole numbers from 1."""

MODEL_READ = WHOLE | {
    "add_pos_embed", "architectures", "backbone_embedding_dim", "diffusion_model_cfg", "hidden_size",
    "input_embedding_dim", "model_type", "use_alternate_vl_dit", "use_vlln", "vl_self_attention_cfg",
}  # fmt: skip
MODEL_HARMLESS = frozenset(
    {
        # where and how it computes, and where it comes from
        "_name_or_path", "attn_implementation", "auto_map", "dtype", "load_bf16", "model_dtype", "model_name",
        "model_revision", "torch_dtype", "transformers_version", "use_flash_attention",
        # what training does
        "attn_dropout", "backbone_trainable_params_fp32", "color_jitter_params", "extra_augmentation_config",
        "noise_beta_alpha", "noise_beta_beta", "noise_s", "random_rotation_angle", "state_dropout_prob",
        "tune_diffusion_model", "tune_llm", "tune_projector", "tune_top_llm_layers", "tune_visual", "tune_vlln",
        # what its code never reads, or the processor's file says
        "apply_sincos_state_encoding", "crop_fraction", "formalize_language", "image_crop_size", "image_target_size",
        "letter_box_transform", "reproject_vision", "rtc_ramp_rate", "shortest_image_edge",
        "use_albumentations_transforms", "use_percentiles", "use_relative_action",
    }
)  # fmt: skip
MODEL_ONLY: Mapping[str, Any] = {
    "backbone_model_type": "qwen", "exclude_state": False, "state_history_length": 1,
    "strict_action_padding_mask": False, "use_mean_std": False, "use_tactile": False,
}  # fmt: skip
"""Key → the only value that is supported: any other changes the actions."""

LAYERS_READ = frozenset({"attention_head_dim", "num_attention_heads", "num_layers", "output_dim"})
LAYERS_HARMLESS = frozenset({"compute_dtype", "dropout", "final_dropout", "max_num_positional_embeddings"})
LAYERS_ONLY: Mapping[str, Any] = {
    "activation_fn": "gelu-approximate", "attention_bias": True, "norm_eps": 1e-5, "upcast_attention": False,
}  # fmt: skip
TRANSFORMER_ONLY = {
    **LAYERS_ONLY, "interleave_self_attention": True, "norm_elementwise_affine": False, "norm_type": "ada_norm",
    "num_embeds_ada_norm": 1000, "positional_embeddings": None,
}  # fmt: skip
TRANSFORMER_NEEDED = ("interleave_self_attention", "num_attention_heads", "positional_embeddings")
"""Keys that must be there, because their defaults are other values, or tensors do not determine them."""

PROCESSOR_READ = frozenset(
    {"apply_sincos_state_encoding", "clip_outliers", "crop_fraction", "formalize_language", "image_crop_size",
     "image_target_size", "letter_box_transform", "max_action_dim", "max_action_horizon", "max_state_dim",
     "modality_configs", "shortest_image_edge", "use_albumentations", "use_percentiles", "use_relative_action"}
)  # fmt: skip
PROCESSOR_HARMLESS = frozenset(
    {"color_jitter_params", "extra_augmentation_config", "model_name", "random_rotation_angle", "state_dropout_prob",
     "tactile_embed_dim", "tactile_input_shape", "tactile_state_keys", "transformers_loading_kwargs"}
)  # fmt: skip
PROCESSOR_ONLY: Mapping[str, Any] = {
    "exclude_state": False, "model_type": "qwen", "use_mean_std": False, "use_tactile": False,
}  # fmt: skip
SWITCHES = frozenset(
    {"apply_sincos_state_encoding", "clip_outliers", "formalize_language", "letter_box_transform",
     "use_albumentations", "use_percentiles", "use_relative_action"}
)  # fmt: skip

KINDS = ("video", "state", "action", "language")
ROBOT_READ = frozenset(
    {"action_configs", "delta_indices", "mean_std_embedding_keys", "modality_keys", "sin_cos_embedding_keys"}
)
ROBOT_ONLY: Mapping[str, Any] = {"exclude_state": False}


def check_model(config: Mapping[str, Any], file: Path) -> None:
    """Check a config.json.

    Raises:
        CheckpointError: a value is invalid or not supported, or a key is not understood; the message names it.
    """
    check_keys(config, MODEL_READ | MODEL_HARMLESS, MODEL_ONLY, str(file))
    for key in WHOLE & config.keys():
        if type(config[key]) is not int or config[key] < 1:
            raise damaged_error(f"{file}: {key}={as_json(config[key])} should be a whole number from 1.")
    for key in ("use_alternate_vl_dit", "use_vlln", "add_pos_embed"):
        if type(config.get(key, True)) is not bool:
            raise damaged_error(f"{file}: {key}={as_json(config[key])} should be true or false.")
    transformer, mixer = config.get("diffusion_model_cfg"), config.get("vl_self_attention_cfg") or {}
    if not isinstance(transformer, dict) or not isinstance(mixer, dict):
        raise damaged_error(f"{file}: diffusion_model_cfg and vl_self_attention_cfg should be mappings.")
    check_keys(transformer, LAYERS_READ | LAYERS_HARMLESS, TRANSFORMER_ONLY, f"{file}: diffusion_model_cfg")
    others = {**LAYERS_ONLY, "positional_embeddings": None}
    check_keys(mixer, LAYERS_READ | LAYERS_HARMLESS, others, f"{file}: vl_self_attention_cfg")
    needed: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
        "diffusion_model_cfg": (transformer, TRANSFORMER_NEEDED)
    }
    if mixer.get("num_layers", 0):
        needed["vl_self_attention_cfg"] = (mixer, TRANSFORMER_NEEDED[1:])
    for name, (entries, keys) in needed.items():
        if absent := [key for key in keys if key not in entries]:
            raise unsupported_error(f"{file}: {name} lacks {absent[0]!r}, whose default is not supported.")
        if type(entries["num_attention_heads"]) is not int or entries["num_attention_heads"] < 1:
            raise damaged_error(f"{file}: {name}.num_attention_heads should be a whole number from 1.")


def check_processor(settings: Mapping[str, Any], file: Path) -> None:
    """Check the `processor_kwargs` of a processor_config.json.

    Raises:
        CheckpointError: see `check_model`.
    """
    check_keys(settings, PROCESSOR_READ | PROCESSOR_HARMLESS, PROCESSOR_ONLY, f"{file}: processor_kwargs")
    for key in SWITCHES & settings.keys():
        if type(settings[key]) is not bool:
            raise damaged_error(f"{file}: {key}={as_json(settings[key])} should be true or false.")


def read_preparation(settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return our keys of how texts and pictures are prepared.

    Raises:
        CheckpointError: a size is missing, or invalid.
    """
    target, cut = (_read_pair(settings, key, file) for key in ("image_target_size", "image_crop_size"))
    edge, fraction = settings.get("shortest_image_edge", 256), settings.get("crop_fraction", 0.95)
    if edge is not None and (type(edge) is not int or edge < 1):
        raise damaged_error(f"{file}: shortest_image_edge={as_json(edge)} should be a whole number from 1.")
    if fraction is not None and (type(fraction) not in (int, float) or not 0 < fraction <= 1):
        raise damaged_error(f"{file}: crop_fraction={as_json(fraction)} should be a number up to 1.")
    area = settings.get("use_albumentations", False)
    if (target is None and (edge is None or not area)) or (cut is None and (fraction is None or not area)):
        raise damaged_error(f"{file}: image_target_size and image_crop_size are missing.")
    target = target or (int(edge or 1),) * 2
    cut = cut or target
    return {
        "formal": settings.get("formalize_language", True),
        "resize": "area" if area else "bilinear",
        "letter_box": settings.get("letter_box_transform", False),
        "keep_aspect": False,
        "target_height": target[0],
        "target_width": target[1],
        "shortest_edge": edge if area else None,
        "cut_fraction": cut[0] / target[0] if fraction is None else fraction,
        "cut_height": cut[0],
        "cut_width": cut[1],
    }


def check_robot(entries: Mapping[str, Any], settings: Mapping[str, Any], file: Path) -> Mapping[str, Mapping[str, Any]]:
    """Check the modality configuration of a robot, and return it.

    Raises:
        CheckpointError: see `check_model`.
    """
    for kind in KINDS:
        entry, where = entries.get(kind) if isinstance(entries, Mapping) else None, f"{file}: {kind}"
        if not isinstance(entry, Mapping):
            raise damaged_error(f"{where} should be a mapping.")
        check_keys(entry, ROBOT_READ, ROBOT_ONLY, where)
        for key in ("modality_keys", "mean_std_embedding_keys", "sin_cos_embedding_keys"):
            names = entry.get(key) or []
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise damaged_error(f"{where}.{key} should be a list of names.")
        steps = entry.get("delta_indices")
        if not entry.get("modality_keys") or not isinstance(steps, list) or not steps:
            raise damaged_error(f"{where} should have modality_keys and delta_indices.")
        if steps != list(range(len(steps))) or (kind != "action" and len(steps) > 1):
            raise unsupported_error(
                f"{where}.delta_indices={as_json(steps)}: supported are 0 for observations, without earlier ones, and "
                "0, 1, … for actions."
            )
    _check_relative(entries["action"], bool(settings.get("use_relative_action", False)), file)
    return entries


def _check_relative(action: Mapping[str, Any], used: bool, file: Path) -> None:
    """Refuse actions that are relative to the state."""
    for group, entry in zip(action["modality_keys"], action.get("action_configs") or [], strict=False):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("rep"), str):
            raise damaged_error(f"{file}: action.action_configs should be a list of mappings with 'rep'.")
        if used and entry["rep"].lower() == "relative":
            raise unsupported_error(
                f"{file}: the actions {group!r} are relative to the state, with statistics of each step of a chunk; "
                "not supported yet. It takes a normalisation by step, and for end-effector poses (type EEF) the "
                "composition of rotations. Robots with absolute actions, such as libero_sim, are supported."
            )


def _read_pair(settings: Mapping[str, Any], key: str, file: Path) -> tuple[int, int] | None:
    pair = settings.get(key)
    if pair is None:
        return None
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(size) is int and size > 0 for size in pair):
        raise damaged_error(f"{file}: {key}={as_json(pair)} should be two whole numbers.")
    return pair[0], pair[1]
