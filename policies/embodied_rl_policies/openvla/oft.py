"""OpenVLA-OFT (arXiv:2502.19645): all entries of a chunk are decoded at once, as tokens or as numbers.

After the prompt's empty token stand H · D places without content and a stop token; every token sees every other. What
is read of a place is the state of the token before it. With action tokens only the rows of the output layer that are
bins are multiplied, so that logits, log-probabilities and entropy are over the same N tokens. With the L1 head, the
states of the D places of an action are joined, and a residual network makes the action of them.

Shapes: as in `network`; `K` = H · D places.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, GaussianBackbone, PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.llama import group_mask, make_rotary_angles, run_layer
from embodied_rl_policies.openvla.config import FILM, HORIZONS, TOWERS, OpenVLAOFTConfig, OpenVLAOFTL1Config
from embodied_rl_policies.openvla.film import FilmedVisionBackbone, list_film_shapes, list_plain_shapes
from embodied_rl_policies.openvla.network import BinnedOpenVLA, OpenVLABackbone
from embodied_rl_policies.vlm import recompute_activations

LOGITS_WEIGHT = "language_model.lm_head.weight"
"""The language model's output layer."""


class ParallelOpenVLA(OpenVLABackbone):
    """The part before the action head."""

    Config = OpenVLAOFTConfig
    config: OpenVLAOFTConfig

    def __init__(self, config: OpenVLAOFTConfig, *given: Any, **more: Any) -> None:
        """Build the network with fresh weights; see `OpenVLABackbone`."""
        super().__init__(config, *given, **more)
        if config.film_rank is not None:
            self.vision_backbone = FilmedVisionBackbone(self.vision_backbone, config.width, config.film_rank)

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

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what the official class stores besides; with FiLM also those of the replaced towers."""
        plain, rank = super().unread_shapes(), self.config.film_rank
        if rank is None:
            return plain
        own = {name: tuple(value.shape) for name, value in self.state_dict().items() if name.startswith(FILM)}
        unread = {FILM + name.removeprefix(TOWERS): shape for name, shape in plain.items()}
        replaced = {TOWERS + name.removeprefix(FILM): shape for name, shape in list_plain_shapes(own).items()}
        return plain | replaced | list_film_shapes(unread, self.config.width, rank)

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of vision towers and projector, and with FiLM of the token table, which they read."""
        words = [] if self.config.film_rank is None else [self.language_model.model.embed_tokens.weight]
        return [*super().perception_parameters(), *words]

    def average_words(self, tokens: Tensor) -> Tensor | None:
        """Return the mean embedding [n, W] of prompts int64 [n, L], their empty token and the stop token, for FiLM."""
        config, present = self.config, (tokens != 0)[..., None]
        if config.film_rank is None:
            return None
        added = [token for token in (config.empty_token, config.stop_token) if token is not None]
        table = self.language_model.model.embed_tokens
        total = (table(tokens) * present).float().sum(dim=1) + table.weight[added].float().sum(dim=0)
        return (total / (present.sum(dim=1) + len(added))).to(self.dtype)

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


class OpenVLAOFT(ParallelOpenVLA, BinnedOpenVLA):
    """OpenVLA-OFT with action tokens."""

    def action_logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute logits [n, H, D, N], and features [n, H, W]: the mean state before an action's places."""
        hidden = context.tensors["hidden"]
        return self.bin_logits(hidden), hidden.mean(dim=2)


class ResidualBlock(nn.Module):
    """A norm, a linear map and a rectifier, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn(x) + x


class L1Head(nn.Module):
    """The states of an action's places → the action; parameters have the official names (`MLPResNet`)."""

    def __init__(self, entries: int, hidden: int, blocks: int, actions: int) -> None:
        super().__init__()
        self.layer_norm1, self.fc1 = nn.LayerNorm(entries), nn.Linear(entries, hidden)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(blocks))
        self.layer_norm2, self.fc2 = nn.LayerNorm(hidden), nn.Linear(hidden, actions)

    def forward(self, states: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(self.layer_norm1(states)))
        for block in self.mlp_resnet_blocks:
            hidden = block(hidden)
        return self.fc2(self.layer_norm2(hidden))


class OpenVLAOFTL1(ParallelOpenVLA, GaussianBackbone):
    """OpenVLA-OFT with the head that was trained by L1 regression; the language model's output layer is not used."""

    Config = OpenVLAOFTL1Config
    LOGITS = False
    config: OpenVLAOFTL1Config
    action_head: Any

    def __init__(self, config: OpenVLAOFTL1Config, *given: Any, **more: Any) -> None:
        """Build the network with fresh weights; see `OpenVLABackbone`."""
        super().__init__(config, *given, **more)
        actions = self.spec.action_dim
        self.action_head = nn.Module()
        self.action_head.model = L1Head(actions * config.width, config.head_hidden, config.head_blocks, actions)

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes; see `ParallelOpenVLA`.

        Raises:
            UserError: the head is missing, or the number of its dimensions is not known.
        """
        start = "action_head.model."
        try:
            hidden, action_dim = shapes[f"{start}fc1.weight"][0], shapes[f"{start}fc2.weight"][0]
        except (KeyError, IndexError) as error:
            message = f"The checkpoint has no L1 head: {error.args[0]} is missing, or has another shape."
            raise UserError(message, code="checkpoint-unsupported") from None
        blocks = len({name.split(".")[3] for name in shapes if name.startswith(f"{start}mlp_resnet_blocks.")})
        found = super().checkpoint_sizes(shapes, config, given)
        return found | {"head_hidden": hidden, "head_blocks": blocks, "action_dim": action_dim}

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what the official class stores besides, with the output layer."""
        return super().unread_shapes() | {LOGITS_WEIGHT: (self.config.vocabulary, self.config.width)}

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the state's projector and of the action head."""
        return [*super().head_parameters(), *self.action_head.parameters()]

    def action_mean(self, context: Context) -> tuple[Tensor, Tensor]:
        """Compute actions [n, H, D], and features [n, H, W]: the mean state before an action's places."""
        hidden = context.tensors["hidden"]
        head = self.action_head.model
        return head(hidden.flatten(2).to(head.fc1.weight.dtype)), hidden.mean(dim=2)
