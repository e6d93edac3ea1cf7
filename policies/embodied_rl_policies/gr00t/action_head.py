"""GR00T N1.7's action head: a diffusion transformer over state and action tokens, with cross attention to the prefix.

Its even layers attend to the prefix (every `text_every`-th of them to words, the others to images), the odd ones to
the tokens themselves; the flow time scales and shifts each layer's input (adaptive layer norms). Encoders of state and
actions and the decoder have weights for each of several robots. Names of parameters are those of Isaac-GR00T's module
`action_head`, whose layers are diffusers'.

Shapes: `n` rows, `s` prefix tokens, `t` state and action tokens, `E` width, `h` heads, `d` head dimension.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl_policies.llama import join_heads, split_heads

TIME_WIDTH = 256
LONGEST = 10_000.0
"""Longest period of the embedding of the flow time, in steps of its buckets, over 2π."""
TOLERANCE = 1e-3
"""Of a bucket: what float32 times may lie below a bucket's start. With K ≤ 1000 steps no time lies so near its end."""


def find_buckets(t: Tensor, buckets: int) -> Tensor:
    """Return the bucket float32 [...] of our flow times t [...]: 0 at t = 1 (noise), the last one at t = 0 (action)."""
    return ((1 - t.double()) * buckets + TOLERANCE).floor().clamp(0, buckets - 1).float()


def embed_bucket(bucket: Tensor, width: int, *, cosine_first: bool) -> Tensor:
    """Embed buckets [...] as sines and cosines, float32 [..., width].

    The transformer's conditioning has cosines first and periods up to LONGEST · 2π (diffusers' `Timesteps`); the action
    encoder has sines first, and its periods end before that.
    """
    half = width // 2
    steps = torch.arange(half, device=bucket.device, dtype=torch.float32)
    angle = bucket[..., None] * torch.exp(-math.log(LONGEST) / (half - cosine_first) * steps)
    parts = (angle.cos(), angle.sin()) if cosine_first else (angle.sin(), angle.cos())
    return torch.cat(parts, dim=-1)


class RobotLinear(nn.Module):
    """A linear map with weights for each robot: [..., a] → [..., b]."""

    def __init__(self, robots: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.02 * torch.randn(robots, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(robots, outputs))

    def forward(self, x: Tensor, robot: int) -> Tensor:
        return x @ self.W[robot] + self.b[robot]


class RobotMLP(nn.Module):
    """Two such maps with a rectifier between them."""

    def __init__(self, robots: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = RobotLinear(robots, inputs, hidden), RobotLinear(robots, hidden, outputs)

    def forward(self, x: Tensor, robot: int) -> Tensor:
        return self.layer2(F.relu(self.layer1(x, robot)), robot)


class ActionEncoder(nn.Module):
    """Encodes actions [n, H, D] and their buckets [n, 1 or H] as tokens [n, H, E]."""

    def __init__(self, robots: int, action_dim: int, width: int) -> None:
        super().__init__()
        self.W1 = RobotLinear(robots, action_dim, width)
        self.W2 = RobotLinear(robots, 2 * width, width)
        self.W3 = RobotLinear(robots, width, width)

    def forward(self, actions: Tensor, bucket: Tensor, robot: int) -> Tensor:
        encoded = self.W1(actions, robot)
        time = embed_bucket(bucket, encoded.shape[-1], cosine_first=False).to(encoded.dtype)
        both = torch.cat([encoded, time.expand_as(encoded)], dim=-1)
        return self.W3(F.silu(self.W2(both, robot)), robot)


class Attention(nn.Module):
    """Attention of tokens [n, t, E] to themselves or to a memory, with diffusers' names of parameters."""

    def __init__(self, width: int, heads: int, memory_width: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.to_q = nn.Linear(width, width)
        self.to_k, self.to_v = nn.Linear(memory_width, width), nn.Linear(memory_width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def remember(self, memory: Tensor) -> Tensor:
        """Compute keys and values [n, 2, h, s, d] of a memory [n, s, M]."""
        parts = (split_heads(part(memory), self.head_dim) for part in (self.to_k, self.to_v))
        return torch.stack(list(parts), dim=1)

    def forward(self, tokens: Tensor, remembered: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to keys and values from `remember`; mask bool, broadcast to [n, h, t, s]."""
        key, value = remembered.unbind(1)
        mixed = F.scaled_dot_product_attention(split_heads(self.to_q(tokens), self.head_dim), key, value, mask)
        return self.to_out[0](join_heads(mixed))


class FeedForward(nn.Module):
    """A feed-forward block with diffusers' names of parameters."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        first = nn.Module()
        first.proj = nn.Linear(width, hidden)
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(hidden, width)])

    def forward(self, x: Tensor) -> Tensor:
        first: Any = self.net[0]
        return self.net[2](F.gelu(first.proj(x), approximate="tanh"))


class Block(nn.Module):
    """A layer of the diffusion transformer, or, if not `adaptive`, of the transformer over the prefix."""

    def __init__(self, width: int, heads: int, hidden: int, memory_width: int, *, adaptive: bool) -> None:
        super().__init__()
        self.norm1: nn.Module = nn.Module() if adaptive else nn.LayerNorm(width)
        if adaptive:
            self.norm1.linear = nn.Linear(width, 2 * width)
        self.attn1 = Attention(width, heads, memory_width)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=not adaptive)
        self.ff = FeedForward(width, hidden)

    def forward(self, tokens: Tensor, remembered: Tensor | None, mask: Tensor | None, time: Tensor | None) -> Tensor:
        """Apply the layer to tokens [n, t, E]; without `remembered` keys and values they attend to themselves."""
        if time is None:
            normed = self.norm1(tokens)
        else:
            inner: Any = self.norm1
            scale, shift = inner.linear(F.silu(time)).chunk(2, dim=-1)
            normed = F.layer_norm(tokens, tokens.shape[-1:]) * (1 + scale) + shift
        kept = self.attn1.remember(normed) if remembered is None else remembered
        tokens = tokens + self.attn1(normed, kept, mask)
        return tokens + self.ff(self.norm3(tokens))


class DiffusionTransformer(nn.Module):
    """The transformer over state and action tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.expert_width
        self.timestep_encoder = nn.Module()
        embedder = self.timestep_encoder.timestep_embedder = nn.Module()
        embedder.linear_1, embedder.linear_2 = nn.Linear(TIME_WIDTH, width), nn.Linear(width, width)
        self.transformer_blocks = nn.ModuleList(
            Block(width, config.expert_heads, config.expert_hidden, width if index % 2 else config.width, adaptive=True)
            for index in range(config.expert_layers)
        )
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, config.feature_width)

    def embed_time(self, bucket: Tensor, dtype: torch.dtype) -> Tensor:
        """Embed buckets [n, k] as the conditioning [n, k, E] of tokens."""
        embedder: Any = self.timestep_encoder.timestep_embedder
        embedded = embed_bucket(bucket, TIME_WIDTH, cosine_first=True).to(dtype)
        return embedder.linear_2(F.silu(embedder.linear_1(embedded)))

    def finish(self, tokens: Tensor, time: Tensor) -> Tensor:
        """Compute the features [n, t, F] of the last layer's tokens."""
        shift, scale = self.proj_out_1(F.silu(time)).chunk(2, dim=-1)
        return self.proj_out_2(F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class ActionHead(nn.Module):
    """All that GR00T adds to the vision-language model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        robots, width, hidden = config.robots, config.expert_width, config.feature_width
        self.model = DiffusionTransformer(config)
        self.state_encoder = RobotMLP(robots, config.state_dim, hidden, width)
        self.action_encoder = ActionEncoder(robots, config.action_dim, width)
        self.action_decoder = RobotMLP(robots, hidden, hidden, config.action_dim)
        self.vlln = nn.LayerNorm(config.width) if config.prefix_norm else nn.Identity()
        if config.mixer_layers:
            self.vl_self_attention = nn.Module()
            self.vl_self_attention.transformer_blocks = nn.ModuleList(
                Block(config.width, config.mixer_heads, config.mixer_hidden, config.width, adaptive=False)
                for _ in range(config.mixer_layers)
            )
        if config.positions:
            self.position_embedding = nn.Embedding(config.positions, width)
            nn.init.normal_(self.position_embedding.weight, std=0.02)
