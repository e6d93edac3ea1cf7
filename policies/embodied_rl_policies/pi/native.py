"""The modules that π0 and π0.5 take from transformers. They hold the parameters; the decoders' forward pass is ours.

From a `GemmaModel` we use the token embedding, which scales by √width, and parts of its layers: two norms, the
attention projections, and the feed-forward network. We do not use its forward pass, caches and masks.
"""

from typing import TYPE_CHECKING

from embodied_rl_policies.loading import import_transformers

if TYPE_CHECKING:
    from transformers import GemmaModel, SiglipVisionModel

__all__ = ["make_gemma", "make_vision_tower"]


def make_gemma(*, width: int, layers: int, hidden: int, heads: int, head_dim: int, vocabulary: int) -> "GemmaModel":
    """Build a Gemma decoder with one key-value head, like every Gemma variant of openpi."""
    transformers = import_transformers("π0")
    return transformers.GemmaModel(
        transformers.GemmaConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            intermediate_size=hidden,
            num_attention_heads=heads,
            num_key_value_heads=1,
            head_dim=head_dim,
            vocab_size=vocabulary,
            hidden_act="gelu_pytorch_tanh",
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def make_vision_tower(
    *, width: int, layers: int, hidden: int, heads: int, patch: int, image_size: int
) -> "SiglipVisionModel":
    """Build a SigLIP vision transformer without its pooling head."""
    transformers = import_transformers("π0")
    return transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            intermediate_size=hidden,
            num_attention_heads=heads,
            patch_size=patch,
            image_size=image_size,
            vision_use_head=False,
        )
    )
