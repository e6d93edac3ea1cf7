"""Advantages against sums written out, Monte-Carlo returns and closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.mathematics.objectives.advantages import (
    compute_gae,
    discount_reward,
    group_advantage,
    make_discounts,
    select_next_values,
)

DOUBLE = torch.float64
T, N = 12, 6


def random_rollout(seed: int = 0) -> dict[str, Tensor]:
    """T decisions of N environments with terminations and truncations, some of both in the same chunk."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, final_value = torch.randn(3, T, N, generator=generator, dtype=DOUBLE)
    ended, cause = torch.rand(T, N, generator=generator) < 0.3, torch.rand(T, N, generator=generator)
    return {
        "reward": reward,
        "value": value,
        "final_value": final_value,
        "last_value": torch.randn(N, generator=generator, dtype=DOUBLE),
        "terminated": ended & (cause < 0.6),
        "truncated": ended & (cause > 0.4),
        "steps": torch.randint(1, 6, (T, N), generator=generator),
    }


def estimate(rollout: dict[str, Tensor], gamma: float, lam: float, per="control_step") -> tuple[Tensor, Tensor]:
    following = select_next_values(
        *(rollout[k] for k in ("value", "last_value", "final_value", "terminated", "truncated"))
    )
    discount = make_discounts(rollout["steps"], gamma, per)
    continues = ~(rollout["terminated"] | rollout["truncated"])
    return compute_gae(rollout["reward"], rollout["value"], following, discount, continues, lam)


def written_out(rollout: dict[str, Tensor], gamma: float, lam: float) -> Tensor:
    """Σ over later decisions of the same episode of (Π discount λ) δ, by plain loops and Python numbers."""
    r = {name: value.tolist() for name, value in rollout.items()}
    advantage = torch.zeros(T, N, dtype=DOUBLE)
    for n in range(N):
        for start in range(T):
            weight = 1.0
            for t in range(start, T):
                factor = gamma ** r["steps"][t][n]
                after = r["value"][t + 1][n] if t + 1 < T else r["last_value"][n]
                if r["truncated"][t][n]:
                    after = r["final_value"][t][n]
                if r["terminated"][t][n]:
                    after = 0.0
                advantage[start, n] += weight * (r["reward"][t][n] + factor * after - r["value"][t][n])
                weight *= factor * lam
                if r["terminated"][t][n] or r["truncated"][t][n]:
                    break
    return advantage


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_equals_the_sum_written_out(gamma, lam):
    rollout = random_rollout()
    advantage, returns = estimate(rollout, gamma, lam)
    torch.testing.assert_close(advantage, written_out(rollout, gamma, lam), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(returns, advantage + rollout["value"])


def test_lambda_one_is_the_return_minus_the_value():
    """One episode that terminates: the discounted return-to-go, in closed form for a constant reward."""
    reward, value = torch.ones(10, 1, dtype=DOUBLE), torch.randn(10, 1, dtype=DOUBLE)
    continues = torch.arange(10)[:, None] < 9
    following = torch.cat([value[1:], torch.zeros(1, 1, dtype=DOUBLE)])
    advantage, returns = compute_gae(reward, value, following, torch.full_like(reward, 0.9), continues, 1.0)
    expected = (1 - 0.9 ** torch.arange(10, 0, -1, dtype=DOUBLE)) / 0.1
    torch.testing.assert_close(returns[:, 0], expected)
    torch.testing.assert_close(advantage[:, 0], expected - value[:, 0])


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_exact_values_have_no_advantage_across_a_time_limit(lam):
    """r = 1 for ever has V = 1 / (1 - γ); with a truncation bootstrapped from its final value A stays 0."""
    rollout = random_rollout()
    exact = torch.full((T, N), 1 / (1 - 0.9), dtype=DOUBLE)
    rollout |= {"reward": torch.ones(T, N, dtype=DOUBLE), "value": exact, "final_value": exact, "last_value": exact[0]}
    rollout |= {"terminated": torch.zeros(T, N, dtype=torch.bool), "steps": torch.ones(T, N, dtype=torch.int64)}
    advantage, _ = estimate(rollout, 0.9, lam)
    assert float(advantage.abs().max()) < 1e-5


def test_termination_wins_over_truncation():
    """A success on the time limit is not bootstrapped."""
    yes, no = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool)
    value, final, last = torch.tensor([[1.0]]), torch.tensor([[5.0]]), torch.tensor([7.0])
    assert select_next_values(value, last, final, yes, yes) == 0
    assert select_next_values(value, last, final, yes, no) == 0
    assert select_next_values(value, last, final, no, yes) == 5
    assert select_next_values(value, last, final, no, no) == 7


def test_nothing_leaks_back_from_the_next_episode():
    """Whatever follows an end, NaN included, changes nothing before it; nor do final values where nothing ended."""
    rollout = random_rollout()
    rollout["terminated"][5], rollout["truncated"][5] = True, False
    before, _ = estimate(rollout, 0.9, 0.95)
    rollout["reward"][6:], rollout["value"][6:], rollout["last_value"] = torch.nan, torch.nan, rollout["last_value"] * 0
    rollout["final_value"][~rollout["truncated"]] = torch.nan
    after, _ = estimate(rollout, 0.9, 0.95)
    assert torch.equal(after[:6], before[:6])


def test_stays_in_double_precision():
    """Masks must not lower the precision."""
    advantage, returns = estimate(random_rollout(), 0.9, 0.9)
    assert advantage.dtype == returns.dtype == DOUBLE


def test_discounts_count_control_steps_or_decisions():
    steps = torch.tensor([[5, 1, 3]])
    torch.testing.assert_close(make_discounts(steps, 0.9, "control_step"), torch.tensor([[0.9**5, 0.9, 0.9**3]]))
    torch.testing.assert_close(make_discounts(steps, 0.9, "decision"), torch.full((1, 3), 0.9))
    with pytest.raises(ValueError, match="per"):
        make_discounts(steps, 0.9, "second")


def test_reward_within_a_chunk():
    """Discounted within the chunk; what lies behind the executed steps is ignored, NaN included."""
    reward = torch.tensor([[[1.0, 2.0, 4.0], [1.0, torch.nan, torch.nan]]])
    steps = torch.tensor([[3, 1]])
    torch.testing.assert_close(discount_reward(reward, steps, 0.5), torch.tensor([[1 + 1 + 1.0, 1]]))
    torch.testing.assert_close(discount_reward(reward, steps, 1.0), torch.tensor([[7.0, 1]]))


def test_chunks_agree_with_single_steps():
    """γ per control step: at λ = 1 the return of chunks of three equals that of the same episode step by step."""
    reward = torch.randn(12, 1, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    single = torch.ones(12, 1, dtype=torch.int64)
    _, by_step = estimate(episode(reward, single), 0.9, 1.0)
    chunks, steps = reward.view(4, 1, 3), torch.full((4, 1), 3)
    _, by_chunk = estimate(episode(discount_reward(chunks, steps, 0.9), steps), 0.9, 1.0)
    torch.testing.assert_close(by_chunk, by_step[::3], rtol=1e-6, atol=1e-6)


def episode(reward: Tensor, steps: Tensor) -> dict[str, Tensor]:
    """One episode that terminates with its last decision, and a critic that says 0."""
    zero = torch.zeros_like(reward)
    terminated = zero.bool()
    terminated[-1] = True
    rollout = {"reward": reward, "value": zero, "final_value": zero, "last_value": zero[0], "steps": steps}
    return rollout | {"terminated": terminated, "truncated": zero.bool()}


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
