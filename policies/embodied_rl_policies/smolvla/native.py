"""The modules that SmolVLA takes from transformers. They hold the parameters; the decoders' forward pass is ours.

- `SmolVLMVisionConfig`, `SmolVLMVisionTransformer`: the vision tower; its embeddings, encoder layers and last norm.
- `SmolVLMConfig`, `SmolVLMConnector`: pixel shuffle and the projection of patches to the language model's width.
- `LlamaConfig`, `LlamaDecoderLayer`, `LlamaRMSNorm`: the layers of the language model and of the action expert. We use
  each layer's two norms, the projections of its attention and its feed-forward network; we do not use its forward pass,
  caches and masks.
"""

from typing import Any

from torch import nn

from embodied_rl_policies.loading import import_transformers

LLAMA, SMOLVLM = "models.llama.modeling_llama", "models.smolvlm.modeling_smolvlm"

RMS_EPSILON = 1e-5


def make_vision_tower(*, width: int, layers: int, hidden: int, heads: int, patch: int, resolution: int) -> Any:
    """Build SmolVLM2's SigLIP vision tower, with all patches of a square image."""
    smolvlm = import_transformers("SmolVLA", SMOLVLM)
    return smolvlm.SmolVLMVisionTransformer(
        smolvlm.SmolVLMVisionConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            intermediate_size=hidden,
            num_attention_heads=heads,
            patch_size=patch,
            image_size=resolution,
        )
    )


def make_connector(*, vision_width: int, width: int, pixel_shuffle: int) -> nn.Module:
    """Build the connector: patches [m, P, vision width] → image tokens [m, P / pixel_shuffle², width]."""
    text = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 1}
    vision = {"hidden_size": vision_width, "num_attention_heads": 1}
    smolvlm = import_transformers("SmolVLA", SMOLVLM)
    return smolvlm.SmolVLMConnector(
        smolvlm.SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=pixel_shuffle)
    )


def make_decoder_layer(*, width: int, hidden: int, heads: int, key_value_heads: int, head_dim: int) -> Any:
    """Build a Llama layer; its attention may be wider than its tokens, as in the expert."""
    llama = import_transformers("SmolVLA", LLAMA)
    config = llama.LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=RMS_EPSILON,
    )
    return llama.LlamaDecoderLayer(config, layer_idx=0)


def make_rms_norm(width: int) -> nn.Module:
    """Build Llama's RMS norm over the last dimension."""
    return import_transformers("SmolVLA", LLAMA).LlamaRMSNorm(width, eps=RMS_EPSILON)
