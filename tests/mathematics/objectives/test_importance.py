"""Weights of stale decisions: the identity they rest on, and where they stop."""

import math

import pytest
import torch

from embodied_rl.mathematics.objectives.losses import truncated_importance_weight

DOUBLE = torch.float64


def test_weights_are_ratios_up_to_the_cap_and_have_no_gradient():
    log_weight = torch.tensor([math.log(0.5), 0.0, math.log(1.9), math.log(3.0), 1e4], requires_grad=True)
    assert truncated_importance_weight(log_weight, 2.0).tolist() == pytest.approx([0.5, 1, 1.9, 2, 2])
    assert truncated_importance_weight(log_weight, 1.0).tolist() == pytest.approx([0.5, 1, 1, 1, 1])
    assert truncated_importance_weight(log_weight)[:4].tolist() == pytest.approx([0.5, 1, 1.9, 3])
    assert not truncated_importance_weight(log_weight, 2.0).requires_grad


def test_a_row_of_the_present_policy_counts_once_to_the_bit():
    for cap in (None, 1.0, 2.0):
        assert torch.equal(truncated_importance_weight(torch.zeros(3), cap), torch.ones(3))


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        truncated_importance_weight(torch.zeros(1), 0.9)


def test_weighted_means_are_those_of_the_other_distribution():
    """E_q[p/q f] = E_p[f] for normal distributions, by quadrature; truncated it falls short by E_q[(p/q - C)+ f]."""
    x = torch.linspace(-12, 12, 200_001, dtype=DOUBLE)
    mean_and_std = torch.tensor([[0.0, 1.0], [0.4, 0.9]], dtype=DOUBLE)
    behaviour, present = (torch.distributions.Normal(*row) for row in mean_and_std)
    log_weight, density = present.log_prob(x) - behaviour.log_prob(x), behaviour.log_prob(x).exp()

    def mean(values: torch.Tensor) -> float:
        return float(torch.trapezoid(density * values, x))

    square = x.square()
    assert mean(truncated_importance_weight(log_weight) * square) == pytest.approx(0.4**2 + 0.9**2, abs=1e-9)
    missing = mean((log_weight.exp() - 1.2).clamp_min(0) * square)
    assert missing > 0.01
    truncated = mean(truncated_importance_weight(log_weight, 1.2) * square)
    assert truncated == pytest.approx(0.4**2 + 0.9**2 - missing, abs=1e-9)
