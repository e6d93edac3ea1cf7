"""Flow-SDE keeps the flow's distribution of actions; wrong forms of it do not, and this check sees that.

At few denoise steps the discretisation hides a missing drift correction, so the check runs at K = 100.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.mathematics.flow.transition import Transition, ode_step, sde_sigma

K, ROWS = 100, 15_000


class PrintedForm(FlowSDE):
    """Equations (7)-(9) of π_RL as printed: τ = 1 - t rises, but drift and σ are those of falling time."""

    def transition(self, x: Tensor, v: Tensor, features: Tensor, t: Tensor, noise_level: Tensor) -> Transition:
        tau, v_tau = (1 - t)[:, None, None], -v
        sigma = noise_level[:, None, None] * torch.sqrt(tau / (1 - tau))
        ratio = noise_level[:, None, None] ** 2 / (2 * (1 - tau))  # σ² / (2 τ)
        mean = x + self.delta * (v_tau + ratio * (x + (1 - tau) * v_tau))
        return Transition(mean, sigma * self.delta**0.5)


class WithoutCorrection(FlowSDE):
    """Flow-SDE's noise around a plain Euler step."""

    def transition(self, x: Tensor, v: Tensor, features: Tensor, t: Tensor, noise_level: Tensor) -> Transition:
        std = sde_sigma(t, self.delta, noise_level) * self.delta**0.5
        return Transition(ode_step(x, v, self.delta), std[:, None, None])


def errors(sampler: Sampler, mixture, keys, explore: bool = True) -> tuple[float, float]:
    """Wasserstein-1 distance to the exact distribution, and the error of the variance."""

    def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return mixture.velocity(x.double(), t.double()[:, None, None]).float(), x

    with torch.no_grad():
        actions = sampler.sample(velocity, keys, (1, 1), explore).actions.double().flatten().sort().values.numpy()
    exact = mixture.quantiles((np.arange(ROWS) + 0.5) / ROWS)
    return float(np.abs(actions - exact).mean()), float(actions.var() - mixture.variance)


def keeps_marginals(distance: float, variance: float) -> bool:
    """Three times the mean distance of as many exact draws (0.0074); a variance error that 40 such draws never had."""
    return distance < 0.022 and abs(variance) < 0.02


@pytest.mark.parametrize("layers", ["hybrid", "full"])
@pytest.mark.parametrize("noise_level", [0.2, 0.5, 0.8])
def test_flow_sde_keeps_the_marginals(layers, noise_level, mixture, make_keys):
    sampler = FlowSDE(K, noise_level, layers=layers)
    assert keeps_marginals(*errors(sampler, mixture, make_keys(ROWS)))


@pytest.mark.thorough
def test_ode_keeps_the_marginals(mixture, make_keys):
    assert keeps_marginals(*errors(FlowSDE(K, 0.5), mixture, make_keys(ROWS), explore=False))


@pytest.mark.thorough
@pytest.mark.parametrize("noise_level", [0.2, 0.5])
@pytest.mark.parametrize("wrong", [PrintedForm, WithoutCorrection])
def test_wrong_forms_are_rejected(wrong, noise_level, mixture, make_keys):
    """By twice the bounds even where the noise is small, so that the check above means something."""
    distance, variance = errors(wrong(K, noise_level, layers="full"), mixture, make_keys(ROWS))
    assert not keeps_marginals(distance, variance)
    assert distance > 2 * 0.022
    assert abs(variance) > 2 * 0.02


@pytest.mark.thorough
def test_flow_noise_is_another_policy(mixture, make_keys):
    """Its noise is not corrected for, so the distribution widens: it must not be mistaken for Flow-SDE."""
    distance, variance = errors(FlowNoise(K, 0.12, 0.12, 1, 1), mixture, make_keys(ROWS))
    assert not keeps_marginals(distance, variance)
    assert variance > 0.2
