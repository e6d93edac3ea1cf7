"""π0.5 (arXiv:2504.16054): the state is written into the prompt, and time reaches the expert through its norms."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.policy import Context
from embodied_rl_policies.gradient_checkpointing import recompute_activations
from embodied_rl_policies.pi.attention import AdaptiveNorm
from embodied_rl_policies.pi.config import Pi05Config
from embodied_rl_policies.pi.network import Pi, attend_expert, make_expert_angles, make_expert_mask
from embodied_rl_policies.pi.prompts import BINS, format_with_state


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
        """Return prompts with the instructions and the normalised state [n, S] in 256 bins."""
        return format_with_state(instructions, state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, E]."""
        dtype, present = self.action_in_proj.weight.dtype, context.tensors["mask"]
        embedding = self.time_embedding(t.reshape(len(t), -1)).to(dtype)
        condition = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(embedding))))
        tokens = self.action_in_proj(x.to(dtype))
        count = tokens.shape[1]
        mask = make_expert_mask(present, count, first_alone=False)
        angles = make_expert_angles(present, count, self.config.head_dim)
        for index, layer in enumerate(self.expert.layers):
            kept, less = context.tensors["key_value"][:, index], self.config.gradient_checkpointing
            tokens = recompute_activations(_layer, less, layer, tokens, condition, kept, mask, angles)
        features, _ = self.expert.norm(tokens, condition)
        features = features.to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(features).float(), features.float()


def _layer(
    layer: Any, tokens: Tensor, condition: Tensor, kept: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]
) -> Tensor:
    normed, gate = layer.input_layernorm(tokens, condition)
    tokens = tokens + gate * attend_expert(layer, normed, kept, mask, angles)
    normed, gate = layer.post_attention_layernorm(tokens, condition)
    return tokens + gate * layer.mlp(normed)
