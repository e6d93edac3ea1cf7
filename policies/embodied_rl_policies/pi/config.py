"""Sizes of π0 and π0.5, and how they are read from a checkpoint.

The defaults are those of the published checkpoints: PaliGemma 3B and a 300M action expert.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.vlm import Shapes, check_resolution, check_sizes, list_end_of_language_model, read_shapes

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0
"""The periods of the published checkpoints, and the only ones that openpi supports."""

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


@dataclass(frozen=True)
class PiConfig:
    """Sizes of the network; a checkpoint's own sizes replace them."""

    width: int = 2048
    """of the language model."""
    layers: int = 18
    """of the language model, and of the action expert."""
    hidden: int = 16_384
    """of a feed-forward block of the language model."""
    heads: int = 8
    """of the attention of the language model and of the expert."""
    head_dim: int = 256
    """of that attention; even."""
    vocabulary: int | None = 257_152
    """token ids; null takes as many as the tokenizer has."""
    expert_width: int = 1024
    """of the action expert."""
    expert_hidden: int = 4096
    """of a feed-forward block of the action expert."""
    vision_width: int = 1152
    """of the vision tower."""
    vision_layers: int = 27
    """of the vision tower."""
    vision_hidden: int = 4304
    """of a feed-forward block of the vision tower."""
    vision_heads: int = 16
    """of the vision tower; they divide its width."""
    patch: int = 14
    """pixels a side of a patch."""
    resolution: int = 224
    """pixels a side that images are brought to."""
    horizon: int = 50
    """H, actions predicted at once."""
    action_dim: int = 32
    """D of the network; a robot's shorter actions are padded with zeros."""
    state_dim: int = 32
    """S of the network; a robot's shorter states are padded with zeros."""
    token_length: int = 48
    """L, tokens of a prompt at most."""
    min_period: float = MIN_PERIOD
    """shortest period of the sines and cosines that the flow time becomes."""
    max_period: float = MAX_PERIOD
    """longest period of these."""
    prompt: Literal["openpi", "lerobot"] = "openpi"
    """how π0 writes an instruction. "openpi": on one line, without underscores and outer spaces, and a line feed;
    "lerobot": unchanged, with a line feed unless it ends with one. A checkpoint's format decides unless this is given;
    π0.5's prompts are the same in both."""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass instead of storing them."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        check_sizes(self)
        if self.resolution % self.patch:
            raise UserError(
                f"policy.resolution={self.resolution} must be a multiple of policy.patch={self.patch}.",
                code="policy-sizes-invalid",
            )


@dataclass(frozen=True)
class Pi05Config(PiConfig):
    """Sizes of π0.5: the sizes of π0, but a longer prompt, because the prompt contains the state."""

    token_length: int = 200


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `PiConfig` that tensors or configuration determine; only lerobot's has `input_features`.

    All Gemma variants of openpi have one key-value head; this determines the head dimension and the number of heads.

    Raises:
        UserError: tensors that determine sizes are missing, or neither configuration nor user gives the other sizes.
    """
    try:
        found: dict[str, Any] = read_shapes(shapes, "language.", "vision.")
        head_dim = shapes["language.layers.0.self_attn.k_proj.weight"][0]
        found |= {"head_dim": head_dim, "heads": shapes["language.layers.0.self_attn.q_proj.weight"][0] // head_dim}
    except KeyError as error:
        raise UserError(
            f"The checkpoint is not one of π0 or π0.5: {error.args[0]} is missing.", code="checkpoint-unsupported"
        ) from None
    found["state_dim"] = shapes["state_proj.weight"][1] if "state_proj.weight" in shapes else found["action_dim"]
    check_resolution(config, found["resolution"], "image_resolution", "resize_imgs_with_padding")
    if (width := found["vision_width"]) in VISION_HEADS:
        found["vision_heads"] = VISION_HEADS[width]
    for key, names in CONFIGURED.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None and not (key in FREE and key in given):
            found[key] = value
    if "prompt" not in given:
        found["prompt"] = "lerobot" if "input_features" in config else "openpi"
    if untold := [key for key in UNTOLD if key not in found and key not in given]:
        listed = ", nor ".join(f"{UNTOLD[key]}: give policy.{key}=<number>" for key in untold)
        raise UserError(f"The checkpoint does not say {listed}.", code="checkpoint-incomplete")
    return found


def list_unused_shapes(config: PiConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors that openpi and lerobot store although the forward pass does not use them."""
    return {
        **list_end_of_language_model(LANGUAGE, config),
        "paligemma_with_expert.gemma_expert.lm_head.weight": (vocabulary, config.expert_width),
    }
