"""Transformer layers of the pocket policy.

Shapes: `n` rows, `t` query tokens, `s` key tokens, `T` prefix tokens, `H` actions, `W` width. The factor `hidden` is
the width of a feed-forward layer as a multiple of W.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention of tokens to given keys and values, such as their own and cached ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Attend: tokens [n, t, W], key_value [n, s, 2 W], mask bool [n, s] (True: the key is visible) → [n, t, W]."""
        query = self.query(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = key_value.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear maps with a SiLU between them; its backward pass on a CPU costs half as much as that of a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(nn.Linear(width, hidden * width), nn.SiLU(), nn.Linear(hidden * width, width))


class PrefixLayer(nn.Module):
    """A transformer layer of the prefix."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer: tokens [n, T, W], mask bool [n, T] → next layer's tokens, keys and values [n, T, 2 W]."""
        normed = self.attention_norm(tokens)
        key_value = self.attention.key_value(normed)
        tokens = tokens + self.attention(normed, key_value, mask)
        return tokens + self.feed_forward(self.forward_norm(tokens)), key_value


class LastPrefixLayer(nn.Module):
    """The last layer of the prefix; it computes only keys and values, because no later layer reads its tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.key_value = nn.Linear(width, 2 * width, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values: tokens [n, T, W] → the same tokens, their keys and values [n, T, 2 W]."""
        return tokens, self.key_value(self.norm(tokens))


class ExpertLayer(nn.Module):
    """A layer of the action expert: adaRMS, attention to the prefix and to the actions, adaRMS, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, tokens: Tensor, modulation: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Update tokens [n, H, W] by modulation [n, 6, 1 or H, W], the prefix's key_value [n, T, 2 W], mask [n, T + H].

        A modulation of size 1 applies to every token; one of size H gives each token its own flow time.
        """
        scale, shift, gate, scale_2, shift_2, gate_2 = modulation.unbind(1)
        normed = modulate(tokens, scale, shift)
        key_value = torch.cat([key_value, self.attention.key_value(normed)], dim=1)
        tokens = tokens + gate * self.attention(normed, key_value, mask)
        return tokens + gate_2 * self.feed_forward(modulate(tokens, scale_2, shift_2))


def modulate(tokens: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Apply the adaptive RMS norm: normalise tokens [n, H, W], then scale and shift them by the flow time."""
    return F.rms_norm(tokens, tokens.shape[-1:]) * (1 + scale) + shift
