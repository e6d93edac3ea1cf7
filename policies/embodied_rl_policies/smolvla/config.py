"""Sizes of SmolVLA, and SmolVLA in lerobot's checkpoints: names of parameters, and the sizes that they determine.

The defaults are the sizes of lerobot/smolvla_base with SmolVLM2-500M-Video-Instruct.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.vlm import Shapes, check_resolution, check_sizes, list_end_of_language_model, read_shapes

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


@dataclass(frozen=True)
class SmolVLAConfig:
    """Sizes of the network; a checkpoint's own sizes replace them."""

    width: int = 960
    """of the language model."""
    layers: int = 16
    """of the language model (a checkpoint keeps only its first ones) and of the action expert."""
    hidden: int = 2560
    """of a feed-forward block of the language model."""
    heads: int = 15
    """of the attention of the language model and of the expert."""
    key_value_heads: int = 5
    """of the same attention; they divide `heads`."""
    head_dim: int = 64
    """of that attention; even."""
    vocabulary: int | None = 49_280
    """token ids; null takes as many as the tokenizer has."""
    expert_width: int = 720
    """of the action expert."""
    expert_hidden: int = 2048
    """of a feed-forward block of the action expert."""
    self_attention_every: int = 2
    """the expert's layers 0, e, 2 e, … attend to the actions too, as joint attention does; the others attend to the
    prefix alone. 1 makes all of them joint, 0 none."""
    vision_width: int = 768
    """of the vision tower."""
    vision_layers: int = 12
    """of the vision tower."""
    vision_hidden: int = 3072
    """of a feed-forward block of the vision tower."""
    vision_heads: int = 12
    """of the vision tower; they divide its width."""
    patch: int = 16
    """pixels a side of a patch."""
    resolution: int = 512
    """pixels a side that images are brought to."""
    pixel_shuffle: int = 4
    """patches a side that become one prefix token."""
    image_special_tokens: bool = False
    """put the prompt's image start and end tokens around each camera's features."""
    fake_image_token: int = 49_189
    """id of the token before and after an image."""
    global_image_token: int = 49_152
    """id of the token between that token and the image."""
    horizon: int = 50
    """H, actions predicted at once."""
    action_dim: int = 32
    """D of the network; a robot's shorter actions are padded with zeros."""
    state_dim: int = 32
    """S of the network; a robot's shorter states are padded with zeros."""
    token_length: int = 48
    """L, tokens of a prompt at most."""
    min_period: float = 4e-3
    """shortest period of the sines and cosines that the flow time becomes."""
    max_period: float = 4.0
    """longest period of these."""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass instead of storing them."""

    def attends_to_actions(self, layer: int) -> bool:
        """Return whether the expert's layer attends to the actions in addition to the prefix."""
        return self.self_attention_every > 0 and layer % self.self_attention_every == 0

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        check_sizes(self, may_be_zero=("self_attention_every", "fake_image_token", "global_image_token"))
        if self.heads % self.key_value_heads:
            raise UserError(
                f"policy.heads={self.heads} must be a multiple of policy.key_value_heads={self.key_value_heads}.",
                code="policy-sizes-invalid",
            )
        if self.resolution % (self.patch * self.pixel_shuffle):
            raise UserError(
                f"policy.resolution={self.resolution} must be a multiple of policy.patch={self.patch} times "
                f"policy.pixel_shuffle={self.pixel_shuffle}.",
                code="policy-sizes-invalid",
            )
        highest = max(self.fake_image_token, self.global_image_token)
        if self.image_special_tokens and self.vocabulary is not None and highest >= self.vocabulary:
            raise UserError(
                f"policy.fake_image_token={self.fake_image_token} and policy.global_image_token="
                f"{self.global_image_token} must be below policy.vocabulary={self.vocabulary}, or "
                "policy.image_special_tokens false.",
                code="value-out-of-range",
            )


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
    config = {key: value for key, value in config.items() if value is not None or key == "resize_imgs_with_padding"}
    layers, expert = config.get("num_vlm_layers", 0), config.get("num_expert_layers", 0)
    if expert > 0 and expert != layers:
        raise UserError(
            f"The checkpoint has {expert} expert layers on {layers} of the language model; not supported.",
            code="checkpoint-unsupported",
        )
    try:
        found: dict[str, Any] = read_shapes(shapes, "text_model.", "vision_model.")
        found["state_dim"] = shapes["state_proj.weight"][1]
        merged = shapes["connector.modality_projection.proj.weight"][1]
        inner = {part: shapes[f"text_model.layers.0.self_attn.{part}_proj.weight"][0] for part in "qk"}
    except KeyError as error:
        raise UserError(
            f"The checkpoint is not a SmolVLA: {error.args[0]} is missing.", code="checkpoint-unsupported"
        ) from None
    found["pixel_shuffle"] = round((merged / found["vision_width"]) ** 0.5)
    check_resolution(config, found["resolution"], "resize_imgs_with_padding")
    found |= {ours: config[theirs] for ours, theirs in CONFIGURED.items() if config.get(theirs) is not None}
    guesses = {"head_dim": HEAD_DIMS.get(found["width"]), "vision_heads": VISION_HEADS.get(found["vision_width"])}
    found |= {key: guess for key, guess in guesses.items() if guess and key not in found and key not in given}
    for key, meaning in UNTOLD.items():
        if key not in found and key not in given:
            raise UserError(
                f"The checkpoint does not say {meaning}: give policy.{key}=<number>.", code="checkpoint-incomplete"
            )
    head_dim = {**found, **given}["head_dim"]
    found |= {"heads": inner["q"] // head_dim, "key_value_heads": inner["k"] // head_dim}
    every = max(config.get("self_attn_every_n_layers", SmolVLAConfig.self_attention_every), 0)
    joint = "cross" not in config.get("attention_mode", "cross_attn")
    return found | {"self_attention_every": 1 if joint else every}


def list_unused_shapes(config: SmolVLAConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return lerobot's names → shapes of the tensors that lerobot stores and our forward pass does not read."""
    return {f"{VLM}lm_head.weight": (vocabulary, config.width), **list_end_of_language_model(TEXT, config)}


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
