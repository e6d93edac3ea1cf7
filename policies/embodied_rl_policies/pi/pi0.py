"""π0 (arXiv:2410.24164): the state is a token of the action expert, and time is mixed into every action token."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl_policies.pi.config import PiConfig
from embodied_rl_policies.pi.network import Angles, Pi, attend_expert, clean_text
from embodied_rl_policies.vlm import end_line, recompute_activations


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
        if self.config.prompt == "lerobot":
            return end_line(instructions)
        return [f"{clean_text(text)}\n" for text in instructions]

    def expert_inputs(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Return the normalised state [n, S]."""
        return {"state": inputs.state}

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, E]."""
        dtype, present = self.action_in_proj.weight.dtype, context.tensors["mask"]
        actions = self.action_in_proj(x.to(dtype))
        time = self.time_embedding(t.reshape(len(t), -1)).to(dtype).expand_as(actions)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(torch.cat([actions, time], dim=-1))))
        tokens = torch.cat([self.state_proj(context.tensors["state"].to(dtype))[:, None], mixed], dim=1)
        mask, angles = self.expert_masks(present, tokens.shape[1], first_alone=True)
        for index, layer in enumerate(self.expert.layers):
            kept = context.tensors["key_value"][:, index]
            tokens = recompute_activations(
                _layer, self.config.gradient_checkpointing, layer, tokens, kept, mask, angles
            )
        features = self.expert.norm(tokens[:, 1:]).to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(features).float(), features.float()


def _layer(layer: Any, tokens: Tensor, kept: Tensor, mask: Tensor, angles: Angles) -> Tensor:
    tokens = tokens + attend_expert(layer, layer.input_layernorm(tokens), kept, mask, angles)
    return tokens + layer.mlp(layer.post_attention_layernorm(tokens))
