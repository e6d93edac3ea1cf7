"""ACT, the action chunking transformer (arXiv:2304.13705), as lerobot has it: images and state in, a chunk out.

While it is cloned, an encoder of the demonstrated chunk gives a latent variable (a variational autoencoder); it is 0
when the policy acts. Weights, names and formulas are lerobot's; there is no dropout.

Shapes: `n` rows, `t` tokens of the encoder, `H` actions, `D` action dimensions, `S` state entries, `W` width, `Z`
latent dimension.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.imitation.common import ImitationConfig, ImitationPolicy
from embodied_rl_policies.imitation.resnet import WIDTHS, FrozenBatchNorm, make_trunk

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
CONFIGURED = {
    "horizon": "chunk_size", "width": "dim_model", "heads": "n_heads", "hidden": "dim_feedforward",
    "activation": "feedforward_activation", "encoder_layers": "n_encoder_layers", "decoder_layers": "n_decoder_layers",
    "vae_layers": "n_vae_encoder_layers", "latent": "latent_dim", "variational": "use_vae", "pre_norm": "pre_norm",
    "kl_weight": "kl_weight",
}  # fmt: skip
"""Our key → lerobot's."""


@dataclass(frozen=True)
class ACTConfig(ImitationConfig):
    """Sizes of the network; the defaults are lerobot's."""

    horizon: int = 100
    """H, actions predicted at once."""
    width: int = 512
    """W of every token; a multiple of 4."""
    heads: int = 8
    """attention heads; they divide `width`."""
    hidden: int = 3200
    """of a feed-forward block."""
    activation: Literal["relu", "gelu"] = "relu"
    """of a feed-forward block."""
    encoder_layers: int = 4
    """of the encoder of images and state."""
    decoder_layers: int = 1
    """of the decoder of actions."""
    vae_layers: int = 4
    """of the encoder of demonstrated actions."""
    latent: int = 32
    """Z of the latent variable."""
    variational: bool = True
    """whether there is an encoder of demonstrated actions."""
    pre_norm: bool = False
    """whether layers normalise what they read, instead of their result."""
    kl_weight: float = 10.0
    """weight of the latent variable's distance from a standard normal."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a value is invalid; the message names the key to change."""
        super().__post_init__()
        if self.width % 4 or self.width % self.heads:
            message = f"policy.width={self.width} must be a multiple of 4 and of policy.heads={self.heads}."
            raise UserError(message, code="policy-sizes-invalid")


class Layer(nn.Module):
    """A transformer layer: attention to its own tokens, to those of `memory` in a decoder, feed-forward."""

    def __init__(self, config: ACTConfig, decodes: bool) -> None:
        super().__init__()
        width = config.width
        self.self_attn = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(width, config.heads, batch_first=True) if decodes else None
        self.linear1, self.linear2 = nn.Linear(width, config.hidden), nn.Linear(config.hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width) if decodes else None
        self.pre_norm, self.activation = config.pre_norm, ACTIVATIONS[config.activation]

    def forward(
        self, x: Tensor, places: Tensor, memory: Tensor | None, memory_places: Tensor | None, left_out: Tensor | None
    ) -> Tensor:
        """Update tokens x [n, t, W]; places are added to queries and keys; left_out bool [n, t]: not attended to."""

        def attend(y: Tensor) -> Tensor:
            return self.self_attn(y + places, y + places, y, key_padding_mask=left_out, need_weights=False)[0]

        def feed(y: Tensor) -> Tensor:
            return self.linear2(self.activation(self.linear1(y)))

        x = self._update(x, self.norm1, attend)
        if self.multihead_attn is None or memory is None:
            return self._update(x, self.norm2, feed)
        assert memory_places is not None, "they come together"
        cross, seen = self.multihead_attn, memory + memory_places
        x = self._update(x, self.norm2, lambda y: cross(y + places, seen, memory, need_weights=False)[0])
        return self._update(x, self.norm3, feed)

    def _update(self, x: Tensor, norm: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
        return x + change(norm(x)) if self.pre_norm else norm(x + change(x))


class Stack(nn.Module):
    """Layers, and a norm behind those of a decoder, or of an encoder whose layers normalise what they read."""

    def __init__(self, config: ACTConfig, count: int, decodes: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, decodes) for _ in range(count))
        self.norm = nn.LayerNorm(config.width) if decodes or config.pre_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        memory: Tensor | None = None,
        memory_places: Tensor | None = None,
        left_out: Tensor | None = None,
    ) -> Tensor:
        """Apply all layers; see `Layer.forward`."""
        for layer in self.layers:
            x = layer(x, places, memory, memory_places, left_out)
        return self.norm(x)


class ACT(ImitationPolicy):
    """ACT with fresh weights until a checkpoint is read."""

    Config = ACTConfig
    NAME = "ACT"
    config: ACTConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Build the network; see `ImitationPolicy`."""
        super().__init__(*arguments, **named)
        config, spec = self.config, self.spec
        width = config.width
        if config.variational:
            self.vae_encoder = Stack(config, config.vae_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, width)
            self.vae_encoder_robot_state_input_proj = nn.Linear(spec.state_dim, width)
            self.vae_encoder_action_input_proj = nn.Linear(spec.action_dim, width)
            self.vae_encoder_latent_output_proj = nn.Linear(width, 2 * config.latent)
            self.register_buffer("vae_encoder_pos_enc", embed_positions(config.horizon + 2, width)[None])
        self.backbone = nn.Sequential(OrderedDict(make_trunk(config.trunk, FrozenBatchNorm)))
        self.encoder, self.decoder = Stack(config, config.encoder_layers), Stack(config, config.decoder_layers, True)
        self.encoder_robot_state_input_proj = nn.Linear(spec.state_dim, width)
        self.encoder_latent_input_proj = nn.Linear(config.latent, width)
        self.encoder_img_feat_input_proj = nn.Conv2d(WIDTHS[-1], width, 1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(2, width)
        self.decoder_pos_embed = nn.Embedding(config.horizon, width)
        self.action_head = nn.Linear(width, spec.action_dim)
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    @classmethod
    def read_sizes(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {ours: config[theirs] for ours, theirs in CONFIGURED.items()}

    def write_sizes(self) -> dict[str, Any]:
        return {theirs: getattr(self.config, ours) for ours, theirs in CONFIGURED.items()}

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode images and state, with the latent variable 0.

        Returns:
            "memory" and "places" [n, t, W], the encoder's tokens and their positions.
        """
        return self._encode(inputs, inputs.state.new_zeros(len(inputs), self.config.latent))

    def _encode(self, inputs: PolicyInput, latent: Tensor) -> Context:
        tokens = [self.encoder_latent_input_proj(latent), self.encoder_robot_state_input_proj(inputs.state)]
        places = [self.encoder_1d_feature_pos_embed.weight]
        tokens = [torch.stack(tokens, dim=1)]
        for image in self.read_images(inputs):
            features = self.backbone(image)
            height, width = features.shape[-2:]
            places.append(embed_pixels(height, width, self.config.width).to(features.device))
            tokens.append(self.encoder_img_feat_input_proj(features).flatten(2).transpose(1, 2))
        where = torch.cat(places).expand(len(inputs), -1, -1)
        memory = self.encoder(torch.cat(tokens, dim=1), where)
        return Context({"memory": memory, "places": where}, memory.mean(dim=(1, 2))[:, None].float())

    def predict(self, context: Context, noise: Tensor | None) -> Tensor:
        """Decode chunks [n, H, D]; see `ImitationBackbone.predict`."""
        memory, where = context.tensors["memory"], context.tensors["places"]
        queries = self.decoder_pos_embed.weight.expand(len(memory), -1, -1)
        return self.action_head(self.decoder(torch.zeros_like(queries), queries, memory, where)).float()

    def imitation_loss(
        self, inputs: PolicyInput, actions: Tensor, generator: torch.Generator, padding: Tensor | None = None
    ) -> Tensor:
        """Compute the absolute error, and the divergence of the latent variable (arXiv:2304.13705, algorithm 1)."""
        latent, divergence = inputs.state.new_zeros(len(inputs), self.config.latent), 0.0
        if self.config.variational:
            mean, log_variance = self.encode_actions(inputs.state, actions, padding)
            noise = torch.randn(mean.shape, generator=generator).to(mean.device)
            latent = mean + (log_variance / 2).exp() * noise
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(dim=-1).mean()
        error = (self.predict(self._encode(inputs, latent), None) - actions).abs()
        wanted = torch.ones_like(error) if padding is None else (~padding)[..., None].expand_as(error)
        return (error * wanted).sum() / wanted.sum().clamp_min(1) + self.config.kl_weight * divergence

    def encode_actions(self, state: Tensor, actions: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and logarithm of the variance [n, Z] of the latent variable of actions [n, H, D]."""
        rows, places = len(state), self.get_buffer("vae_encoder_pos_enc")
        first = self.vae_encoder_cls_embed.weight.expand(rows, 1, -1)
        tokens = (first, self.vae_encoder_robot_state_input_proj(state)[:, None])
        left_out = None if padding is None else F.pad(padding, (2, 0), value=False)
        seen = torch.cat([*tokens, self.vae_encoder_action_input_proj(actions)], dim=1)
        summary = self.vae_encoder(seen, places, left_out=left_out)[:, 0]
        mean, log_variance = self.vae_encoder_latent_output_proj(summary).chunk(2, dim=-1)
        return mean, log_variance


def embed_positions(count: int, width: int) -> Tensor:
    """Return sines and cosines of positions 0 … count - 1, interleaved, float32 [count, width] (arXiv:1706.03762)."""
    rates = 10000.0 ** (-2 * (torch.arange(width, dtype=torch.float64) // 2) / width)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).flatten(1).float()


def embed_pixels(height: int, width: int, size: int) -> Tensor:
    """Return the embeddings float32 [height · width, size] of cells: half of it of the row, half of the column.

    Positions run from 1 and are scaled to 2π at the last one, as in DETR (arXiv:2005.12872).
    """
    rates = 10000.0 ** (2 * (torch.arange(size // 2) // 2) / (size // 2))
    parts: list[Tensor] = []
    for count in (height, width):
        angles = torch.arange(1, count + 1, dtype=torch.float32) / (count + 1e-6) * (2 * math.pi)
        angles = angles[:, None] / rates
        parts.append(torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).flatten(1))
    rows = parts[0][:, None].expand(-1, width, -1)
    return torch.cat([rows, parts[1][None].expand(height, -1, -1)], dim=-1).flatten(0, 1)
