"""π0 (arXiv:2410.24164): the state is a token of the action expert, and time is mixed into every action token."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.policy import Context, PolicyInput
from embodied_rl_policies.gradient_checkpointing import recompute_activations
from embodied_rl_policies.pi.config import PiConfig
from embodied_rl_policies.pi.network import Pi, attend_expert, make_expert_angles, make_expert_mask
from embodied_rl_policies.pi.prompts import end_line, format_plain


class Pi0(Pi):
    """π0 as in openpi and lerobot."""

    Config = PiConfig
    PROMPT_WORDS = ()
    LEROBOT_PROMPT = "pi0_new_line_processor"

    def __init__(self, config: PiConfig, *args: Any, **kwargs: Any) -> None:
        """Build the network; see `Pi.__init__`."""
        super().__init__(config, *args, **kwargs)
        width = config.expert_width
        self.state_proj = nn.Linear(config.state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return the instructions as prompts, each with a line feed at its end; see `PiConfig.prompt`."""
        return end_line(instructions) if self.config.prompt == "lerobot" else format_plain(instructions)

    def expert_inputs(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Return the normalised state [n, S]."""
        return {"state": inputs.state}

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, E]."""
        tokens, present = self._tokens(x, t, context.tensors["state"]), context.tensors["mask"]
        count = tokens.shape[1]
        mask = make_expert_mask(present, count, first_alone=True)
        angles = make_expert_angles(present, count, self.config.head_dim)
        for index, layer in enumerate(self.expert.layers):
            kept = context.tensors["key_value"][:, index]
            tokens = recompute_activations(
                _layer, self.config.gradient_checkpointing, layer, tokens, kept, mask, angles
            )
        features = self.expert.norm(tokens[:, 1:]).to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(features).float(), features.float()

    def _tokens(self, x: Tensor, t: Tensor, state: Tensor) -> Tensor:
        """Compute the expert's tokens [n, 1 + H, E] of state and actions, t [n] or [n, H]."""
        dtype = self.action_in_proj.weight.dtype
        actions = self.action_in_proj(x.to(dtype))
        time = self.time_embedding(t.reshape(len(t), -1)).to(dtype).expand_as(actions)
        mixed = F.silu(self.action_time_mlp_in(torch.cat([actions, time], dim=-1)))
        return torch.cat([self.state_proj(state.to(dtype))[:, None], self.action_time_mlp_out(mixed)], dim=1)


def _layer(layer: Any, tokens: Tensor, kept: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    tokens = tokens + attend_expert(layer, layer.input_layernorm(tokens), kept, mask, angles)
    return tokens + layer.mlp(layer.post_attention_layernorm(tokens))
