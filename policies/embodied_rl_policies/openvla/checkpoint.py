"""What checkpoints of OpenVLA and OpenVLA-OFT in Hugging Face's layout determine: sizes, and refused settings.

Tensors keep their names there: `vision_backbone.featurizer` (DINOv2), `vision_backbone.fused_featurizer` (SigLIP),
`projector`, `language_model`. config.json leaves out what is transformers' default.
"""

from collections.abc import Collection, Mapping
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.openvla import config as sizes
from embodied_rl_policies.openvla.config import DINO, FILM, SIGLIP, TEXT, OpenVLAConfig
from embodied_rl_policies.openvla.vision import list_unused_shapes
from embodied_rl_policies.vlm import Shapes

MEANS, STDS = ("means", "mean"), ("stds", "std")
"""Key of preprocessor_config.json for both towers, and key of each entry of its `tvf_normalize_params`."""


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `OpenVLAConfig` that a checkpoint determines.

    Args:
        shapes: shapes of the checkpoint's tensors.
        config: content of its config.json, and of preprocessor_config.json as `preprocessor`.
        given: keys that the user gave.

    Raises:
        UserError: a setting is unknown or not implemented, tensors that determine sizes are missing, or heads of a
            vision tower are neither known nor given.
    """
    text = config.get("text_config") or {}
    _check_settings(config, sizes.REQUIRED, sizes.READ | sizes.WITHOUT_EFFECT, "")
    _check_settings(text, sizes.TEXT_REQUIRED, sizes.TEXT_READ | sizes.TEXT_WITHOUT_EFFECT, "text_config.")
    try:
        found = _read_language(shapes, text) | _read_tower(shapes, DINO, "dino") | _read_tower(shapes, SIGLIP, "siglip")
        found["registers"] = shapes[f"{DINO}reg_token"][1]
        patches, patch = shapes[f"{DINO}pos_embed"][1], shapes[f"{DINO}patch_embed.proj.weight"][2]
        shapes["projector.fc3.weight"]
        if any(name.startswith(FILM) for name in shapes):
            found["film_rank"] = shapes[f"{FILM}featurizer.blocks.0.block.attn.qkv.down.weight"][0]
    except (KeyError, IndexError) as error:
        message = f"The checkpoint is not an OpenVLA: {error.args[0]} is missing, or has another number of dimensions."
        raise UserError(message, code="checkpoint-unsupported") from None
    found |= {"patch": patch, "resolution": patch * round(patches**0.5)}
    found["padding_rows"] = config.get("pad_to_multiple_of", OpenVLAConfig.padding_rows)
    found["bins"] = config.get("n_action_bins", OpenVLAConfig.bins)
    if (state := shapes.get(f"{sizes.STATE_PROJECTOR}fc1.weight")) is not None:
        found["state_dim"] = state[1]
    for key in ("dino_heads", "siglip_heads"):
        width = found[f"{key.removesuffix('_heads')}_width"]
        if key not in given and width not in sizes.VISION_HEADS:
            message = f"The checkpoint does not say how many heads its vision tower of width {width} has: give policy."
            raise UserError(f"{message}{key}=<number>.", code="checkpoint-incomplete")
        found |= {} if key in given else {key: sizes.VISION_HEADS[width]}
    _check_resolution(config, found["resolution"])
    return found | _read_colours(config.get("preprocessor") or {}, found["resolution"])


def _read_language(shapes: Shapes, text: Mapping[str, Any]) -> dict[str, Any]:
    vocabulary, width = shapes[f"{TEXT}embed_tokens.weight"]
    heads = text.get("num_attention_heads", sizes.LLAMA_DEFAULTS["num_attention_heads"])
    keys = shapes[f"{TEXT}layers.0.self_attn.k_proj.weight"][0]
    if type(heads) is not int or heads < 1 or width % heads or keys % (width // heads):
        message = f"text_config.num_attention_heads={heads!r:.40} does not fit a language model of width {width}."
        raise UserError(f"{message} Give the config.json that belongs to the weights.", code="checkpoint-damaged")
    return {
        "vocabulary": vocabulary,
        "width": width,
        "layers": _count(shapes, f"{TEXT}layers."),
        "hidden": shapes[f"{TEXT}layers.0.mlp.up_proj.weight"][0],
        "heads": heads,
        "key_value_heads": keys // (width // heads),
        "norm_epsilon": text.get("rms_norm_eps", sizes.LLAMA_DEFAULTS["rms_norm_eps"]),
    }


def _read_tower(shapes: Shapes, start: str, name: str) -> dict[str, Any]:
    return {
        f"{name}_width": shapes[f"{start}patch_embed.proj.weight"][0],
        f"{name}_layers": _count(shapes, f"{start}blocks."),
        f"{name}_hidden": shapes[f"{start}blocks.0.mlp.fc1.weight"][0],
    }


def _count(shapes: Shapes, start: str) -> int:
    numbers = (name[len(start) :].split(".")[0] for name in shapes if name.startswith(start))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _check_settings(
    config: Mapping[str, Any], required: Mapping[str, tuple[Any, ...]], known: Collection[str], where: str
) -> None:
    """Raise `UserError` for a key that is unknown, or has a value that is not implemented."""
    for key, value in config.items():
        if key in required and value not in required[key]:
            choices = ", ".join(map(str, required[key]))
            message = f"config.json has {where}{key}={value!r:.60}, which is not supported; supported: {choices}."
            raise UserError(message, code="checkpoint-unsupported")
        if key not in required and key not in known:
            message = f"config.json has an unknown key, {where}{key}={value!r:.60}: remove it if it changes no action."
            raise UserError(message, code="checkpoint-unsupported")


def _check_resolution(config: Mapping[str, Any], resolution: int) -> None:
    if config.get("image_sizes", [resolution] * 2) != [resolution] * 2:
        message = f"config.json has image_sizes={config['image_sizes']}, but its towers take {resolution} pixels."
        raise UserError(f"{message} Give the config.json that belongs to the weights.", code="checkpoint-unsupported")


def _read_colours(preprocessor: Mapping[str, Any], resolution: int) -> dict[str, tuple[float, ...]]:
    """Return the means and deviations of colours of both towers."""
    if not preprocessor:
        return {}
    expected = {"input_sizes": [[3, resolution, resolution]] * 2, "interpolations": ["bicubic"] * 2}
    for key, value in expected.items():
        if preprocessor.get(key, value) != value:
            message = f"preprocessor_config.json has {key}={preprocessor[key]!r:.60}, not {value}; not supported."
            raise UserError(message, code="checkpoint-unsupported")
    found: dict[str, tuple[float, ...]] = {}
    for plural, name in (MEANS, STDS):
        values = preprocessor.get(plural)
        used = [entry.get(name) for entry in preprocessor.get("tvf_normalize_params", [])] or values
        try:
            pair = [tuple(map(float, entry)) for entry in values or ()]
            same = pair == [tuple(map(float, entry)) for entry in used or ()]
        except (TypeError, ValueError):
            pair, same = [], False
        if len(pair) != 2 or not same:
            message = f"preprocessor_config.json should give the {plural} of two vision towers, once or twice the same."
            raise UserError(message, code="checkpoint-damaged")
        found |= {f"dino_{name}": pair[0], f"siglip_{name}": pair[1]}
    return found


def list_unread_shapes(config: OpenVLAConfig) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors that the official class stores and no action depends on."""
    dino = list_unused_shapes(
        width=config.dino_width, hidden=config.dino_hidden, layers=config.dino_layers, scaled=True, pooled=False
    )
    siglip = list_unused_shapes(
        width=config.siglip_width, hidden=config.siglip_hidden, layers=config.siglip_layers, scaled=False, pooled=True
    )
    pairs = (DINO, dino), (SIGLIP, siglip)
    return {start + name: shape for start, shapes in pairs for name, shape in shapes.items()}


def make_configuration(config: OpenVLAConfig) -> dict[str, Any]:
    """Return the content of config.json but for the statistics, and of preprocessor_config.json as `preprocessor`."""
    text = {
        "model_type": "llama",
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "rms_norm_eps": config.norm_epsilon,
        "vocab_size": config.vocabulary,
    }
    towers = zip((config.dino_mean, config.siglip_mean), (config.dino_std, config.siglip_std), strict=True)
    pairs = [{"mean": list(mean), "std": list(std), "inplace": False} for mean, std in towers]
    preprocessor = {
        "image_processor_type": "PrismaticImageProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, config.resolution, config.resolution]] * 2,
        "interpolations": ["bicubic"] * 2,
        "means": [pair["mean"] for pair in pairs],
        "stds": [pair["std"] for pair in pairs],
        "tvf_normalize_params": pairs,
        "use_fused_vision_backbone": True,
    }
    return {
        "architectures": ["OpenVLAForActionPrediction"],
        "model_type": "openvla",
        "arch_specifier": "no-align+fused-gelu-mlp",
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "llm_backbone_id": "llama2-7b-pure",
        "use_fused_vision_backbone": True,
        "image_resize_strategy": "resize-naive",
        "image_sizes": [config.resolution] * 2,
        "n_action_bins": config.bins,
        "pad_to_multiple_of": config.padding_rows,
        "text_config": text,
        "preprocessor": preprocessor,
    }
