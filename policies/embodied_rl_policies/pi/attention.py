"""Attention functions of a Gemma decoder layer, with cached keys and values.

Shapes: `n` rows, `t` query tokens, `s` key tokens, `W` width, `h` heads, `d` head dimension.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROTARY_BASE = 10_000.0


def make_rotary_angles(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Compute rotary angles of positions int64 [n, t] (arXiv:2104.09864): cosine and sine float32 [n, 1, t, d]."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions[:, None, :, None].float() / ROTARY_BASE**exponent
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate x [n, h, t, d] by the angles of its positions; entry i of d pairs with entry i + d/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine.to(x.dtype) + torch.cat([-second, first], dim=-1) * sine.to(x.dtype)


def project_key_value(layer: Any, normed: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Compute rotated keys, and values, [n, 1, t, d] each, of normed tokens [n, t, W]."""
    attention = layer.self_attn
    key = rotate(_split(attention.k_proj(normed), attention.head_dim), *angles)
    return key, _split(attention.v_proj(normed), attention.head_dim)


def attend(
    layer: Any, normed: Tensor, key: Tensor, value: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]
) -> Tensor:
    """Attend from normed tokens [n, t, W] to key and value [n, 1, s, d] where mask bool [n, 1, t, s] is True."""
    attention = layer.self_attn
    query = rotate(_split(attention.q_proj(normed), attention.head_dim), *angles)
    heads = query.shape[1]
    shared = key.expand(-1, heads, -1, -1), value.expand(-1, heads, -1, -1)
    mixed = F.scaled_dot_product_attention(query, *shared, attn_mask=mask)
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))


class AdaptiveNorm(nn.Module):
    """adaRMS of π0.5: an RMS norm; scale, shift and gate are a linear map of the flow time's embedding."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.dense = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        nn.init.ones_(self.dense.bias[2 * width :])  # gates of 0 would slow down the training of new weights

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the norm: x [n, t, W], condition [n, 1 or t, W] → normed [n, t, W], gate [n, 1 or t, W]."""
        scale, shift, gate = self.dense(condition).chunk(3, dim=-1)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return (normed * (1 + scale.float()) + shift.float()).to(x.dtype), gate.to(x.dtype)


def _split(projected: Tensor, head_dim: int) -> Tensor:
    """Split the heads: [n, t, h·d] → [n, h, t, d]."""
    return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)
