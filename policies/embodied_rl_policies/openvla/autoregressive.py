"""OpenVLA (arXiv:2406.09246): the D entries of one action are chosen one after another, as words are.

Prompt and observation are computed once, and keep their keys and values. The entries given so far follow them, and see
what lies before; one pass over all D entries therefore scores a whole action.

Shapes: as in `network`; `k` entries given so far, `G` key-value heads, `d` head dimension.
"""

from typing import Any

import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl_policies.llama import (
    Angles,
    attend,
    finish_layer,
    group_mask,
    make_rotary_angles,
    project_key_value,
    run_layer,
)
from embodied_rl_policies.openvla.config import OpenVLAConfig
from embodied_rl_policies.openvla.network import BinnedOpenVLA
from embodied_rl_policies.vlm import recompute_activations


class OpenVLA(BinnedOpenVLA):
    """OpenVLA, which chooses the entries of an action in order."""

    Config = OpenVLAConfig
    AUTOREGRESSIVE = True

    def encode(self, inputs: PolicyInput) -> Context:
        """Run the language model over observation and prompt; tokens see those before them.

        Returns:
            "mask" bool [n, T - 1]; "key_value/i" [n, 2, G, T - 1, d] of layer i; pooled is the state of the prompt's
            last token, which sees all.
        """
        config, model = self.config, self.language_model.model
        hidden, mask = self.embed_prompt(inputs)
        length = hidden.shape[1]
        angles = make_rotary_angles((mask.cumsum(dim=1) - 1).clamp_min(0), config.head_dim)
        order = mask.new_ones(length, length).tril()
        visible = (mask[:, None] & order) | torch.eye(length, dtype=torch.bool, device=mask.device)
        seen, memory = group_mask(visible, config.heads // config.key_value_heads), {}
        for index, layer in enumerate(model.layers):
            less = config.gradient_checkpointing
            hidden, memory[f"key_value/{index}"] = recompute_activations(run_layer, less, layer, hidden, seen, angles)
        numbers = torch.arange(length, device=mask.device)
        last = torch.where(mask, numbers, 0).amax(dim=1)
        pooled = model.norm(hidden[torch.arange(len(mask), device=mask.device), last])
        return Context({"mask": mask, **memory}, pooled.float())

    def action_logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the logits [n, 1, D, N] of an action's entries, each given those before it in bins int64 [n, 1, D].

        The features [n, 1, W] are the state before the first entry, which depends on no bin.
        """
        if bins is None:
            bins = torch.zeros(len(context), 1, self.spec.action_dim, dtype=torch.int64, device=context.pooled.device)
        hidden = self._follow(context, bins.flatten(1)[:, :-1])
        return self.bin_logits(hidden)[:, None], hidden[:, :1]

    def next_logits(self, context: Context, bins: Tensor) -> Tensor:
        """Compute the logits [n, N] of the entry that follows bins int64 [n, k]."""
        return self.bin_logits(self._follow(context, bins)[:, -1])

    def _follow(self, context: Context, bins: Tensor) -> Tensor:
        """Return the states [n, k + 1, W] of the empty token and of bins int64 [n, k], which follow the prompt."""
        config, model, mask = self.config, self.language_model.model, context.tensors["mask"]
        groups, steps = config.heads // config.key_value_heads, bins.shape[1] + 1
        start = self.embed_token(config.empty_token, len(bins))
        hidden = torch.cat([start, model.embed_tokens(bins + config.first_action_token)], dim=1)
        positions = mask.sum(dim=1, keepdim=True) + torch.arange(steps, device=mask.device)
        angles = make_rotary_angles(positions, config.head_dim)
        order = mask.new_ones(steps, steps).tril().expand(len(bins), -1, -1)
        seen = group_mask(torch.cat([mask[:, None].expand(-1, steps, -1), order], dim=-1), groups)
        for index, layer in enumerate(model.layers):
            kept, less = context.tensors[f"key_value/{index}"], config.gradient_checkpointing
            hidden = recompute_activations(_follow_layer, less, layer, hidden, kept, seen, angles)
        return model.norm(hidden)


def _follow_layer(layer: Any, hidden: Tensor, kept: Tensor, seen: Tensor, angles: Angles) -> Tensor:
    normed = layer.input_layernorm(hidden)
    own = project_key_value(layer, normed, angles)
    memory = torch.cat([kept.to(own.dtype), own], dim=3)
    return finish_layer(layer, hidden, attend(layer, normed, memory, seen, angles))
