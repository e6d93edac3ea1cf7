"""The language model and the action expert of SmolVLA: modules under lerobot's names, and one pass through each.

Shapes: `n` rows, `T` prefix tokens, `H` actions, `W` width, `G` key-value heads, `d` head dimension.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl_policies.smolvla.attention import (
    advance,
    attend,
    grouped,
    join_heads,
    own_key_value,
    rotary,
    split_heads,
)
from embodied_rl_policies.smolvla.config import SmolVLAConfig
from embodied_rl_policies.smolvla.native import decoder_layer, rms_norm

Memory = list[tuple[Tensor, Tensor]]
"""Of each layer, keys (turned by their positions) and values [n, G, T, d]."""


class LanguageModel(nn.Module):
    """The first layers of SmolVLM2's Llama. Of the last one only keys and values are read, so it has nothing else."""

    layers: Any

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.heads // config.key_value_heads
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(_layer(config, config.width, config.hidden) for _ in range(config.layers))
        last = self.layers[-1]
        del last.mlp, last.post_attention_layernorm
        del last.self_attn.q_proj, last.self_attn.o_proj

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Memory]:
        """Tokens [n, T, W] that see one another where mask bool [n, T] is set.

        Returns:
            What enters the last layer [n, T, W], and every layer's keys and values.
        """
        angles = rotary(mask.cumsum(dim=1) - 1, self.head_dim)
        seen = grouped(mask[:, None], self.groups)
        memory: Memory = []
        for layer in self.layers:
            normed = layer.input_layernorm(hidden)
            memory.append(own_key_value(layer, normed, angles))
            if layer is not self.layers[-1]:
                hidden = advance(layer, hidden, attend(layer, normed, *memory[-1], seen, angles))
        return hidden, memory

    def append(self, hidden: Tensor, mask: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """One more token [n, 1, W], which sees the others and which none of them sees.

        Args:
            hidden: the token.
            mask: bool [n, T], which of the others exist.
            memory: their keys and values.

        Returns:
            What enters the last layer [n, 1, W], and the memory of T + 1 tokens.
        """
        angles = rotary(mask.sum(dim=1, keepdim=True), self.head_dim)
        seen = grouped(F.pad(mask, (0, 1), value=True)[:, None], self.groups)
        extended: Memory = []
        for layer, kept in zip(self.layers, memory, strict=True):
            normed = layer.input_layernorm(hidden)
            own = own_key_value(layer, normed, angles)
            key, value = (torch.cat([old, new], dim=2) for old, new in zip(kept, own, strict=True))
            extended.append((key, value))
            if layer is not self.layers[-1]:
                hidden = advance(layer, hidden, attend(layer, normed, key, value, seen, angles))
        return hidden, extended


class Expert(nn.Module):
    """The action expert. Its cross-attention layers project the language model's keys and values to their own."""

    layers: Any

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.heads // config.key_value_heads
        self.joint = [config.attends_to_actions(index) for index in range(config.layers)]
        self.layers = nn.ModuleList(
            _layer(config, config.expert_width, config.expert_hidden) for _ in range(config.layers)
        )
        size = config.key_value_heads * config.head_dim
        for layer, joint in zip(self.layers, self.joint, strict=True):
            if not joint:
                layer.self_attn.k_proj = nn.Linear(size, size, bias=False)
                layer.self_attn.v_proj = nn.Linear(size, size, bias=False)
        self.norm = rms_norm(config.expert_width)

    def project(self, memory: Memory) -> Memory:
        """The language model's keys and values → what each layer of the expert attends to. No flow time enters it."""
        return [
            kept if joint else self._projected(layer, *kept)
            for layer, joint, kept in zip(self.layers, self.joint, memory, strict=True)
        ]

    def _projected(self, layer: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        attention = layer.self_attn
        key, value = attention.k_proj(join_heads(key)), attention.v_proj(join_heads(value))
        return split_heads(key, self.head_dim), split_heads(value, self.head_dim)

    def forward(self, hidden: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        """Action tokens [n, H, W'] over a projected memory of T tokens, mask bool [n, T] → features [n, H, W']."""
        steps = torch.arange(hidden.shape[1], device=hidden.device)[None]
        joint_angles = rotary(mask.sum(dim=1, keepdim=True) + steps, self.head_dim)
        cross_angles = rotary(steps, self.head_dim)
        joint_mask = grouped(_causal(mask, hidden.shape[1]), self.groups)
        cross_mask = grouped(mask[:, None], self.groups)
        for layer, joint, (key, value) in zip(self.layers, self.joint, memory, strict=True):
            normed = layer.input_layernorm(hidden)
            if joint:
                own = own_key_value(layer, normed, joint_angles)
                key, value = torch.cat([key, own[0]], dim=2), torch.cat([value, own[1]], dim=2)
                mixed = attend(layer, normed, key, value, joint_mask, joint_angles)
            else:
                mixed = attend(layer, normed, key, value, cross_mask, cross_angles)
            hidden = advance(layer, hidden, mixed)
        return self.norm(hidden)


def _layer(config: SmolVLAConfig, width: int, hidden: int) -> Any:
    return decoder_layer(
        width=width,
        hidden=hidden,
        heads=config.heads,
        key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
    )


def _causal(mask: Tensor, actions: int) -> Tensor:
    """Each action sees the prefix tokens of mask [n, T], the actions before it and itself: bool [n, H, T + H]."""
    order = torch.ones(actions, actions, dtype=torch.bool, device=mask.device).tril()
    rows = len(mask)
    return torch.cat([mask[:, None].expand(rows, actions, -1), order.expand(rows, actions, actions)], dim=-1)


def time_embedding(t: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Flow times [n] → float64 [n, width]: sines and cosines of periods from `min_period` to `max_period`.

    In double precision, since the fastest of them turns 250 times between t = 0 and 1.
    """
    fraction = torch.linspace(0, 1, width // 2, dtype=torch.float64, device=t.device)
    period = min_period * (max_period / min_period) ** fraction
    angle = t.double()[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
