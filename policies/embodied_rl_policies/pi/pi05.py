"""π0.5 (arXiv:2504.16054): the state is written into the prompt, and time reaches the expert through its norms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context
from embodied_rl_policies.pi.config import Pi05Config
from embodied_rl_policies.pi.network import Angles, Pi, attend_expert, clean_text
from embodied_rl_policies.vlm import recompute_activations

BINS = 256


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


class Pi05(Pi):
    """π0.5 as in openpi and lerobot."""

    Config = Pi05Config
    STATISTICS = "quantiles"
    LEROBOT_PROMPT = "pi05_prepare_state_tokenizer_processor_step"
    PROMPT_WORDS = ("task", "state", "action", *map(str, range(-1, BINS)))

    def __init__(self, config: Pi05Config, *args: Any, **kwargs: Any) -> None:
        """Build the network; see `Pi.__init__`."""
        super().__init__(config, *args, **kwargs)
        width = config.expert_width
        for layer in self.expert.layers:
            layer.input_layernorm, layer.post_attention_layernorm = AdaptiveNorm(width), AdaptiveNorm(width)
        self.expert.norm = AdaptiveNorm(width)
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return prompts in openpi's format; see `write_prompts`."""
        return [f"{prompt}Action: " for prompt in write_prompts(instructions, state)]

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, E]."""
        dtype, present = self.action_in_proj.weight.dtype, context.tensors["mask"]
        embedding = self.time_embedding(t.reshape(len(t), -1)).to(dtype)
        condition = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(embedding))))
        tokens = self.action_in_proj(x.to(dtype))
        mask, angles = self.expert_masks(present, tokens.shape[1], first_alone=False)
        for index, layer in enumerate(self.expert.layers):
            kept, less = context.tensors["key_value"][:, index], self.config.gradient_checkpointing
            tokens = recompute_activations(_layer, less, layer, tokens, condition, kept, mask, angles)
        features, _ = self.expert.norm(tokens, condition)
        features = features.to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(features).float(), features.float()


def write_prompts(instructions: Sequence[str], state: Tensor) -> list[str]:
    """Return each instruction, and each entry of its normalised state [n, S] as its bin, on a line.

    [-1, 1) is divided into 256 equal bins; smaller values become -1, larger values fall into the last bin.
    """
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    bins = np.digitize(state.detach().cpu().numpy(), edges) - 1
    pairs = zip(instructions, bins, strict=True)
    return [f"Task: {clean_text(text)}, State: {' '.join(map(str, row))};\n" for text, row in pairs]


def _layer(layer: Any, tokens: Tensor, condition: Tensor, kept: Tensor, mask: Tensor, angles: Angles) -> Tensor:
    normed, gate = layer.input_layernorm(tokens, condition)
    tokens = tokens + gate * attend_expert(layer, normed, kept, mask, angles)
    normed, gate = layer.post_attention_layernorm(tokens, condition)
    return tokens + gate * layer.mlp(normed)
