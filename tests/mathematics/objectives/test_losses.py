"""Losses: values and gradients in every region, importance weights, reductions over valid entries."""

import math

import pytest
import torch

from embodied_rl.mathematics.objectives.losses import (
    Level,
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    masked_mean,
    reduce_log_prob,
    step_mask,
    truncated_importance_weight,
    value_loss,
)

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


def test_plain_loss_is_half_the_squared_error():
    value, returns = torch.tensor([1.0, -2.0]), torch.tensor([3.0, -2.5])
    assert value_loss(value, value, returns).tolist() == pytest.approx([2, 0.125])


def test_huber_equals_it_for_small_errors_and_grows_linearly_after():
    value, returns = torch.zeros(3), torch.tensor([0.5, -10.0, 30.0])
    loss = value_loss(value, value, returns, huber=10.0)
    assert loss.tolist() == pytest.approx([0.125, 50, 10 * (30 - 5)])


def test_clip_has_no_effect_inside_its_range():
    generator = torch.Generator().manual_seed(0)
    old, returns = torch.randn(2, 50, generator=generator)
    value = old + 0.19 * (2 * torch.rand(50, generator=generator) - 1)
    torch.testing.assert_close(value_loss(value, old, returns, clip=0.2), value_loss(value, old, returns))


def test_clip_takes_the_worse_of_the_two():
    """Moved past the range towards the target: charged as if at its edge, no gradient. Away from it: as it is."""
    value = torch.tensor([1.0, -1.0], requires_grad=True)
    loss = value_loss(value, torch.zeros(2), torch.ones(2), clip=0.2)
    assert loss.tolist() == pytest.approx([0.5 * 0.8**2, 0.5 * 2**2])
    loss.sum().backward()
    assert value.grad.tolist() == pytest.approx([0, -2])


def test_explained_variance():
    """1 for perfect values, 0 for a constant, whatever its offset; negative when worse; 0 when nothing varies."""
    returns = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert float(explained_variance(returns, returns)) == 1
    assert float(explained_variance(torch.full((4,), 9.0), returns)) == pytest.approx(0)
    assert float(explained_variance(-returns, returns)) == pytest.approx(-3)
    assert float(explained_variance(returns, torch.ones(4))) == 0


def test_explained_variance_of_valid_entries():
    returns, value = torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([1.0, 2.0, 5.0])
    assert float(explained_variance(value, returns, torch.tensor([True, True, False]))) == 1


def log_probs() -> torch.Tensor:
    return torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_step_mask():
    """The first `steps` of Hx, for any leading shape."""
    assert step_mask(torch.tensor([0, 2, 3]), 3).int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert step_mask(torch.ones(2, 4, dtype=torch.int64), 3).shape == (2, 4, 3)


def test_levels_are_sums_of_one_another():
    mask = step_mask(torch.tensor([5, 3, 1, 0]), 5)
    token, action, chunk = (reduce_log_prob(log_probs(), mask, level) for level in Level)
    assert [x.shape for x in (token, action, chunk)] == [(4, 5, 6), (4, 5), (4,)]
    torch.testing.assert_close(token.sum(-1), action)
    torch.testing.assert_close(action.sum(-1), chunk)
    torch.testing.assert_close(chunk[1], log_probs()[1, :3].sum())
    assert chunk[3] == 0


@pytest.mark.parametrize("level", list(Level))
def test_steps_that_were_not_executed_do_not_matter(level):
    """Not to the value and not to the gradient, NaN included."""
    mask = step_mask(torch.tensor([5, 3, 1, 0]), 5)
    spoiled = torch.where(mask[..., None], log_probs(), torch.nan).requires_grad_()
    reduced = reduce_log_prob(spoiled, mask, level)
    assert torch.equal(reduced, reduce_log_prob(log_probs(), mask, level))
    reduced.sum().backward()
    assert torch.equal(spoiled.grad, mask[..., None].expand_as(spoiled).double())


def test_level_by_name():
    """As a configuration gives it; anything else is refused."""
    mask = step_mask(torch.full((4,), 5), 5)
    assert reduce_log_prob(log_probs(), mask, "chunk").shape == (4,)
    with pytest.raises(ValueError, match="sequence"):
        reduce_log_prob(log_probs(), mask, "sequence")


def test_masked_mean():
    """Of the valid entries; a mask of rows covers their trailing axes; weights weigh."""
    x = torch.tensor([[1.0, 3.0], [torch.nan, torch.nan], [5.0, 7.0]], requires_grad=True)
    mean = masked_mean(x, torch.tensor([True, False, True]))
    assert mean == 4
    mean.backward()
    assert x.grad.tolist() == [[0.25, 0.25], [0, 0], [0.25, 0.25]]
    assert masked_mean(torch.tensor([1.0, 5.0]), torch.tensor([0.75, 0.25])) == 2
    assert masked_mean(torch.tensor([1.0, 5.0])) == 3


def test_nothing_valid_is_zero_with_a_zero_gradient():
    x = torch.full((3,), torch.nan, requires_grad=True)
    mean = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    mean.backward()
    assert mean == 0
    assert x.grad.tolist() == [0, 0, 0]
