"""OpenVLA-OFT (arXiv:2502.19645) with discrete actions: all entries of a chunk are decoded at once.

After the prompt's empty token stand H · D places without content and a stop token; every token sees every other. The
logits of a place are those of the token before it. Only the rows of the output layer that are bins are multiplied, so
that logits, log-probabilities and entropy are over the same N tokens.

Shapes: as in `network`; `K` = H · D places.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Context, PolicyInput
from embodied_rl_policies.llama import group_mask, make_rotary_angles, run_layer
from embodied_rl_policies.openvla.config import HORIZONS, OpenVLAOFTConfig
from embodied_rl_policies.openvla.network import OpenVLABackbone
from embodied_rl_policies.vlm import recompute_activations


class OpenVLAOFT(OpenVLABackbone):
    """OpenVLA-OFT with action tokens."""

    Config = OpenVLAOFTConfig
    config: OpenVLAOFTConfig

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes; the number of actions at once follows from a word in the name of the statistics.

        Raises:
            UserError: the name has no such word, and `policy.horizon` is not given.
        """
        found, key = super().checkpoint_sizes(shapes, config, given), str(config.get("statistics_key", ""))
        if "horizon" in given:
            return found
        known = [horizon for word, horizon in HORIZONS.items() if word in key.lower()]
        if not known:
            message = (
                f"The checkpoint, with statistics named {key!r:.60}, does not say how many actions it predicts at "
            )
            raise UserError(f"{message}once: give policy.horizon=<number>.", code="checkpoint-incomplete")
        return found | {"horizon": known[0]}

    def encode(self, inputs: PolicyInput) -> Context:
        """Run the language model over observation, prompt and places.

        Returns:
            "hidden" [n, H, D, W], the state before each place; pooled is the state of the empty token, which sees all.
        """
        config, model, spec = self.config, self.language_model.model, self.spec
        embedded, mask = self.embed_prompt(inputs)
        rows, places = len(mask), spec.horizon * spec.action_dim
        following = [self.embed_token(config.empty_token, rows), embedded.new_zeros(rows, places, config.width)]
        if config.stop_token is not None:
            following.append(self.embed_token(config.stop_token, rows))
        hidden, first = torch.cat([embedded, *following], dim=1), embedded.shape[1]
        mask = torch.cat([mask, mask.new_ones(rows, hidden.shape[1] - first)], dim=1)
        angles = make_rotary_angles((mask.cumsum(dim=1) - 1).clamp_min(0), config.head_dim)
        seen = group_mask(mask[:, None], config.heads // config.key_value_heads)
        for layer in model.layers:
            hidden, _ = recompute_activations(run_layer, config.gradient_checkpointing, layer, hidden, seen, angles)
        chosen = model.norm(hidden[:, first : first + places])
        return Context({"hidden": chosen.unflatten(1, (spec.horizon, spec.action_dim))}, chosen[:, 0].float())

    def action_logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute logits [n, H, D, N], and features [n, H, W]: the mean state before an action's places."""
        hidden = context.tensors["hidden"]
        return self.bin_logits(hidden), hidden.mean(dim=2)
