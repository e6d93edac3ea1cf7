"""A policy over the start noise of a flow: what learns where the flow itself is frozen (DSRL, arXiv:2506.15799).

The start noise w = bound · tanh(mean + std · ε), ε ~ N(0, I), is drawn from the pooled prefix. A new policy has a mean
of 0, and a std with which an entry of w has the variance 1 of the flow's own noise, as far as the bound permits.

Shapes: n rows, H predicted actions, D action dimensions of the model, F width of the pooled prefix, d entries of w: D
where all actions of a chunk start from the same noise, else H·D.
"""

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.backbone import PolicySpec

LOG_STD = (-5.0, 1.0)
"""Range of the logarithm of the std before tanh."""


@dataclass(frozen=True)
class StartNoiseSettings:
    """Settings of a start-noise policy, which policy files store.

    Attributes:
        bound: largest absolute value of an entry of the noise.
        shared: whether all actions of a chunk start from the same noise.
        hidden: units of each of two layers.
    """

    bound: float = at_least(0.01, 2.0, at_most=100)
    shared: bool = True
    hidden: int = at_least(1, 256, at_most=4096)

    def count_entries(self, spec: PolicySpec) -> int:
        """Return d for flow policies of these sizes."""
        return spec.action_dim * (1 if self.shared else spec.horizon)


class StartNoise(nn.Module):
    """A tanh-Gaussian policy over the start noise.

    Attributes:
        settings: see `StartNoiseSettings`.
        size: d.
        plain: explore with ε ~ N(0, I) itself, as a flow without this policy does; a setting of exploration.
    """

    def __init__(self, settings: StartNoiseSettings, spec: PolicySpec) -> None:
        """Create a policy for the flow policies of these sizes."""
        super().__init__()
        self.settings, self.plain = settings, False
        self._chunk = spec.horizon, spec.action_dim
        self.size, hidden = settings.count_entries(spec), settings.hidden
        self.norm = nn.LayerNorm(spec.context_dim)
        self.body = nn.Sequential(nn.Linear(spec.context_dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.head = nn.Linear(hidden, 2 * self.size)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.zero_()
            self.head.bias[self.size :] = log(find_plain_std(settings.bound))

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and logarithm of the std before tanh, float32 [n, d] each, from the pooled prefix [n, F]."""
        with torch.autocast(pooled.device.type, enabled=False):
            mean, log_std = self.head(self.body(self.norm(pooled.float()))).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, pooled: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return w float32 [n, d] for ε [n, d], and its log-density float32 [n]."""
        mean, log_std = self(pooled)
        inner = mean + log_std.exp() * noise
        slope = 2 * (log(2) - inner - softplus(-2 * inner))  # log of the derivative of tanh
        density = -0.5 * noise.square() - log_std - 0.5 * log(2 * pi) - slope - log(self.settings.bound)
        return self.settings.bound * inner.tanh(), density.sum(-1)

    def find_centre(self, pooled: Tensor) -> Tensor:
        """Return bound · tanh(mean), float32 [n, d]: the start noise of the deployed policy."""
        return self.settings.bound * self(pooled)[0].tanh()

    def explore(self, pooled: Tensor, noise: Tensor) -> Tensor:
        """Return the start noise of the exploring policy for ε [n, d]."""
        return noise if self.plain else self.draw(pooled, noise)[0]

    def expand(self, start: Tensor) -> Tensor:
        """Return start noise w [n, d] as x₁ of the flow, [n, H, D]."""
        return start[:, None].expand(-1, *self._chunk) if self.settings.shared else start.unflatten(1, self._chunk)


def find_plain_std(bound: float) -> float:
    """Return the std before tanh with which bound · tanh(std · ε) has a variance of 1, and at most 1."""
    noise = torch.special.ndtri((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        wide = float((bound * (middle * noise).tanh()).square().mean()) > 1
        low, high = (low, middle) if wide else (middle, high)
    return high
