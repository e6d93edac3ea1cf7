"""Sizes of SmolVLA. The defaults are the sizes of lerobot/smolvla_base with SmolVLM2-500M-Video-Instruct."""

from dataclasses import dataclass, fields

from embodied_rl.interfaces.errors import UserError

MAY_BE_ZERO = ("self_attention_every", "fake_image_token", "global_image_token")

MAX_LAYERS = 1000
"""An upper limit far above any real network; building this many modules takes minutes."""


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
        """Check that the sizes are consistent.

        Raises:
            UserError: a size is invalid; the message names the key to change.
        """
        for entry in fields(self):
            value, least = getattr(self, entry.name), 0 if entry.name in MAY_BE_ZERO else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise UserError(f"policy.{entry.name}={value} must be at least {least}.", code="value-out-of-range")
        self._check_attention()
        self._check_images()
        if not 0 < self.min_period < self.max_period:
            raise UserError(
                f"policy.min_period={self.min_period} must lie between 0 and policy.max_period.",
                code="value-out-of-range",
            )

    def _check_attention(self) -> None:
        if self.heads % self.key_value_heads:
            raise UserError(
                f"policy.heads={self.heads} must be a multiple of policy.key_value_heads={self.key_value_heads}.",
                code="policy-sizes-invalid",
            )
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

    def _check_images(self) -> None:
        if self.vision_width % self.vision_heads:
            raise UserError(
                f"policy.vision_width={self.vision_width} must be a multiple of "
                f"policy.vision_heads={self.vision_heads}.",
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
