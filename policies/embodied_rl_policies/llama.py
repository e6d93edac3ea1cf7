"""The forward pass of Llama's layers: rotary positions, memories of keys and values, attention under any mask.

Shapes: `n` rows, `t` query tokens, `s` key tokens, `W` width, `G` key-value heads, `g` query heads per key-value head
(head i uses key-value head i // g), `d` head dimension. A layer's memory contains its rotated keys and its values:
[n, 2, G, s, d].
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROTARY_BASE = 10_000.0
"""The base of Llama 2, and the one that lerobot uses; SmolVLM2 was pretrained with 100 000."""

Angles = tuple[Tensor, Tensor]


def run_layer(layer: Any, hidden: Tensor, seen: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    """Apply a layer whose tokens [n, t, W] attend to each other: tokens of the next layer, memory of this one."""
    normed = layer.input_layernorm(hidden)
    memory = project_key_value(layer, normed, angles)
    return finish_layer(layer, hidden, attend(layer, normed, memory, seen, angles)), memory


def make_rotary_angles(positions: Tensor, head_dim: int) -> Angles:
    """Compute rotary angles (arXiv:2104.09864) of positions int64 [n, t]: cosine and sine float32 [n, 1, t, d / 2]."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions[:, None, :, None].float() / ROTARY_BASE**exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate x [n, heads, t, d] by the angles of its positions; entry i of d pairs with entry i + d/2."""
    cosine, sine = angles
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def split_heads(projected: Tensor, head_dim: int) -> Tensor:
    """Split the heads: [n, t, heads · d] → [n, heads, t, d]."""
    return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Join the heads: [n, heads, t, d] → [n, t, heads · d]."""
    return x.transpose(1, 2).flatten(2)


def project_key_value(layer: Any, normed: Tensor, angles: Angles) -> Tensor:
    """Compute the memory [n, 2, G, t, d] of normed tokens [n, t, W]: rotated keys, and values."""
    attention = layer.self_attn
    key = rotate(split_heads(attention.k_proj(normed), attention.head_dim), angles)
    return torch.stack([key, split_heads(attention.v_proj(normed), attention.head_dim)], dim=1)


def group_mask(mask: Tensor, groups: int) -> Tensor:
    """Expand a mask [n or 1, t or 1, s] of visible tokens to [n or 1, 1, g · t or 1, s], as `attend` takes it."""
    return (mask if mask.shape[1] == 1 else mask.repeat(1, groups, 1))[:, None]


def attend(layer: Any, normed: Tensor, memory: Tensor, mask: Tensor, angles: Angles) -> Tensor:
    """Attend from normed tokens [n, t, W] to a memory [n, 2, G, s, d]; `mask` is from `group_mask`. Returns [n, t, W].

    The query heads of one key-value head are treated as additional tokens of that head, so that keys and values are
    neither repeated in memory nor read twice.
    """
    attention, (key, value), tokens = layer.self_attn, memory.unbind(1), normed.shape[1]
    query = rotate(split_heads(attention.q_proj(normed), attention.head_dim), angles)
    query = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.o_proj(join_heads(mixed.unflatten(2, (-1, tokens)).flatten(1, 2)))


def finish_layer(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    """Apply the rest of a Llama layer: hidden tokens [n, t, W] and attention output → the next layer's tokens."""
    hidden = hidden + mixed
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))
