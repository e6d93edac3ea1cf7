"""The clipped objective: its values, and its gradient against finite differences in every region."""

import math

import pytest
import torch

from embodied_rl.mathematics.objectives.losses import approximate_kl, clip_fraction, clipped_policy_loss

DOUBLE = torch.float64


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "free"),
    [
        (1.0, 2.0, -2.0, True),
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.0 * 1.28, False),
        (0.5, 2.0, -1.0, True),
        (1.1, -2.0, 2.2, True),
        (1.5, -2.0, 3.0, True),
        (0.5, -2.0, 2.0 * 0.8, False),
    ],
)
def test_values_and_gradients_by_region(ratio, advantage, loss, free, dual):
    """Clipped where the ratio has already moved the way the advantage points; there the gradient is 0."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=DOUBLE, requires_grad=True)
    actual = clipped_policy_loss(log_ratio, torch.tensor([advantage], dtype=DOUBLE), 0.2, 0.28, dual)
    assert float(actual.detach()) == pytest.approx(loss)
    actual.sum().backward()
    assert float(log_ratio.grad) == pytest.approx(-ratio * advantage if free else 0)


def test_dual_clip_bounds_the_loss_of_bad_actions():
    """c |A| for A < 0 with no gradient beyond; nothing changes for A > 0."""
    log_ratio = torch.tensor([5.0, 5.0, 1.0], requires_grad=True)
    loss = clipped_policy_loss(log_ratio, torch.tensor([-2.0, 2.0, -2.0]), 0.2, 0.2, dual=3.0)
    assert loss.tolist() == pytest.approx([6, -2.4, 2 * math.e])
    loss.sum().backward()
    assert log_ratio.grad.tolist() == pytest.approx([0, 0, 2 * math.e])
    with pytest.raises(ValueError, match="dual"):
        clipped_policy_loss(log_ratio, torch.ones(3), 0.2, 0.2, dual=1.0)


@pytest.mark.parametrize("dual", [None, 1.5])
def test_gradient_matches_finite_differences(dual):
    generator = torch.Generator().manual_seed(0)
    log_ratio = torch.randn(200, generator=generator, dtype=DOUBLE).requires_grad_()
    advantage = torch.randn(200, generator=generator, dtype=DOUBLE)
    assert torch.autograd.gradcheck(lambda x: clipped_policy_loss(x, advantage, 0.2, 0.3, dual), log_ratio)


def test_advantage_of_a_chunk_serves_all_its_elements():
    """[B] broadcasts over [B, Hx] and [B, Hx, D'], even where the sizes would also fit the wrong way."""
    advantage = torch.tensor([1.0, -2.0, 3.0])
    for shape in ((3, 3), (3, 3, 3)):
        loss = clipped_policy_loss(torch.zeros(shape), advantage, 0.2, 0.2)
        assert loss.shape == shape
        torch.testing.assert_close(loss.flatten(1)[:, 0], -advantage)
        assert float(loss.flatten(1).std(1).max()) == 0


def test_clip_fraction_counts_valid_entries():
    log_ratio = torch.tensor([1.5, 1.1, 0.5, 0.9, 9.0]).log().requires_grad_()
    mask = torch.tensor([True, True, True, True, False])
    assert float(clip_fraction(log_ratio, 0.2, 0.2, mask)) == 0.5
    assert float(clip_fraction(log_ratio, 0.6, 0.2, mask)) == 0.25
    assert not clip_fraction(log_ratio, 0.2, 0.2).requires_grad


def test_kl_estimates_converge_to_the_exact_divergence():
    """KL(N(0, 1) ‖ N(μ, 1)) = μ² / 2; k3 is never negative and varies less."""
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    log_ratio = (x**2 - (x - 0.2) ** 2) / 2
    k1, k3 = approximate_kl(log_ratio)
    assert float(k1) == pytest.approx(0.02, abs=4.5 * 0.2 / math.sqrt(200_000))
    assert float(k3) == pytest.approx(0.02, rel=0.02)
    for value in (-3.0, -1e-4, 1e-4, 3.0):
        assert float(approximate_kl(torch.tensor([value]))[1]) > 0
