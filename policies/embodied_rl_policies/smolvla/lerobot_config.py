"""SmolVLA in lerobot's checkpoints: lerobot's names of our parameters, and the sizes that a checkpoint determines."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.smolvla.config import SmolVLAConfig
from embodied_rl_policies.tensors import Shapes, count_layers, list_end_of_language_model

VLM = "vlm_with_expert.vlm."
TEXT = f"{VLM}model.text_model."
NAMES: dict[str, tuple[str, ...]] = {
    "vision_model.": (f"{VLM}model.vision_model.",),
    "connector.": (f"{VLM}model.connector.",),
    "text_model.": (TEXT,),
    "expert.": ("vlm_with_expert.lm_expert.",),
}
"""Prefix of our parameter names → prefix of lerobot's, without the leading "model."."""

UNREAD = (
    r"vlm_with_expert\.vlm\.lm_head\.weight$",
    r"vlm_with_expert\.vlm\.model\.text_model\.norm\.weight$",
    r"vlm_with_expert\.vlm\.model\.text_model\.layers\.\d+\.(mlp|post_attention_layernorm)\.",
    r"vlm_with_expert\.vlm\.model\.text_model\.layers\.\d+\.self_attn\.[qo]_proj\.",
)
"""Patterns of lerobot's names of unused tensors: the end of the language model, and most of its last layer."""

HEAD_DIMS, VISION_HEADS = {960: 64}, {768: 12}
"""Head sizes of SmolVLM2-500M by the width of language model and vision tower; tensor shapes do not determine them."""

UNTOLD = {
    "horizon": "how many actions it predicts at once",
    "head_dim": "how wide an attention head of its language model is",
    "vision_heads": "how many attention heads its vision tower has",
}
"""Sizes that tensor shapes do not determine: key → meaning."""

CONFIGURED = {
    "horizon": "chunk_size",
    "token_length": "tokenizer_max_length",
    "image_special_tokens": "add_image_special_tokens",
    "min_period": "min_period",
    "max_period": "max_period",
    "head_dim": "head_dim",
    "vision_heads": "vision_heads",
}
"""Our key → lerobot's."""


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `SmolVLAConfig` that a checkpoint determines.

    Args:
        shapes: shapes of the checkpoint's tensors, by our names.
        config: content of the checkpoint's config.json.
        given: keys that the user gave.

    Raises:
        UserError: tensors that determine sizes are missing, neither checkpoint nor user gives another size, or the
            checkpoint requires a feature that this network does not support.
    """
    config = {key: value for key, value in config.items() if value is not None}
    _reject_unsupported_settings(config)
    try:
        found = _language(shapes) | _expert(shapes) | _vision(shapes)
    except KeyError as error:
        raise UserError(
            f"The checkpoint is not a SmolVLA: {error.args[0]} is missing.", code="checkpoint-unsupported"
        ) from None
    _check_resolution(config, found["resolution"])
    found |= {ours: config[theirs] for ours, theirs in CONFIGURED.items() if config.get(theirs) is not None}
    found |= _known_head_sizes(found, given)
    for key, meaning in UNTOLD.items():
        if key not in found and key not in given:
            raise UserError(
                f"The checkpoint does not say {meaning}: give policy.{key}=<number>.", code="checkpoint-incomplete"
            )
    found |= _heads(shapes, {**found, **given}["head_dim"])
    return found | {"self_attention_every": _self_attention_every(config)}


def _heads(shapes: Shapes, head_dim: int) -> dict[str, int]:
    attention = "text_model.layers.0.self_attn."
    return {
        "heads": shapes[f"{attention}q_proj.weight"][0] // head_dim,
        "key_value_heads": shapes[f"{attention}k_proj.weight"][0] // head_dim,
    }


def _known_head_sizes(found: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the head sizes known from SmolVLM2's widths, unless the checkpoint or the user gives them."""
    guesses = {"head_dim": HEAD_DIMS.get(found["width"]), "vision_heads": VISION_HEADS.get(found["vision_width"])}
    return {key: guess for key, guess in guesses.items() if guess and key not in found and key not in given}


def _reject_unsupported_settings(config: Mapping[str, Any]) -> None:
    """Reject settings that this network does not support."""
    if config.get("adapt_to_pi_aloha"):
        raise UserError(
            "The checkpoint has adapt_to_pi_aloha, which converts joints and grippers; it is not supported.",
            code="checkpoint-unsupported",
        )
    layers, expert = config.get("num_vlm_layers", 0), config.get("num_expert_layers", 0)
    if expert > 0 and expert != layers:
        raise UserError(
            f"The checkpoint has {expert} expert layers on {layers} of the language model; not supported.",
            code="checkpoint-unsupported",
        )


def _check_resolution(config: Mapping[str, Any], resolution: int) -> None:
    given = config.get("resize_imgs_with_padding")
    if given not in (None, [resolution, resolution]):
        raise UserError(
            f"The checkpoint's resize_imgs_with_padding is {given}, while its vision tower takes squares of "
            f"{resolution} pixels; not supported.",
            code="checkpoint-unsupported",
        )


def _self_attention_every(config: Mapping[str, Any]) -> int:
    if "cross" not in config.get("attention_mode", "cross_attn"):
        return 1
    return max(config.get("self_attn_every_n_layers", SmolVLAConfig.self_attention_every), 0)


def _language(shapes: Shapes) -> dict[str, int]:
    return {
        "vocabulary": shapes["text_model.embed_tokens.weight"][0],
        "width": shapes["text_model.embed_tokens.weight"][1],
        "layers": count_layers(shapes, "text_model.layers."),
        "hidden": shapes["text_model.layers.0.mlp.up_proj.weight"][0],
    }


def _expert(shapes: Shapes) -> dict[str, int]:
    return {
        "expert_width": shapes["action_in_proj.weight"][0],
        "expert_hidden": shapes["expert.layers.0.mlp.up_proj.weight"][0],
        "action_dim": shapes["action_in_proj.weight"][1],
        "state_dim": shapes["state_proj.weight"][1],
    }


def _vision(shapes: Shapes) -> dict[str, int]:
    width, _, patch, _ = shapes["vision_model.embeddings.patch_embedding.weight"]
    side = round(shapes["vision_model.embeddings.position_embedding.weight"][0] ** 0.5)
    return {
        "vision_width": width,
        "vision_layers": count_layers(shapes, "vision_model.encoder.layers."),
        "vision_hidden": shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        "patch": patch,
        "resolution": patch * side,
        "pixel_shuffle": round((shapes["connector.modality_projection.proj.weight"][1] / width) ** 0.5),
    }


def list_unused_shapes(config: SmolVLAConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return lerobot's names → shapes of the tensors that lerobot stores and our forward pass does not read."""
    inner = config.heads * config.head_dim
    return {
        f"{VLM}lm_head.weight": (vocabulary, config.width),
        **list_end_of_language_model(TEXT, config.layers, config.width, config.hidden, inner),
    }


def make_configuration(config: SmolVLAConfig, steps: int) -> dict[str, Any]:
    """Return the entries of lerobot's config.json that are specific to SmolVLA; `steps`: K, denoise steps.

    `load_vlm_weights` is false; otherwise lerobot would first fetch SmolVLM2's weights and round ours to bfloat16.
    """
    return {
        "num_steps": steps,
        "resize_imgs_with_padding": [config.resolution, config.resolution],
        "num_vlm_layers": config.layers,
        "num_expert_layers": 0,
        "attention_mode": "cross_attn",
        "self_attn_every_n_layers": config.self_attention_every,
        "expert_width_multiplier": config.expert_width / config.width,
        "add_image_special_tokens": config.image_special_tokens,
        "min_period": config.min_period,
        "max_period": config.max_period,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
        "load_vlm_weights": False,
        "pad_language_to": "max_length",
        "prefix_length": 0,
    }
