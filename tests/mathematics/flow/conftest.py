"""Exact references for flows: a one-dimensional mixture with closed-form velocity and density, and noise keys."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.interfaces.policy import NoiseKeys


@dataclass(frozen=True)
class Mixture:
    """A Gaussian mixture of actions; x_t = t ε + (1 - t) a. Everything is elementwise and float64."""

    weights: Tensor
    means: Tensor
    stds: Tensor

    def density_parts(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centred x, variance and log joint density of each component, with a trailing component axis."""
        variance = t[..., None] ** 2 + (1 - t[..., None]) ** 2 * self.stds**2
        centred = x[..., None] - (1 - t[..., None]) * self.means
        return centred, variance, self.weights.log() - 0.5 * (2 * torch.pi * variance).log() - centred**2 / variance / 2

    def log_density(self, x: Tensor, t: Tensor) -> Tensor:
        return self.density_parts(x, t)[2].logsumexp(-1)

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        """E[ε - a | x_t = x] = (x - E[a | x]) / t."""
        centred, variance, joint = self.density_parts(x, t)
        posterior = self.means + (1 - t[..., None]) * self.stds**2 * centred / variance
        return (x - (joint.softmax(-1) * posterior).sum(-1)) / t

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        """Of the actions, by inverting the distribution function on a fine grid."""
        grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
        components = torch.distributions.Normal(self.means, self.stds)
        cumulative = (self.weights * components.cdf(grid[:, None])).sum(-1)
        return np.interp(probability, cumulative.numpy(), grid.numpy())

    @property
    def variance(self) -> float:
        mean = (self.weights * self.means).sum()
        return float((self.weights * (self.stds**2 + self.means**2)).sum() - mean**2)


@pytest.fixture
def mixture() -> Mixture:
    """0.3 N(-1, 0.15²) + 0.7 N(0.8, 0.25²)."""
    return Mixture(*torch.tensor([[0.3, 0.7], [-1.0, 0.8], [0.15, 0.25]], dtype=torch.float64))


@pytest.fixture
def make_keys() -> Callable[..., NoiseKeys]:
    """Keys of n rows: episodes 0 … n - 1 of one decision."""

    def make(rows: int, seed: int = 0, decision: int = 0) -> NoiseKeys:
        return NoiseKeys(seed, np.arange(rows), np.full(rows, decision))

    return make
