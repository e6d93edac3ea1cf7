"""Sizes of GR00T N1.7, and GR00T in NVIDIA's and lerobot's checkpoints: names of parameters, and the sizes they tell.

The defaults are those of nvidia/GR00T-N1.7-3B with Cosmos-Reason2-2B, whose layout is Qwen3-VL-2B's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Text
from embodied_rl_policies.vlm import MAX_LAYERS, Shapes, count_layers

VLM, LEROBOT = "backbone.model.", "_groot_model."
NAMES: dict[str, tuple[str, ...]] = {
    ours: (theirs, LEROBOT + theirs)
    for ours, theirs in {
        "language_model.": f"{VLM}model.language_model.",
        "visual.": f"{VLM}model.visual.",
        "action_head.": "action_head.",
    }.items()
}
"""Prefix of our parameter names → prefixes of Isaac-GR00T's, and of lerobot's."""
COPIES = {
    f"{start}{VLM}lm_head.weight": f"{start}{VLM}model.language_model.embed_tokens.weight" for start in ("", LEROBOT)
}
"""The output layer shares the weights of the token embedding; most checkpoints leave it out."""
UNREAD = (rf"({LEROBOT})?backbone\.model\.model\.language_model\.norm\.weight$",)
"""The norm behind the last layer, which GR00T does not apply."""

OPENING, BEGIN, END, CLOSING = "<|im_start|>user\n", "<|vision_start|>", "<|vision_end|>", "<|im_end|>\n"
"""The chat template's text around a user's message, and around the tokens of a picture in it."""

HEADS = {1536: 32, 2048: 32}
"""Heads of the action head's attention by its width; tensor shapes do not determine them."""
VISION_HEADS = {1024: 16, 1152: 16}
DEEPSTACK = {24: (5, 11, 17), 27: (8, 16, 24)}
"""Heads by width, and layers whose output is kept by number of layers, of Qwen3-VL's vision towers."""

TOLD = {"horizon": "action_horizon", "text_every": "attend_text_every_n_blocks", "time_buckets": "num_timestep_buckets"}
"""Our key → that of Isaac-GR00T's config.json."""


@dataclass(frozen=True)
class Gr00tConfig:
    """Sizes of the network, and what it does with observations; a checkpoint's own replace them."""

    width: int = 2048
    """of the language model."""
    layers: int = 16
    """of the language model that are kept; the action head reads the last one."""
    hidden: int = 6144
    """of a feed-forward block of the language model."""
    heads: int = 16
    """of the language model's attention."""
    key_value_heads: int = 8
    """of the same attention; they divide `heads`."""
    head_dim: int = 128
    """of that attention; even."""
    vocabulary: int | None = 151_936
    """token ids; null takes as many as the tokenizer has."""
    rotary_base: float = 5e6
    """of the language model's rotary positions."""
    rotary_sections: tuple[int, ...] = (24, 20, 20)
    """rotary frequencies of time, height and width."""
    vision_width: int = 1024
    """of the vision tower."""
    vision_layers: int = 24
    """of the vision tower."""
    vision_hidden: int = 4096
    """of a feed-forward block of the vision tower."""
    vision_heads: int = 16
    """of the vision tower; they divide its width."""
    vision_positions: int = 2304
    """learned places of patches, a square number."""
    deepstack: tuple[int, ...] = (5, 11, 17)
    """layers of the vision tower whose output is added behind the first layers of the language model."""
    patch: int = 16
    """pixels a side of a patch."""
    merge: int = 2
    """patches a side that become one token."""
    expert_width: int = 1536
    """of the action head."""
    expert_layers: int = 32
    """of its diffusion transformer; even ones attend to the prefix, odd ones to state and actions."""
    expert_heads: int = 32
    """of its attention; they divide its width."""
    expert_hidden: int = 6144
    """of its feed-forward blocks."""
    feature_width: int = 1024
    """of its output, from which actions are decoded, and of the encoder of the state inside."""
    mixer_layers: int = 4
    """of the action head over the prefix, before its diffusion transformer."""
    mixer_heads: int = 32
    """of their attention; they divide `width`."""
    mixer_hidden: int = 8192
    """of their feed-forward blocks."""
    prefix_norm: bool = True
    """normalise the prefix first."""
    alternate: bool = True
    """attend to words and to pictures in turn, not to both."""
    text_every: int = 2
    """of the layers that attend to the prefix, each `text_every`-th from the first attends to words."""
    robots: int = 32
    """that the encoders and the decoder have weights for."""
    robot: int = 10
    """number of this robot's weights."""
    embodiment: Text = ""
    """tag of the robot in the checkpoint; it must be given where the checkpoint has several."""
    positions: int = 1024
    """learned places of actions; 0 for none."""
    time_buckets: int = 1000
    """values that the flow time is rounded down to."""
    horizon: int = 40
    """H, actions predicted at once."""
    trained: int = 40
    """the first actions of a chunk that the robot's data had; no more can be executed."""
    action_dim: int = 132
    """D of the network; a robot's shorter actions are padded with zeros."""
    state_dim: int = 132
    """S of the network; a robot's shorter states are padded with zeros."""
    state_sizes: tuple[int, ...] = ()
    """entries of each group of the state, in order."""
    state_forms: tuple[Literal["clipped", "plain", "sin_cos"], ...] = ()
    """what each group becomes: normalised values within [-1, 1], normalised values, or sines and cosines of values."""
    token_length: int = 96
    """L, tokens of a prompt at most, without those of pictures."""
    picture_start: int = 4
    """tokens of the chat template before the first picture; 0 puts pictures first, without a template."""
    formal: bool = True
    """read instructions in lower case and without punctuation."""
    resize: Literal["area", "bilinear", "bicubic"] = "area"
    """how pictures are resized: as albumentations, Isaac-GR00T's torchvision path, or lerobot's does."""
    letter_box: bool = False
    """pad pictures to squares first."""
    keep_aspect: bool = True
    """area: resize to the shorter side alone."""
    target_height: int = 256
    """pixels that pictures are resized to."""
    target_width: int = 256
    """pixels that pictures are resized to."""
    shortest_edge: int | None = None
    """pixels of the shorter side instead of these; null for none."""
    cut_fraction: float = 230 / 256
    """of a side that the central cut keeps; bilinear has `cut_height` and `cut_width` instead."""
    cut_height: int = 230
    """pixels of the central cut."""
    cut_width: int = 230
    """pixels of the central cut."""
    least_pixels: int = 65_536
    """of a picture, below which Qwen3-VL's processor enlarges it."""
    most_pixels: int = 16_777_216
    """of a picture, above which Qwen3-VL's processor shrinks it."""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass instead of storing them."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        least = {"robot": 0, "mixer_layers": 0, "positions": 0, "picture_start": 0}
        for name, value in vars(self).items():
            if type(value) is int and value < least.get(name, 1):
                message = f"policy.{name}={value} must be at least {least.get(name, 1)}."
                raise UserError(message, code="value-out-of-range")
        for name in ("layers", "vision_layers", "expert_layers", "mixer_layers"):
            if (count := getattr(self, name)) > MAX_LAYERS:
                raise UserError(f"policy.{name}={count} must be at most {MAX_LAYERS}.", code="value-out-of-range")
        _check_multiples(self)
        _check_choices(self)


def _check_multiples(config: Gr00tConfig) -> None:
    pairs = [
        ("heads", "key_value_heads"), ("expert_width", "expert_heads"), ("width", "mixer_heads"),
        ("vision_width", "vision_heads"),
    ]  # fmt: skip
    for whole, part in pairs:
        if getattr(config, whole) % getattr(config, part):
            raise UserError(
                f"policy.{whole}={getattr(config, whole)} must be a multiple of policy.{part}={getattr(config, part)}.",
                code="policy-sizes-invalid",
            )
    if config.head_dim % 2 or (config.vision_width // config.vision_heads) % 4 or config.expert_width % 2:
        raise UserError(
            "policy.head_dim and policy.expert_width must be even, and policy.vision_width / policy.vision_heads a "
            "multiple of 4: positions and times are pairs of sines and cosines.",
            code="policy-sizes-invalid",
        )
    if round(config.vision_positions**0.5) ** 2 != config.vision_positions:
        message = f"policy.vision_positions={config.vision_positions} must be a square number."
        raise UserError(message, code="policy-sizes-invalid")


def _check_choices(config: Gr00tConfig) -> None:
    if len(config.rotary_sections) != 3:
        raise UserError("policy.rotary_sections must have 3 entries.", code="policy-sizes-invalid")
    if max(config.deepstack, default=0) >= config.vision_layers or len(config.deepstack) >= config.layers:
        raise UserError(
            f"policy.deepstack={list(config.deepstack)} must name layers of the vision tower, fewer than "
            f"policy.layers={config.layers}.",
            code="policy-sizes-invalid",
        )
    if config.robot >= config.robots:
        message = f"policy.robot={config.robot} must be below policy.robots={config.robots}."
        raise UserError(message, code="value-out-of-range")
    if 0 < config.positions < config.horizon or config.trained > config.horizon:
        raise UserError(
            f"policy.horizon={config.horizon} must be at most policy.positions={config.positions}, and at least "
            f"policy.trained={config.trained}.",
            code="policy-sizes-invalid",
        )
    factors = [2 if form == "sin_cos" else 1 for form in config.state_forms]
    if len(factors) != len(config.state_sizes):
        raise UserError(
            "policy.state_sizes and policy.state_forms must have equal length.", code="policy-sizes-invalid"
        )
    if sum(map(int.__mul__, config.state_sizes, factors)) > config.state_dim:
        message = f"policy.state_sizes has more entries than policy.state_dim={config.state_dim}."
        raise UserError(message, code="policy-sizes-invalid")


def encode_state(state: Tensor, config: Gr00tConfig) -> Tensor:
    """Convert a normalised state float32 [n, S] as its groups' forms say; the rest is padded with zeros."""
    if not config.state_sizes:
        return state
    parts: list[Tensor] = []
    groups = state[:, : sum(config.state_sizes)].split(config.state_sizes, dim=1)
    for form, group in zip(config.state_forms, groups, strict=True):
        encoded = {
            "clipped": lambda group: group.clamp(-1, 1),
            "plain": lambda group: group,
            "sin_cos": lambda group: torch.cat([group.sin(), group.cos()], dim=1),
        }[form]
        parts.append(encoded(group))
    joined = torch.cat(parts, dim=1)
    return F.pad(joined, (0, config.state_dim - joined.shape[1]))


def choose_tokens(layer: int, config: Gr00tConfig) -> str:
    """Return which prefix tokens a layer of the diffusion transformer attends to; empty if to none."""
    if layer % 2:
        return ""
    if not config.alternate:
        return "both"
    return "words" if layer % (2 * config.text_every) == 0 else "pictures"


def list_adapted(config: Gr00tConfig) -> list[str]:
    """Return the names of the attention and feed-forward maps of language model and diffusion transformer."""
    parts = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    inner = [*(f"attn1.to_{name}" for name in "qkv"), "attn1.to_out.0", "ff.net.0.proj", "ff.net.2"]
    language = [f"language_model.layers.{index}.{part}" for index in range(config.layers) for part in parts]
    blocks = "action_head.model.transformer_blocks"
    return [*language, *(f"{blocks}.{index}.{part}" for index in range(config.expert_layers) for part in inner)]


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `Gr00tConfig` that a checkpoint determines.

    Args:
        shapes: shapes of the checkpoint's tensors, by our names.
        config: content of config.json, and under "gr00t" the keys that the processor's files determine.
        given: keys that the user gave.

    Raises:
        UserError: tensors that determine sizes are missing, or neither checkpoint nor user gives another size.
    """
    try:
        found = _read_language(shapes) | _read_vision(shapes) | _read_head(shapes)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"The checkpoint is not a GR00T N1.7: {error.args[0]} is missing, or has another shape.",
            code="checkpoint-unsupported",
        ) from None
    transformer, mixer = config.get("diffusion_model_cfg") or {}, config.get("vl_self_attention_cfg") or {}
    guesses: dict[str, Any] = {
        "expert_heads": transformer.get("num_attention_heads", HEADS.get(found["expert_width"])),
        "mixer_heads": mixer.get("num_attention_heads", HEADS.get(found["width"])) if found["mixer_layers"] else 1,
        "vision_heads": VISION_HEADS.get(found["vision_width"]),
        "deepstack": DEEPSTACK.get(found["vision_layers"]),
        "rotary_sections": Gr00tConfig.rotary_sections if found["head_dim"] == Gr00tConfig.head_dim else None,
    }
    for key, guess in guesses.items():
        if key in given:
            continue
        if guess is None:
            raise UserError(
                f"The checkpoint does not say policy.{key}, and its sizes are not those of a published one: give it.",
                code="checkpoint-incomplete",
            )
        found[key] = list(guess) if isinstance(guess, tuple) else guess
    prepared = config.get("gr00t", {})
    if "robot" not in {**prepared, **given}:
        if prepared.get("embodiment"):
            raise UserError(
                f"The checkpoint does not say which weights are those of {prepared['embodiment']}: its "
                "embodiment_id.json has no number for it. Give policy.robot=<number>.",
                code="checkpoint-incomplete",
            )
        found["robot"] = 0
    if config.get("select_layer", found["layers"]) != found["layers"]:
        raise UserError(
            f"The checkpoint has {found['layers']} layers of its language model, and select_layer="
            f"{config['select_layer']}; not supported.",
            code="checkpoint-unsupported",
        )
    found |= {ours: config[theirs] for ours, theirs in TOLD.items() if theirs in config}
    found |= {"alternate": config["use_alternate_vl_dit"]} if "use_alternate_vl_dit" in config else {}
    return found | prepared


def _read_language(shapes: Shapes) -> dict[str, Any]:
    start = "language_model."
    vocabulary, width = shapes[f"{start}embed_tokens.weight"]
    (head_dim,) = shapes[f"{start}layers.0.self_attn.q_norm.weight"]
    return {
        "vocabulary": vocabulary,
        "width": width,
        "layers": count_layers(shapes, f"{start}layers."),
        "hidden": shapes[f"{start}layers.0.mlp.up_proj.weight"][0],
        "head_dim": head_dim,
        "heads": shapes[f"{start}layers.0.self_attn.q_proj.weight"][0] // head_dim,
        "key_value_heads": shapes[f"{start}layers.0.self_attn.k_proj.weight"][0] // head_dim,
    }


def _read_vision(shapes: Shapes) -> dict[str, Any]:
    width, _, _, patch, _ = shapes["visual.patch_embed.proj.weight"]
    return {
        "vision_width": width,
        "vision_layers": count_layers(shapes, "visual.blocks."),
        "vision_hidden": shapes["visual.blocks.0.mlp.linear_fc1.weight"][0],
        "vision_positions": shapes["visual.pos_embed.weight"][0],
        "patch": patch,
        "merge": round((shapes["visual.merger.linear_fc1.weight"][1] / width) ** 0.5),
    }


def _read_head(shapes: Shapes) -> dict[str, Any]:
    start = "action_head."
    blocks, mixer = f"{start}model.transformer_blocks.", f"{start}vl_self_attention.transformer_blocks."
    robots, action_dim, width = shapes[f"{start}action_encoder.W1.W"]
    found = {
        "robots": robots,
        "action_dim": action_dim,
        "state_dim": shapes[f"{start}state_encoder.layer1.W"][1],
        "feature_width": shapes[f"{start}action_decoder.layer1.W"][1],
        "expert_width": width,
        "expert_layers": count_layers(shapes, blocks),
        "expert_hidden": shapes[f"{blocks}0.ff.net.0.proj.weight"][0],
        "mixer_layers": count_layers(shapes, mixer),
        "prefix_norm": f"{start}vlln.weight" in shapes,
        "positions": shapes.get(f"{start}position_embedding.weight", (0,))[0],
    }
    return found | ({"mixer_hidden": shapes[f"{mixer}0.ff.net.0.proj.weight"][0]} if found["mixer_layers"] else {})
