"""Sizes of π0 and π0.5. The defaults are those of the published checkpoints: PaliGemma 3B and a 300M action expert."""

from dataclasses import dataclass, fields

from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class PiConfig:
    """Sizes of the network; a checkpoint's own sizes replace them.

    Attributes:
        width, layers, hidden: of the language model; heads, head_dim: of its attention, and of the expert's.
        vocabulary: token ids; null takes as many as the tokenizer has.
        expert_width, expert_hidden: of the action expert, which has as many layers as the language model.
        vision_width, vision_layers, vision_hidden, vision_heads: of the vision tower.
        patch: pixels a side of a patch. resolution: pixels a side that images are brought to.
        horizon: H, actions predicted at once.
        action_dim, state_dim: D and S of the network; a robot's shorter vectors are padded with zeros.
        token_length: L, tokens of a prompt at most.
        gradient_checkpointing: compute activations again in the backward pass instead of keeping them.
    """

    width: int = 2048
    layers: int = 18
    hidden: int = 16_384
    heads: int = 8
    head_dim: int = 256
    vocabulary: int | None = 257_152
    expert_width: int = 1024
    expert_hidden: int = 4096
    vision_width: int = 1152
    vision_layers: int = 27
    vision_hidden: int = 4304
    vision_heads: int = 16
    patch: int = 14
    resolution: int = 224
    horizon: int = 50
    action_dim: int = 32
    state_dim: int = 32
    token_length: int = 48
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            UserError: naming the key to change.
        """
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and not isinstance(value, bool) and value < 1:
                raise UserError(f"policy.{entry.name}={value} must be at least 1.")
        if self.head_dim % 2:
            raise UserError(f"policy.head_dim={self.head_dim} must be even: rotary positions turn pairs.")
        if self.expert_width % 2:
            raise UserError(f"policy.expert_width={self.expert_width} must be even: time is sines and cosines.")
        if self.vision_width % self.vision_heads:
            raise UserError(
                f"policy.vision_width={self.vision_width} must be a multiple of "
                f"policy.vision_heads={self.vision_heads}."
            )
        if self.resolution % self.patch:
            raise UserError(f"policy.resolution={self.resolution} must be a multiple of policy.patch={self.patch}.")


@dataclass(frozen=True)
class Pi05Config(PiConfig):
    """Sizes of π0.5: those of π0, and a longer prompt, since the state is written into it."""

    token_length: int = 200
