"""Continuing a plan with a policy that was not trained on it: replacement and guidance."""

import math

import pytest
import torch
from torch import Tensor

from embodied_rl.mathematics.flow.continuation import (
    PlannedActions,
    compute_guidance_weight,
    guide_sample,
    replace_sample,
    weigh_plan,
)
from embodied_rl.mathematics.flow.sampler import ode_sample

ROWS, H, D, K = 5, 4, 2, 5
SAMPLERS = (replace_sample, guide_sample)


def field(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Nonlinear in x; the actions of a chunk depend on each other."""
    mixed = torch.tanh(x @ torch.tensor([[0.3, -0.8], [0.5, 0.2]])) + 0.4 * x.roll(1, 1)
    return mixed * t[:, None, None] - 0.3, x


def start() -> Tensor:
    return torch.randn(ROWS, H, D, generator=torch.Generator().manual_seed(0))


def planned() -> Tensor:
    return torch.randn(ROWS, H, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sample", SAMPLERS)
def test_weights_of_zero_are_the_plain_sampler_to_the_bit(sample) -> None:
    plain = ode_sample(field, start(), K)
    assert torch.equal(sample(field, start(), K, PlannedActions(planned(), torch.zeros(ROWS, H, D))), plain)
    weight = torch.zeros(ROWS, H, D)
    weight[[1, 3], :2] = 1
    mixed = sample(field, start(), K, PlannedActions(planned(), weight))
    assert torch.equal(mixed[[0, 2, 4]], plain[[0, 2, 4]]), "single rows of a batch"
    assert not torch.isclose(mixed[[1, 3]], plain[[1, 3]]).any()


@torch.no_grad()
def test_guidance_of_a_linear_field_is_the_closed_form() -> None:
    """With v = x M t + b, x̂₀ = x (1 - t² M) - t b, so that J is known: v' = v - w (Y - x̂₀) W (1 - t² M)ᵀ."""
    torch.manual_seed(0)
    matrix, bias, size = torch.randn(H * D, H * D) / 4, torch.randn(H * D), H * D

    def linear(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return ((x.flatten(1) @ matrix) * t[:, None] + bias).view_as(x), x

    weight, most = torch.rand(ROWS, H, D), 5.0
    x, y = start().double().flatten(1), planned().double().flatten(1)
    for k in range(K):
        t = 1 - k / K
        v = x @ matrix.double() * t + bias.double()
        jacobian = torch.eye(size, dtype=torch.float64) - t * t * matrix.double()
        w = most if t == 1 else min(most, ((1 - t) ** 2 + t * t) / (t * (1 - t)))
        x = x - (v - w * ((y - (x - t * v)) * weight.flatten(1).double()) @ jacobian.T) / K
    found = guide_sample(linear, start(), K, PlannedActions(planned(), weight), most)
    torch.testing.assert_close(found.flatten(1).double(), x, rtol=1e-5, atol=1e-5)
    assert not found.requires_grad


def test_guidance_comes_nearer_to_the_plan_within_no_grad_and_changes_no_gradient_of_weights() -> None:
    scale = torch.nn.Parameter(torch.ones(()))
    weight = torch.zeros(ROWS, H, D)
    weight[:, :2] = 1
    with torch.no_grad():
        plain = ode_sample(lambda x, t: (scale * field(x, t)[0], x), start(), K)
        guided = guide_sample(lambda x, t: (scale * field(x, t)[0], x), start(), K, PlannedActions(planned(), weight))
    before, after = ((each - planned()).abs()[:, :2].mean() for each in (plain, guided))
    assert after < 0.5 * before and scale.grad is None


@pytest.mark.parametrize(("t", "expected"), [(1.0, 5.0), (0.5, 2.0), (0.9, 5.0), (0.25, 10 / 3), (0.01, 5.0)])
def test_the_weight_of_guidance(t: float, expected: float) -> None:
    assert compute_guidance_weight(t, 5.0) == pytest.approx(expected)


def test_weights_fall_from_committed_to_free_actions() -> None:
    """By hand from eq. 5 of arXiv:2506.07339: c = (p - i) / (p - d + 1), weight c (e^c - 1) / (e - 1)."""
    found = weigh_plan(torch.tensor([0, 1, 3, 4]), planned=4, horizon=6)
    soft = [c * (math.exp(c) - 1) / (math.e - 1) for c in (3 / 4, 2 / 4, 1 / 4)]
    last = 0.5 * (math.exp(0.5) - 1) / (math.e - 1)
    expected = [[0] * 6, [1, *soft, 0, 0], [1, 1, 1, last, 0, 0], [1, 1, 1, 1, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-6)
