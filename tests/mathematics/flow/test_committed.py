"""Committed actions stand clean in the chunk, at a flow time of their own, without noise or score."""

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler, ode_sample
from embodied_rl.mathematics.flow.transition import Committed

H, D, F, K, ROWS = 5, 3, 8, 4, 33
KINDS = ("hybrid", "full", "noise")


class TimedPolicy(nn.Module):
    """Velocity and features of x and each action's time; the actions of a chunk depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(H * (D + 1), 32), nn.SiLU(), nn.Linear(32, H * F))
        self.out = nn.Linear(F, D)
        self.times: list[Tensor] = []

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        self.times.append(t)
        each = t.reshape(len(t), -1).expand(-1, H)
        features = self.trunk(torch.cat([x.flatten(1), each], 1)).view(-1, H, F)
        return self.out(features), features


def build(kind: str) -> Sampler:
    """A sampler; the noise head is moved off its start so that it depends on the features."""
    if kind != "noise":
        return FlowSDE(K, 0.5, layers=kind)
    sampler = FlowNoise(K, 0.08, 0.16, F, D)
    torch.manual_seed(1)
    nn.init.normal_(sampler.head[-1].weight, std=0.5)
    return sampler


def commit(rows: int = ROWS) -> Committed:
    """Rows with 0 … H - 1 committed actions; the other entries are NaN, which must not be read."""
    counts = torch.arange(rows) % H
    actions = torch.randn(rows, H, D, generator=torch.Generator().manual_seed(2))
    return Committed(torch.where((torch.arange(H) < counts[:, None])[..., None], actions, torch.nan), counts)


def commit_nothing(rows: int = ROWS) -> Committed:
    return Committed(torch.full((rows, H, D), torch.nan), torch.zeros(rows, dtype=torch.int64))


@torch.no_grad()
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_committed_actions_are_exact_at_every_step_and_have_no_score(kind: str, explore: bool, make_keys) -> None:
    policy, known = TimedPolicy(), commit()
    sample = build(kind).sample(policy, make_keys(ROWS), (H, D), explore, committed=known)
    assert torch.equal(sample.actions[known.mask], known.actions[known.mask])
    for name in ("x", "x_next"):
        states = sample.trace[name].transpose(1, 2)[known.mask]  # [entries, S, D]
        assert torch.equal(states, known.actions[known.mask][:, None].expand_as(states))
    assert sample.actions.isfinite().all() and not sample.log_prob[known.mask].any()
    assert sample.log_prob[~known.mask].all() == explore
    expected = torch.linspace(1, 0, K + 1)[:-1]
    for time, t in zip(expected, policy.times, strict=True):
        assert torch.equal(t, torch.where(known.mask, 0, time))


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_begin_at_one_with_committed_actions(kind: str, make_keys) -> None:
    policy, sampler = TimedPolicy(), build(kind)
    with torch.no_grad():
        sample = sampler.sample(policy, make_keys(ROWS), (H, D), explore=True, committed=commit())
    again = sampler.evaluate(policy, sample.trace)
    assert torch.equal((again.log_prob - sample.log_prob).exp(), torch.ones_like(sample.log_prob))
    assert torch.equal(again.features, sample.features)
    assert not again.entropy[commit().mask].any()
    again.log_prob.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in policy.parameters())


@torch.no_grad()
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_committed_is_the_plain_sampler_to_the_bit(kind: str, explore: bool, make_keys) -> None:
    policy, sampler = TimedPolicy(), build(kind)
    plain = sampler.sample(policy, make_keys(ROWS), (H, D), explore)
    empty = sampler.sample(policy, make_keys(ROWS), (H, D), explore, committed=commit_nothing())
    assert torch.equal(plain.actions, empty.actions) and torch.equal(plain.log_prob, empty.log_prob)
    assert torch.equal(plain.features, empty.features)
    assert all(t.shape == (ROWS,) for t in policy.times)
    again, traced = (sampler.evaluate(policy, each.trace) for each in (plain, empty))
    assert torch.equal(again.log_prob, traced.log_prob) and torch.equal(again.entropy, traced.entropy)


@torch.no_grad()
def test_rows_without_committed_actions_are_not_disturbed(make_keys) -> None:
    policy, keys = TimedPolicy(), make_keys(ROWS)
    plain = build("full").sample(policy, keys, (H, D), True)
    mixed = build("full").sample(policy, keys, (H, D), True, committed=commit())
    free = commit().counts == 0
    torch.testing.assert_close(mixed.actions[free], plain.actions[free])
    torch.testing.assert_close(mixed.log_prob[free], plain.log_prob[free])
    assert not torch.isclose(mixed.actions[~free][:, -1], plain.actions[~free][:, -1]).any()


@torch.no_grad()
def test_without_exploring_it_is_the_deterministic_policy(make_keys) -> None:
    policy, keys = TimedPolicy(), make_keys(ROWS)
    start = draw_normal(keys, NoiseStream.INITIAL, (H, D))
    for known in (commit(), commit_nothing()):
        expected = ode_sample(policy, start, K, known)
        assert torch.equal(build("hybrid").sample(policy, keys, (H, D), False, committed=known).actions, expected)
    assert torch.equal(ode_sample(policy, start, K, commit_nothing()), ode_sample(policy, start, K))


def coupled(theta: Tensor):
    """A velocity of two actions: the second follows the first, more so the later it is."""

    def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        own = t.reshape(len(t), -1).expand(-1, 2)[..., None]
        first = x[:, :1].expand_as(x)
        return theta[0] * x + theta[1] * torch.tanh(first) * (1 + own) + theta[2], x

    return velocity


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["hybrid", "full", "noise"])
def test_policy_gradients_given_a_prefix_are_those_of_the_deterministic_policy(kind: str, make_keys) -> None:
    """∇ E[R] by log-probabilities, R = -(a₂ - 1)², against the gradient through the noiseless chunk."""
    rows, keys = 20_000, make_keys(20_000)
    theta = torch.tensor([0.4, -0.6, 0.3], requires_grad=True)
    sampler = FlowNoise(K, 0.1, 0.1, 1, 1) if kind == "noise" else FlowSDE(K, 0.1, layers=kind)
    known = Committed(torch.full((rows, 2, 1), 0.8), torch.ones(rows, dtype=torch.int64))

    def reward(actions: Tensor) -> Tensor:
        return -(actions[:, 1, 0] - 1).square()

    with torch.no_grad():
        sample = sampler.sample(coupled(theta), keys, (2, 1), True, committed=known)
        baseline = reward(sampler.sample(coupled(theta), keys, (2, 1), False, committed=known).actions)
    joint = sampler.evaluate(coupled(theta), sample.trace).log_prob.sum((1, 2))
    found = torch.autograd.grad((joint * (reward(sample.actions) - baseline)).mean(), theta)[0]
    start = draw_normal(keys, NoiseStream.INITIAL, (2, 1))
    exact = torch.autograd.grad(reward(ode_sample(coupled(theta), start, K, known)).mean(), theta)[0]
    assert float(torch.cosine_similarity(found, exact, dim=0)) > 0.99
    steps = K if kind == "hybrid" else 1  # each row of it scores one step of K
    assert float(steps * found.norm() / exact.norm()) == pytest.approx(1, abs=0.1)
