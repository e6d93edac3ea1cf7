"""What π0, π0.5 and SmolVLA share: checks of sizes, reading of sizes, images, and the embedding of the flow time."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from embodied_rl.interfaces.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]

MAX_LAYERS = 1000
"""An upper limit far above any real network; building this many modules takes minutes."""


def check_towers(config: Any, may_be_zero: Collection[str] = ()) -> None:
    """Check the sizes of a vision tower and a language model.

    Raises:
        UserError: a size is invalid; the message names the key to change.
    """
    for entry in fields(config):
        value, least = getattr(config, entry.name), 0 if entry.name in may_be_zero else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise UserError(f"policy.{entry.name}={value} must be at least {least}.", code="value-out-of-range")
    for name in ("layers", "vision_layers"):
        if (layers := getattr(config, name)) > MAX_LAYERS:
            raise UserError(f"policy.{name}={layers} must be at most {MAX_LAYERS}.", code="value-out-of-range")
    if config.head_dim % 2:
        raise UserError(
            f"policy.head_dim={config.head_dim} must be even: rotary positions rotate pairs of entries.",
            code="policy-sizes-invalid",
        )
    if config.vision_width % config.vision_heads:
        raise UserError(
            f"policy.vision_width={config.vision_width} must be a multiple of "
            f"policy.vision_heads={config.vision_heads}.",
            code="policy-sizes-invalid",
        )


def check_robot(
    who: str, config: Any, needed: Mapping[str, int], cameras: Sequence[str], auxiliary_names: Sequence[str]
) -> None:
    """Check that a robot, its tokenizer and its simulator fit a network without a head that predicts positions.

    Args:
        who: name of the policy, for messages.
        config: its sizes.
        needed: key of `config` → how much of it robot and tokenizer need; None in `config` takes any.
        cameras, auxiliary_names: those that the network is to have.

    Raises:
        UserError: they do not fit; the message names the key.
    """
    for name, value in needed.items():
        limit = getattr(config, name)
        if limit is not None and value > limit:
            message = f"policy.{name}={limit} is less than the {value} that are needed."
            raise UserError(message, code="policy-does-not-fit")
    if not cameras:
        raise UserError(f"{who} needs a camera; give it one in the simulator's cameras.", code="camera-missing")
    if auxiliary_names:
        message = f"algo.auxiliary_names: {who} has no head that predicts positions; give [], in sft algo=sft_vla."
        raise UserError(message, code="auxiliary-head-missing")


def check_sizes(config: Any, may_be_zero: Collection[str] = ()) -> None:
    """Check the sizes of a flow network's configuration.

    Raises:
        UserError: a size is invalid; the message names the key to change.
    """
    check_towers(config, may_be_zero)
    if config.expert_width % 2:
        raise UserError(
            f"policy.expert_width={config.expert_width} must be even (time embedding).", code="policy-sizes-invalid"
        )
    if not 0 < config.min_period < config.max_period:
        raise UserError(
            f"policy.min_period={config.min_period} must lie between 0 and policy.max_period.",
            code="value-out-of-range",
        )


def read_shapes(shapes: Shapes, language: str, vision: str) -> dict[str, int]:
    """Return the sizes of a flow network that tensor shapes determine; see `read_towers`."""
    found, (width, entries) = read_towers(shapes, language, vision), shapes["action_in_proj.weight"]
    expert = {"expert_width": width, "expert_hidden": shapes["expert.layers.0.mlp.up_proj.weight"][0]}
    return found | expert | {"action_dim": entries}


def read_towers(shapes: Shapes, language: str, vision: str) -> dict[str, int]:
    """Return the sizes of vision tower and language model that tensor shapes determine, by the configurations' keys.

    Args:
        shapes: of the checkpoint's tensors, by our names.
        language, vision: start of the names of the language model and of the vision tower.

    Raises:
        KeyError: a tensor is missing.
    """
    words = shapes[f"{language}embed_tokens.weight"]
    width, _, patch, _ = shapes[f"{vision}embeddings.patch_embedding.weight"]
    return {
        "vocabulary": words[0],
        "width": words[1],
        "layers": count_layers(shapes, f"{language}layers."),
        "hidden": shapes[f"{language}layers.0.mlp.up_proj.weight"][0],
        "vision_width": width,
        "vision_layers": count_layers(shapes, f"{vision}encoder.layers."),
        "vision_hidden": shapes[f"{vision}encoder.layers.0.mlp.fc1.weight"][0],
        "patch": patch,
        "resolution": patch * round(shapes[f"{vision}embeddings.position_embedding.weight"][0] ** 0.5),
    }


def count_layers(shapes: Shapes, start: str) -> int:
    """Return the number of layers of tensors named `start`, a number, and more."""
    return 1 + max((int(name[len(start) :].split(".")[0]) for name in shapes if name.startswith(start)), default=-1)


def check_resolution(config: Mapping[str, Any], resolution: int, *keys: str) -> None:
    """Check that these keys of a checkpoint's configuration name the squares that its vision tower takes.

    Raises:
        UserError: one of them is another size.
    """
    for key in keys:
        if config.get(key, [resolution] * 2) != [resolution] * 2:  # null: images are not resized
            raise UserError(
                f"The checkpoint's {key} is {config[key]}, while its vision tower takes squares of {resolution} "
                "pixels; not supported.",
                code="checkpoint-unsupported",
            )


def list_end_of_language_model(start: str, config: Any) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors after the last layer's keys and values, which only text output needs."""
    last, width, hidden = f"{start}layers.{config.layers - 1}.", config.width, config.hidden
    inner = config.heads * config.head_dim
    return {
        f"{start}norm.weight": (width,),
        f"{last}post_attention_layernorm.weight": (width,),
        f"{last}self_attn.q_proj.weight": (inner, width),
        f"{last}self_attn.o_proj.weight": (width, inner),
        f"{last}mlp.gate_proj.weight": (hidden, width),
        f"{last}mlp.up_proj.weight": (hidden, width),
        f"{last}mlp.down_proj.weight": (width, hidden),
    }


def list_adapted(language: str, layers: int) -> list[str]:
    """Return the names of the used attention and feed-forward maps of language model and expert."""
    parts = [f"self_attn.{name}_proj" for name in "kvqo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    used = [f"{language}layers.{index}.{part}" for index in range(layers - 1) for part in parts]
    read = [f"{language}layers.{layers - 1}.{part}" for part in parts[:2]]
    return [*used, *read, *(f"expert.layers.{index}.{part}" for index in range(layers) for part in parts)]


def end_line(instructions: Sequence[str]) -> list[str]:
    """Write prompts as lerobot does: the instructions, with a line feed unless they end with one."""
    return [text if text.endswith("\n") else f"{text}\n" for text in instructions]


def prepare_images(images: Tensor, size: int, *, centred: bool) -> Tensor:
    """Convert images: uint8 [n, h, w, 3] → float32 [n, 3, size, size] in [-1, 1]; pad to a square with black.

    The longer side becomes `size` by bilinear interpolation without anti-aliasing, as in lerobot; openpi's data loader
    uses Pillow, which applies anti-aliasing when it shrinks an image. The picture lies in the centre (lerobot's π0) or
    in the lower right corner (lerobot's SmolVLA).
    """
    pixels = images.permute(0, 3, 1, 2).float() / 255
    height, width = pixels.shape[-2:]
    if (height, width) != (size, size):
        ratio = max(height, width) / size
        new = int(height / ratio), int(width / ratio)
        resized = F.interpolate(pixels, size=new, mode="bilinear", align_corners=False)
        top, left = ((size - new[0]) // 2, (size - new[1]) // 2) if centred else (size - new[0], size - new[1])
        pixels = F.pad(resized, (left, size - new[1] - left, top, size - new[0] - top))
    return pixels * 2 - 1


def embed_time(t: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Embed flow times [...]: sines, then cosines, of periods from `min_period` to `max_period`, float64 [..., width].

    Computed in double precision, because the highest frequency has 250 periods between t = 0 and 1.
    """
    fraction = torch.linspace(0, 1, width // 2, dtype=torch.float64, device=t.device)
    period = min_period * (max_period / min_period) ** fraction
    angle = t.double()[..., None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def recompute_activations(function: Callable[..., Any], enabled: bool, *args: Any) -> Any:
    """Call a function; if `enabled` and gradients are computed, recompute its activations in the backward pass."""
    if enabled and torch.is_grad_enabled():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return function(*args)
