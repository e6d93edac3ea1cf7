"""Reductions agree with one another and ignore what was not executed or is not valid."""

import pytest
import torch

from embodied_rl.mathematics.objectives.losses import (
    Level,
    clipped_policy_loss,
    masked_mean,
    reduce_log_prob,
    step_mask,
)


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


def test_invalid_decisions_do_not_reach_the_loss():
    """What was recorded after an episode was lost changes neither loss nor gradient."""
    mask = torch.tensor([True, True, False, False])
    gradients = []
    for spoil in (0.0, torch.nan):
        log_ratio = torch.tensor([0.1, -0.1, spoil, spoil], requires_grad=True)
        advantage = torch.tensor([1.0, -1.0, spoil, 3.0])
        loss = masked_mean(clipped_policy_loss(log_ratio, advantage, 0.2, 0.2), mask)
        gradients.append((loss.detach(), *torch.autograd.grad(loss, log_ratio)))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1][:2], gradients[1][1][:2])
