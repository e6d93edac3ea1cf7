"""Tiny OpenVLAs in words that both projects understand, and what they are asked. NumPy alone, as in `recipe`.

They keep what the full size has: two towers of different widths, registers, heads that share keys and values, the token
ids of actions, prompts of different lengths. The vocabulary is the full one, as ids are constants of the official code.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.support import recipe

ROWS, CAMERAS = 3, ("full_image", "wrist_image")
TOKEN_LENGTH, WORDS = 9, 29_000
"""Prompts hold ids from 2 to below WORDS; the official code adds the start token itself through the tokenizer."""
HORIZON, ACTION_DIM, STATE_DIM, BINS = 8, 7, 8, 256
WIDTH, LAYERS, HIDDEN, HEADS, KEY_VALUE_HEADS, VOCABULARY, PADDING_ROWS = 40, 3, 72, 4, 2, 32_064, 64
HEAD_HIDDEN, HEAD_BLOCKS = 52, 2
PATCH, RESOLUTION = 14, 42
DINO = {"width": 24, "layers": 3, "hidden": 60, "heads": 4}
SIGLIP = {"width": 36, "layers": 4, "hidden": 134, "heads": 4}
REGISTERS = 3
MEANS, STDS = ((0.485, 0.456, 0.406), (0.5, 0.5, 0.5)), ((0.229, 0.224, 0.225), (0.5, 0.5, 0.5))
FILM_RANK = 20
VARIANTS = {"one": (1, False), "two": (2, True)}
"""name → number of cameras, and whether the state is read."""
STEP = 13
"""Of the places of OpenVLA-OFT whose logits are kept."""
KEY = "libero_tiny_no_noops"
TOWERS = ("dinosiglip-vit-so-224px", "vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224")

HEAD = "language_model.lm_head.weight"


def weight(name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """The recipe's tensor of this name, changed so that actions differ from each other.

    Norms and scales are near 1, so that layers count. The output layer has zeros in all rows but those of bins: the
    official code searches the whole vocabulary, and takes what is no bin for the first or last one.
    """
    made = recipe.weight(name, shape)
    if name.endswith("scale_factor") or ("norm" in name and name.endswith(".weight")):
        return made + 1
    if name != HEAD:
        return made
    rows = np.arange(len(made))
    first = VOCABULARY - PADDING_ROWS - BINS
    return made * ((rows >= first) & (rows < first + BINS))[:, None].astype(np.float32)


def statistics() -> dict[str, dict[str, dict[str, list]]]:
    """Statistics of one robot; the gripper keeps its units, and one entry of the state is constant."""
    entries = range(ACTION_DIM)
    action = {"q01": [-0.5 - 0.1 * i for i in entries], "q99": [0.7 + 0.05 * i for i in entries]}
    state = {"q01": [-1.0 - 0.2 * i for i in range(STATE_DIM)], "q99": [0.9 + 0.1 * i for i in range(STATE_DIM)]}
    state["q99"][3] = state["q01"][3]
    bounds = ({"min": each["q01"], "max": each["q99"]} for each in (action, state))
    action, state = ({**each, **more} for each, more in zip((action, state), bounds, strict=True))
    return {KEY: {"action": {**action, "mask": [True] * (ACTION_DIM - 1) + [False]}, "proprio": state}}


def text_config() -> dict[str, object]:
    """The language model's part of config.json."""
    return {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "vocab_size": VOCABULARY,
        "pad_token_id": 32_000,
    }


def config() -> dict[str, object]:
    """config.json, with the keys that openvla/openvla-7b has."""
    return {
        "arch_specifier": "no-align+fused-gelu-mlp",
        "architectures": ["OpenVLAForActionPrediction"],
        "auto_map": {
            "AutoConfig": "configuration_prismatic.OpenVLAConfig",
            "AutoModelForVision2Seq": "modeling_prismatic.OpenVLAForActionPrediction",
        },
        "hf_llm_id": "meta-llama/Llama-2-7b-hf",
        "image_resize_strategy": "resize-naive",
        "image_sizes": [RESOLUTION] * 2,
        "llm_backbone_id": "llama2-7b-pure",
        "llm_max_length": 2048,
        "model_type": "openvla",
        "n_action_bins": BINS,
        "norm_stats": statistics(),
        "output_projector_states": False,
        "pad_to_multiple_of": PADDING_ROWS,
        "pad_token_id": 32_000,
        "text_config": text_config(),
        "timm_model_ids": list(TOWERS[1:]),
        "timm_override_act_layers": [None, None],
        "torch_dtype": "float32",
        "transformers_version": "4.40.1",
        "use_fused_vision_backbone": True,
        "vision_backbone_id": TOWERS[0],
    }


def preprocessor() -> dict[str, object]:
    """preprocessor_config.json."""
    pairs = zip(MEANS, STDS, strict=True)
    return {
        "image_processor_type": "PrismaticImageProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, RESOLUTION, RESOLUTION]] * 2,
        "interpolations": ["bicubic"] * 2,
        "means": [list(mean) for mean in MEANS],
        "stds": [list(std) for std in STDS],
        "tvf_normalize_params": [{"mean": list(mean), "std": list(std), "inplace": False} for mean, std in pairs],
        "use_fused_vision_backbone": True,
    }
