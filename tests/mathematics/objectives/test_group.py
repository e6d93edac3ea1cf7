"""Group-relative advantages: their invariances and the filter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.mathematics.objectives.advantages import group_advantage


def random_groups() -> tuple[Tensor, Tensor]:
    """Eight groups of six, interleaved and numbered with gaps."""
    generator = torch.Generator().manual_seed(0)
    returns = torch.rand(48, generator=generator)
    return returns, (torch.arange(8).repeat(6) * 7)[torch.randperm(48, generator=generator)]


def test_mean_zero_and_unit_spread_in_every_group():
    returns, group = random_groups()
    advantage, kept = group_advantage(returns, group, 0, 1)
    assert kept.all()
    for number in group.unique():
        member = advantage[group == number]
        assert float(member.mean()) == pytest.approx(0, abs=1e-6)
        assert float(member.std()) == pytest.approx(1, abs=1e-4)


@settings(deadline=None, max_examples=30)
@given(scale=st.floats(0.1, 100), shift=st.floats(-100, 100))
def test_invariant_to_scale_and_shift(scale, shift):
    returns, group = random_groups()
    reference, _ = group_advantage(returns.double(), group, -1, 2)
    changed, _ = group_advantage(returns.double() * scale + shift, group, -1, 2)
    torch.testing.assert_close(changed, reference, rtol=1e-4, atol=1e-4)


def test_order_does_not_matter():
    """Permuted episodes have permuted advantages."""
    returns, group = random_groups()
    reference, kept = group_advantage(returns, group, 0.4, 0.6)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    changed, changed_kept = group_advantage(returns[order], group[order], 0.4, 0.6)
    torch.testing.assert_close(changed, reference[order])
    assert torch.equal(changed_kept, kept[order])
    assert kept.any()
    assert not kept.all()


def test_groups_that_say_nothing_are_dropped():
    """All alike, of one episode, or outside the bounds; the advantage of the first two is 0."""
    returns = torch.tensor([0.5, 0.5, 0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    group = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2])
    advantage, kept = group_advantage(returns, group, 0.0, 0.5)
    assert advantage[:4].tolist() == [0, 0, 0, 0]
    assert not kept.any()
    assert group_advantage(returns, group, 0.0, 0.9)[1].tolist() == [False] * 4 + [True] * 5


@pytest.mark.parametrize(("successes", "kept"), [(0, False), (1, True), (5, True), (9, True), (10, False)])
def test_bounds_are_included(successes, kept):
    """Rates of exactly 0.1 and 0.9 stay, in single precision too."""
    returns = (torch.arange(10) < successes).float()
    assert group_advantage(returns, torch.zeros(10, dtype=torch.int64), 0.1, 0.9)[1].tolist() == [kept] * 10


def test_episodes_without_a_group_are_refused():
    with pytest.raises(ValueError, match="group"):
        group_advantage(torch.zeros(2), torch.tensor([0, -1]), 0, 1)


def test_no_episodes():
    """An iteration in which none finished."""
    advantage, kept = group_advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 0, 1)
    assert len(advantage) == len(kept) == 0
