"""Pocket VLA with a token head: each action dimension is one of N bins, all chosen at once (as in OpenVLA-OFT).

Perception and prefix are those of `Pocket`. H learned queries attend to the prefix and to each other; a linear map of
each gives the logits of its D dimensions (parallel decoding, arXiv:2502.19645; bins as in OpenVLA, arXiv:2406.09246).

Shapes: `n` rows, `T` prefix tokens, `H` actions, `D` action dimensions, `N` bins, `W` width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, TokenBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.pocket import Attention, FeedForward, PocketConfig, PocketPrefix


@dataclass(frozen=True)
class PocketTokensConfig(PocketConfig):
    """Sizes of the network; the defaults give 0.7 million parameters."""

    bins: int = 256
    """N, equal intervals of an action's range, of which the policy chooses one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise UserError(f"policy.bins={self.bins} must be at least 2.", code="value-out-of-range")


class QueryLayer(nn.Module):
    """A layer of the queries: attention to the prefix and to all queries, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, queries: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Update queries [n, H, W] by the prefix's key_value [n, T, 2 W]; mask bool [n, T + H]."""
        normed = self.attention_norm(queries)
        key_value = torch.cat([key_value, self.attention.key_value(normed)], dim=1)
        queries = queries + self.attention(normed, key_value, mask)
        return queries + self.feed_forward(self.forward_norm(queries))


class PocketTokens(PocketPrefix, TokenBackbone):
    """The small token VLA that ships with the library."""

    Config = PocketTokensConfig
    config: PocketTokensConfig

    def _build_head(self) -> None:
        config, width, spec = self.config, self.config.width, self.spec
        self.bins = config.bins
        self.action_positions = nn.Parameter(torch.randn(config.horizon, width) * 0.02)
        self.layers = nn.ModuleList(QueryLayer(width, config.heads, config.hidden) for _ in range(config.layers))
        self.norm = nn.RMSNorm(width)
        self.logits = nn.Linear(width, spec.action_dim * config.bins)

    def action_logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute logits [n, H, D, N] and the normalised queries [n, H, W] they are made of."""
        queries = self.action_positions.expand(len(context), -1, -1)
        mask = F.pad(context.tensors["mask"], (0, queries.shape[1]), value=True)
        for index, layer in enumerate(self.layers):
            queries = layer(queries, context.tensors[f"key_value/{index}"], mask)
        features = self.norm(queries)
        return self.logits(features).unflatten(-1, (self.spec.action_dim, self.bins)), features
