"""Language model and action expert of SmolVLA: modules under lerobot's names, and their forward passes.

Shapes: `n` rows, `T` prefix tokens, `H` actions, `t` query tokens, `s` key tokens, `W` width, `E` the expert's, `N`
layers, `G` key-value heads, `g` query heads per key-value head (head i uses key-value head i // g), `d` head dimension.
A layer's memory contains its rotated keys and its values: [n, 2, G, s, d].
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl_policies.llama import (
    Angles,
    attend,
    finish_layer,
    group_mask,
    join_heads,
    make_rotary_angles,
    project_key_value,
    run_layer,
    split_heads,
)
from embodied_rl_policies.native import make_decoder_layer, make_rms_norm
from embodied_rl_policies.smolvla.config import SmolVLAConfig
from embodied_rl_policies.vlm import recompute_activations


class LanguageModel(nn.Module):
    """The first layers of SmolVLM2's Llama; the last one computes only keys and values."""

    layers: Any

    def __init__(self, config: SmolVLAConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.groups = config, config.heads // config.key_value_heads
        self.embed_tokens = nn.Embedding(vocabulary, config.width)
        self.layers = nn.ModuleList(_layer(config, config.width, config.hidden) for _ in range(config.layers))
        last = self.layers[-1]
        del last.mlp, last.post_attention_layernorm
        del last.self_attn.q_proj, last.self_attn.o_proj

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run tokens [n, T, W] through the layers; they attend to each other where mask bool [n, T] is True.

        Returns:
            The tokens at the input of the last layer [n, T, W], and every layer's memory of T tokens.
        """
        angles = make_rotary_angles(mask.cumsum(dim=1) - 1, self.config.head_dim)
        seen, memory = group_mask(mask[:, None], self.groups), []
        for layer in self.layers[:-1]:
            less = self.config.gradient_checkpointing
            hidden, kept = recompute_activations(run_layer, less, layer, hidden, seen, angles)
            memory.append(kept)
        last = self.layers[-1]
        return hidden, [*memory, project_key_value(last, last.input_layernorm(hidden), angles)]

    def append(self, hidden: Tensor, mask: Tensor, memory: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Append one token [n, 1, W], which sees the other tokens (mask bool [n, T]) but is not visible to them.

        Returns:
            The new token at the input of the last layer [n, 1, W], and the memory of T + 1 tokens, of each layer.
        """
        angles = make_rotary_angles(mask.sum(dim=1, keepdim=True), self.config.head_dim)
        seen, extended = group_mask(F.pad(mask, (0, 1), value=True)[:, None], self.groups), []
        for layer, kept in zip(self.layers, memory, strict=True):
            normed = layer.input_layernorm(hidden)
            own = project_key_value(layer, normed, angles)
            extended.append(torch.cat([kept.to(own.dtype), own], dim=3))
            if layer is not self.layers[-1]:
                hidden = finish_layer(layer, hidden, attend(layer, normed, extended[-1], seen, angles))
        return hidden, extended


class Expert(nn.Module):
    """The action expert. Its cross-attention layers project the language model's keys and values once more."""

    layers: Any

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__()
        self.config, self.groups = config, config.heads // config.key_value_heads
        self.joint = [config.attends_to_actions(index) for index in range(config.layers)]
        self.layers = nn.ModuleList(
            _layer(config, config.expert_width, config.expert_hidden) for _ in range(config.layers)
        )
        size = config.key_value_heads * config.head_dim
        for layer, joint in zip(self.layers, self.joint, strict=True):
            if not joint:
                layer.self_attn.k_proj = nn.Linear(size, size, bias=False)
                layer.self_attn.v_proj = nn.Linear(size, size, bias=False)
        self.norm = make_rms_norm(config.expert_width)

    def project(self, memory: Sequence[Tensor]) -> list[Tensor]:
        """Project the language model's memory for each expert layer; this does not depend on the flow time."""
        layers = zip(self.layers, self.joint, memory, strict=True)
        projected: list[Tensor] = []
        for layer, joint, kept in layers:
            if not joint:
                attention, (key, value) = layer.self_attn, (join_heads(part) for part in kept.unbind(1))
                both = attention.k_proj(key), attention.v_proj(value)
                kept = torch.stack([split_heads(part, self.config.head_dim) for part in both], dim=1)
            projected.append(kept)
        return projected

    def forward(self, hidden: Tensor, mask: Tensor, memory: Sequence[Tensor]) -> Tensor:
        """Run action tokens [n, H, E] over a projected memory of T tokens, mask bool [n, T] → features [n, H, E]."""
        rows, actions, head_dim = len(mask), hidden.shape[1], self.config.head_dim
        steps = torch.arange(actions, device=hidden.device)[None]
        order = torch.ones(actions, actions, dtype=torch.bool, device=mask.device).tril()
        causal = torch.cat([mask[:, None].expand(rows, actions, -1), order.expand(rows, actions, actions)], dim=-1)
        following = make_rotary_angles(mask.sum(dim=1, keepdim=True) + steps, head_dim)
        joint = _joint_layer, group_mask(causal, self.groups), following
        cross = _cross_layer, group_mask(mask[:, None], self.groups), make_rotary_angles(steps, head_dim)
        for layer, is_joint, kept in zip(self.layers, self.joint, memory, strict=True):
            function, seen, angles = joint if is_joint else cross
            hidden = recompute_activations(
                function, self.config.gradient_checkpointing, layer, hidden, kept.to(hidden.dtype), seen, angles
            )
        return self.norm(hidden)


def _layer(config: SmolVLAConfig, width: int, hidden: int) -> Any:
    return make_decoder_layer(
        width=width,
        hidden=hidden,
        heads=config.heads,
        key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
    )


def _joint_layer(layer: Any, hidden: Tensor, kept: Tensor, seen: Tensor, angles: Angles) -> Tensor:
    """Let the actions attend to the prefix, to the actions before them and to themselves."""
    normed = layer.input_layernorm(hidden)
    memory = torch.cat([kept, project_key_value(layer, normed, angles)], dim=3)
    return finish_layer(layer, hidden, attend(layer, normed, memory, seen, angles))


def _cross_layer(layer: Any, hidden: Tensor, kept: Tensor, seen: Tensor, angles: Angles) -> Tensor:
    """Let the actions attend to the prefix only; their positions count from 0."""
    return finish_layer(layer, hidden, attend(layer, layer.input_layernorm(hidden), kept, seen, angles))
