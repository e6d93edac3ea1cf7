"""The critic's loss and explained variance."""

import pytest
import torch

from embodied_rl.mathematics.objectives.losses import explained_variance, value_loss


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
