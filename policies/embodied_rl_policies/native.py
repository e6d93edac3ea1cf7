"""The modules that our networks take from transformers. They hold the parameters; the forward passes are ours.

From Gemma and Llama decoders we use the token embedding (Gemma's scales by √width) and parts of the layers: two norms,
the attention projections and the feed-forward network; not their forward passes, caches and masks. Of Qwen3-VL's
decoder the layers are called whole, and of its vision tower all parts but the attention. Transformers is imported when
a network is built, not when only a network's sizes are read.
"""

from importlib import import_module
from typing import Any

from torch import nn

from embodied_rl.interfaces.errors import UserError

LLAMA, SMOLVLM = ".models.llama.modeling_llama", ".models.smolvlm.modeling_smolvlm"
QWEN = ".models.qwen3_vl.modeling_qwen3_vl"
RMS_EPSILON = 1e-5


def import_transformers(network: str, module: str = "") -> Any:
    """Import transformers, or a module of it, for a network that the message names.

    Raises:
        UserError: transformers is not installed, or its version is not the required one.
    """
    try:
        return import_module(f"transformers{module}")
    except ImportError as error:
        remedy = "pip install 'transformers>=5.23,<5.24'"
        raise UserError(
            f"{network} needs the package transformers 5.23 ({error}): {remedy}", code="package-missing"
        ) from error


def make_gemma(*, width: int, layers: int, hidden: int, heads: int, head_dim: int, vocabulary: int) -> Any:
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


def make_siglip(config: Any) -> Any:
    """Build π0's SigLIP vision transformer, without its pooling head."""
    transformers = import_transformers("π0")
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(vision_use_head=False, **_vision(config)))


def make_smolvlm_vision(config: Any) -> Any:
    """Build SmolVLM2's SigLIP vision tower, with all patches of a square image."""
    smolvlm = import_transformers("SmolVLA", SMOLVLM)
    return smolvlm.SmolVLMVisionTransformer(smolvlm.SmolVLMVisionConfig(**_vision(config)))


def _vision(config: Any) -> dict[str, int]:
    return {
        "hidden_size": config.vision_width,
        "num_hidden_layers": config.vision_layers,
        "intermediate_size": config.vision_hidden,
        "num_attention_heads": config.vision_heads,
        "patch_size": config.patch,
        "image_size": config.resolution,
    }


def make_connector(*, vision_width: int, width: int, pixel_shuffle: int) -> nn.Module:
    """Build SmolVLM2's connector: patches [m, P, vision width] → image tokens [m, P / pixel_shuffle², width]."""
    text = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 1}
    vision = {"hidden_size": vision_width, "num_attention_heads": 1}
    smolvlm = import_transformers("SmolVLA", SMOLVLM)
    return smolvlm.SmolVLMConnector(
        smolvlm.SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=pixel_shuffle)
    )


def make_decoder_layer(
    *, width: int, hidden: int, heads: int, key_value_heads: int, head_dim: int, epsilon: float = RMS_EPSILON
) -> Any:
    """Build a Llama layer; its attention may be wider than its tokens, as in SmolVLA's expert."""
    llama = import_transformers("Llama", LLAMA)
    config = llama.LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=epsilon,
    )
    return llama.LlamaDecoderLayer(config, layer_idx=0)


def make_rms_norm(width: int, epsilon: float = RMS_EPSILON) -> nn.Module:
    """Build Llama's RMS norm over the last dimension."""
    return import_transformers("Llama", LLAMA).LlamaRMSNorm(width, eps=epsilon)


def make_qwen3_language(config: Any, vocabulary: int) -> Any:
    """Build Qwen3-VL's token embedding and decoder layers; norms at the end and rotary buffers are left out."""
    qwen = import_transformers("GR00T", QWEN)
    model = qwen.Qwen3VLTextModel(
        qwen.Qwen3VLTextConfig(
            vocab_size=vocabulary,
            hidden_size=config.width,
            intermediate_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=config.head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
        )
    )
    del model.norm, model.rotary_emb
    return model


def make_qwen3_vision(config: Any) -> Any:
    """Build Qwen3-VL's vision tower with its mergers; rotary buffers are left out."""
    qwen = import_transformers("GR00T", QWEN)
    model = qwen.Qwen3VLVisionModel(
        qwen.Qwen3VLVisionConfig(
            depth=config.vision_layers,
            hidden_size=config.vision_width,
            intermediate_size=config.vision_hidden,
            num_heads=config.vision_heads,
            patch_size=config.patch,
            spatial_merge_size=config.merge,
            out_hidden_size=config.width,
            num_position_embeddings=config.vision_positions,
            deepstack_visual_indexes=list(config.deepstack),
        )
    )
    del model.rotary_pos_emb
    return model
