"""Sizes of OpenVLA and OpenVLA-OFT, and how their checkpoints on Hugging Face's hub give them.

The defaults are those of openvla/openvla-7b: DINOv2 ViT-L/14 with registers, SigLIP ViT-So400m/14, and Llama 2 7B. What
OpenVLA-OFT's code chooses by a word on its command line (`prismatic/vla/constants.py`) is a key here.
"""

from dataclasses import dataclass
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.vlm import MAX_LAYERS

DINO, SIGLIP = "vision_backbone.featurizer.", "vision_backbone.fused_featurizer."
TOWERS, FILM = "vision_backbone.", "vision_backbone.vision_backbone."
"""First part of the names of vision towers without and with FiLM; a checkpoint with FiLM holds both, and these act."""
TEXT = "language_model.model."
STATE_PROJECTOR = "proprio_projector."

VISION_HEADS = {1024: 16, 1152: 16}
"""Width of a published vision tower → its attention heads, which no tensor determines."""

LLAMA_DEFAULTS = {"rms_norm_eps": 1e-6, "num_attention_heads": 32}
"""What transformers' LlamaConfig takes where a checkpoint's `text_config` says nothing, which is what it was made with;
Meta's own Llama 2 has an epsilon of 1e-5."""

REQUIRED: dict[str, tuple[Any, ...]] = {
    "arch_specifier": ("no-align+fused-gelu-mlp",),
    "llm_backbone_id": ("llama2-7b-pure", "llama2-13b-pure"),
    "vision_backbone_id": ("dinosiglip-vit-so-224px", "dinosiglip-vit-so-384px"),
    "use_fused_vision_backbone": (True,),
    "image_resize_strategy": ("resize-naive", "resize-crop", "letterbox"),
    "output_projector_states": (False,),
    "timm_override_act_layers": ([None, None],),
    "quantization_config": (None,),
    "tie_word_embeddings": (False,),
}
"""Key of config.json → the values that are implemented. The three ways to resize agree on squares, which images
are made before, as in OpenVLA's evaluation."""

READ = {
    "model_type", "n_action_bins", "norm_stats", "pad_to_multiple_of", "text_config", "image_sizes", "preprocessor",
    "statistics_key",
}  # fmt: skip
"""Keys that are read. Its reader adds the content of preprocessor_config.json, and the name of the statistics."""

HORIZONS = {"libero": 8, "aloha": 25, "bridge": 5}
"""Word in the name of statistics → actions of a chunk, as OpenVLA-OFT's constants have it."""

WITHOUT_EFFECT = {
    "architectures", "auto_map", "hf_llm_id", "llm_max_length", "pad_token_id", "timm_model_ids", "torch_dtype",
    "dtype", "transformers_version", "_name_or_path", "use_cache", "is_composition", "return_dict", "output_attentions",
    "output_hidden_states", "bos_token_id", "eos_token_id", "attn_implementation", "_attn_implementation",
}  # fmt: skip
"""Keys of config.json that change no action."""

TEXT_REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "rope_theta": (10_000, 10_000.0),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "pretraining_tp": (1,),
    "tie_word_embeddings": (False,),
    "quantization_config": (None,),
}
TEXT_READ = {
    "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "rms_norm_eps", "head_dim",
}  # fmt: skip
TEXT_WITHOUT_EFFECT = WITHOUT_EFFECT | {"max_position_embeddings", "initializer_range", "attention_dropout"}


@dataclass(frozen=True)
class OpenVLAConfig:
    """Sizes of the network; a checkpoint's own sizes replace them."""

    width: int = 4096
    """of the language model."""
    layers: int = 32
    """of the language model."""
    hidden: int = 11_008
    """of a feed-forward block of the language model."""
    heads: int = 32
    """of the language model's attention; they divide `width`."""
    key_value_heads: int = 32
    """of the same attention; they divide `heads`."""
    norm_epsilon: float = 1e-6
    """of the language model's norms."""
    vocabulary: int = 32_064
    """rows of the language model's token table."""
    padding_rows: int = 64
    """last rows of the table, which belong to no token: `pad_to_multiple_of` of the checkpoint."""
    bins: int = 256
    """N, bins of an action's range; their tokens are the last ones before the padding rows."""
    empty_token: int = 29_871
    """id of the empty token between a prompt and the actions."""
    dino_width: int = 1024
    """of DINOv2, as are the next three."""
    dino_layers: int = 24
    """with the last one, which is not computed."""
    dino_hidden: int = 4096
    """of a feed-forward block."""
    dino_heads: int = 16
    """they divide `dino_width`."""
    registers: int = 4
    """register tokens of DINOv2."""
    siglip_width: int = 1152
    """of SigLIP, as are the next three."""
    siglip_layers: int = 27
    """with the last one, which is not computed."""
    siglip_hidden: int = 4304
    """of a feed-forward block."""
    siglip_heads: int = 16
    """they divide `siglip_width`."""
    patch: int = 14
    """pixels a side of a patch."""
    resolution: int = 224
    """pixels a side that images are brought to."""
    dino_mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """subtracted from colours in [0, 1], for DINOv2."""
    dino_std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """by which the difference is divided."""
    siglip_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """the same for SigLIP."""
    siglip_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """the same for SigLIP."""
    crop_area: float = 0.9
    """share of an image's area that is cut out of its centre, as for policies trained with random crops; 1: no crop."""
    horizon: int = 1
    """H, actions predicted at once."""
    action_dim: int | None = None
    """D; null takes the robot's."""
    state_dim: int | None = None
    """entries of the state that a projector reads; null: the policy does not see the state."""
    token_length: int = 64
    """L, tokens of a prompt at most."""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass instead of storing them."""

    @property
    def head_dim(self) -> int:
        """Return the width of an attention head of the language model."""
        return self.width // self.heads

    @property
    def patches(self) -> int:
        """Return the number of patches of an image."""
        return (self.resolution // self.patch) ** 2

    @property
    def first_action_token(self) -> int:
        """Return the id of the bin of the largest action."""
        return self.vocabulary - self.padding_rows - self.bins

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        check_openvla_sizes(self)


@dataclass(frozen=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """Sizes of OpenVLA-OFT, which decodes a chunk of actions in parallel."""

    horizon: int = 8
    """H, actions predicted at once: 8 for LIBERO, 5 for Bridge, 25 for ALOHA."""
    stop_token: int | None = 2
    """id of the token after the actions' places, which these see too; null leaves it out, as RLinf's variant does."""
    film_rank: int | None = None
    """rank of the low-rank maps in vision towers that read the prompt (FiLM); null: the towers do not read it."""


@dataclass(frozen=True)
class OpenVLAOFTL1Config(OpenVLAOFTConfig):
    """Sizes of OpenVLA-OFT with an L1 head."""

    head_hidden: int = 4096
    """width of the head."""
    head_blocks: int = 2
    """its residual blocks."""


def check_openvla_sizes(config: OpenVLAConfig) -> None:
    """Check the sizes of a configuration.

    Raises:
        UserError: a size is invalid; the message names the key to change.
    """
    _check_counts(config)
    multiples = {("width", "heads"), ("heads", "key_value_heads"), ("resolution", "patch")}
    multiples |= {("dino_width", "dino_heads"), ("siglip_width", "siglip_heads")}
    for whole, part in sorted(multiples):
        if getattr(config, whole) % getattr(config, part):
            message = f"policy.{whole}={getattr(config, whole)} must be a multiple of policy.{part}="
            raise UserError(f"{message}{getattr(config, part)}.", code="policy-sizes-invalid")
    if config.head_dim % 2:
        message = f"policy.width / policy.heads = {config.head_dim} must be even: rotary positions rotate pairs."
        raise UserError(message, code="policy-sizes-invalid")
    if config.first_action_token < 0:
        message = f"policy.vocabulary={config.vocabulary} has no room for policy.bins={config.bins} and policy."
        raise UserError(f"{message}padding_rows={config.padding_rows} tokens.", code="policy-sizes-invalid")
    if not 0 < config.crop_area <= 1:
        message = f"policy.crop_area={config.crop_area} must lie above 0, up to 1."
        raise UserError(message, code="value-out-of-range")
    for name in ("dino_mean", "dino_std", "siglip_mean", "siglip_std"):
        values = getattr(config, name)
        if len(values) != 3 or (name.endswith("std") and min(values) <= 0):
            message = f"policy.{name}={values} must hold three numbers, and deviations positive ones."
            raise UserError(message, code="value-out-of-range")


def _check_counts(config: OpenVLAConfig) -> None:
    least = {"padding_rows": 0, "empty_token": 0, "registers": 1, "bins": 2, "dino_layers": 2, "siglip_layers": 2}
    for name, value in vars(config).items():
        if type(value) is int and value < (low := least.get(name, 1)) and name != "stop_token":
            raise UserError(f"policy.{name}={value} must be at least {low}.", code="value-out-of-range")
    for name in ("layers", "dino_layers", "siglip_layers"):
        if (layers := getattr(config, name)) > MAX_LAYERS:
            raise UserError(f"policy.{name}={layers} must be at most {MAX_LAYERS}.", code="value-out-of-range")
    tokens = {"empty_token": config.empty_token, "stop_token": getattr(config, "stop_token", None) or 0}
    for name, token in tokens.items():
        if not 0 <= token < config.vocabulary:
            message = f"policy.{name}={token} must lie from 0 to below policy.vocabulary={config.vocabulary}."
            raise UserError(message, code="value-out-of-range")
