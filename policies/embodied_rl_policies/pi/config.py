"""Sizes of π0 and π0.5. The defaults are those of the published checkpoints: PaliGemma 3B and a 300M action expert."""

from dataclasses import dataclass, fields
from typing import Literal

from embodied_rl.interfaces.errors import UserError

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0
"""The periods of the published checkpoints, and the only ones that openpi supports."""

MAX_LAYERS = 1000
"""An upper limit far above any real network; building this many modules takes minutes."""


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
        """Check that the sizes are consistent.

        Raises:
            UserError: a size is invalid; the message names the key to change.
        """
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise UserError(f"policy.{entry.name}={value} must be at least 1.", code="value-out-of-range")
        for name, layers in {"layers": self.layers, "vision_layers": self.vision_layers}.items():
            if layers > MAX_LAYERS:
                raise UserError(f"policy.{name}={layers} must be at most {MAX_LAYERS}.", code="value-out-of-range")
        if self.head_dim % 2:
            raise UserError(
                f"policy.head_dim={self.head_dim} must be even: rotary positions rotate pairs of entries.",
                code="policy-sizes-invalid",
            )
        if self.expert_width % 2:
            raise UserError(
                f"policy.expert_width={self.expert_width} must be even (time embedding).", code="policy-sizes-invalid"
            )
        if self.vision_width % self.vision_heads:
            raise UserError(
                f"policy.vision_width={self.vision_width} must be a multiple of "
                f"policy.vision_heads={self.vision_heads}.",
                code="policy-sizes-invalid",
            )
        if self.resolution % self.patch:
            raise UserError(
                f"policy.resolution={self.resolution} must be a multiple of policy.patch={self.patch}.",
                code="policy-sizes-invalid",
            )
        if not 0 < self.min_period < self.max_period:
            raise UserError(
                f"policy.min_period={self.min_period} must lie between 0 and policy.max_period.",
                code="value-out-of-range",
            )


@dataclass(frozen=True)
class Pi05Config(PiConfig):
    """Sizes of π0.5: the sizes of π0, but a longer prompt, because the prompt contains the state."""

    token_length: int = 200
