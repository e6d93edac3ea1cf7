"""Read the sizes of π0 and π0.5 from a checkpoint's tensors and configuration."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.pi.config import PiConfig
from embodied_rl_policies.tensors import Shapes, count_layers, list_end_of_language_model

LANGUAGE = "paligemma_with_expert.paligemma.model.language_model."

VISION_HEADS = {1152: 16}
"""Heads of the vision tower by its width; tensor shapes do not determine them. SigLIP So400m has 16."""

CONFIGURED = {
    "horizon": ("chunk_size", "action_horizon"),
    "token_length": ("tokenizer_max_length", "max_token_len"),
    "vision_heads": ("vision_heads",),
    "min_period": ("min_period",),
    "max_period": ("max_period",),
}
"""Our key → keys of lerobot's or openpi's configuration."""

FREE = ("token_length", "prompt")
"""Keys that do not affect any weight; the user may change them."""

UNTOLD = {
    "horizon": "how many actions it predicts at once (openpi's action_horizon)",
    "vision_heads": "how many attention heads its vision tower has",
}
"""Sizes that tensor shapes do not determine: key → meaning."""


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `PiConfig` that tensors or configuration determine; only lerobot's has `input_features`.

    All Gemma variants of openpi have one key-value head; this determines the head dimension and the number of heads.

    Raises:
        UserError: tensors that determine sizes are missing, or neither configuration nor user gives the other sizes.
    """
    try:
        found: dict[str, Any] = _language(shapes) | _expert(shapes) | _vision(shapes)
    except KeyError as error:
        raise UserError(
            f"The checkpoint is not one of π0 or π0.5: {error.args[0]} is missing.", code="checkpoint-unsupported"
        ) from None
    _check_resolution(config, found["resolution"])
    if (width := found["vision_width"]) in VISION_HEADS:
        found["vision_heads"] = VISION_HEADS[width]
    for key, names in CONFIGURED.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None and not (key in FREE and key in given):
            found[key] = value
    if "prompt" not in given:
        found["prompt"] = "lerobot" if "input_features" in config else "openpi"
    untold = [key for key in UNTOLD if key not in found and key not in given]
    if untold:
        listed = ", nor ".join(f"{UNTOLD[key]}: give policy.{key}=<number>" for key in untold)
        raise UserError(f"The checkpoint does not say {listed}.", code="checkpoint-incomplete")
    return found


def _check_resolution(config: Mapping[str, Any], resolution: int) -> None:
    for key in ("image_resolution", "resize_imgs_with_padding"):
        if config.get(key) not in (None, [resolution, resolution]):
            raise UserError(
                f"The checkpoint's {key} is {config[key]}, while its vision tower takes squares of {resolution} "
                "pixels; not supported.",
                code="checkpoint-unsupported",
            )


def _language(shapes: Shapes) -> dict[str, int]:
    head_dim = shapes["language.layers.0.self_attn.k_proj.weight"][0]
    return {
        "vocabulary": shapes["language.embed_tokens.weight"][0],
        "width": shapes["language.embed_tokens.weight"][1],
        "layers": count_layers(shapes, "language.layers."),
        "hidden": shapes["language.layers.0.mlp.up_proj.weight"][0],
        "head_dim": head_dim,
        "heads": shapes["language.layers.0.self_attn.q_proj.weight"][0] // head_dim,
    }


def _expert(shapes: Shapes) -> dict[str, int]:
    found = {
        "expert_width": shapes["action_in_proj.weight"][0],
        "expert_hidden": shapes["expert.layers.0.mlp.up_proj.weight"][0],
        "action_dim": shapes["action_in_proj.weight"][1],
    }
    state = shapes.get("state_proj.weight")
    return found | {"state_dim": state[1] if state else found["action_dim"]}


def _vision(shapes: Shapes) -> dict[str, int]:
    width, _, patch, _ = shapes["vision.embeddings.patch_embedding.weight"]
    side = round(shapes["vision.embeddings.position_embedding.weight"][0] ** 0.5)
    return {
        "vision_width": width,
        "vision_layers": count_layers(shapes, "vision.encoder.layers."),
        "vision_hidden": shapes["vision.encoder.layers.0.mlp.fc1.weight"][0],
        "patch": patch,
        "resolution": patch * side,
    }


def list_unused_shapes(config: PiConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors that openpi and lerobot store although the forward pass does not use them."""
    inner = config.heads * config.head_dim
    return {
        **list_end_of_language_model(LANGUAGE, config.layers, config.width, config.hidden, inner),
        "paligemma_with_expert.gemma_expert.lm_head.weight": (vocabulary, config.expert_width),
    }
