"""Samplers: recomputation, the deterministic policy, step choice, the noise head, and the shapes of a trace."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler, ode_sample

H, D, F = 5, 3, 8


class TinyPolicy(nn.Module):
    """Velocity and features of x and t; attends over the chunk so that its entries interact."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(H * D + 1, 32), nn.SiLU(), nn.Linear(32, H * F))
        self.out = nn.Linear(F, D)

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(torch.cat([x.flatten(1), t[:, None]], 1)).view(-1, H, F)
        return self.out(features), features


def build(kind: str) -> Sampler:
    """A sampler; the noise head is moved off its start so that it depends on the features."""
    if kind != "noise":
        return FlowSDE(4, 0.5, layers=kind)
    sampler = FlowNoise(4, 0.08, 0.16, F, D)
    torch.manual_seed(1)
    nn.init.normal_(sampler.head[-1].weight, std=0.5)
    return sampler


KINDS = ("hybrid", "full", "noise")


@pytest.fixture
def policy() -> TinyPolicy:
    return TinyPolicy()


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_equals_recorded_bit_for_bit(kind, policy, make_keys):
    """Log-probabilities and features of a rollout and of the first update, so every ratio starts at exactly 1."""
    sampler = build(kind)
    sample = sampler.sample(policy, make_keys(33), (H, D), explore=True)
    again = sampler.evaluate(policy, sample.trace)
    assert torch.equal(again.log_prob, sample.log_prob)
    assert torch.equal(again.features, sample.features)
    assert sample.log_prob.abs().min() > 0


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_in_other_batches(kind, policy, make_keys):
    """Shuffled and split, as minibatches are: equal up to rounding."""
    sampler = build(kind)
    sample = sampler.sample(policy, make_keys(33), (H, D), explore=True)
    for rows in torch.randperm(33, generator=torch.Generator().manual_seed(0)).split(7):
        part = sampler.evaluate(policy, {name: value[rows] for name, value in sample.trace.items()})
        torch.testing.assert_close(part.log_prob, sample.log_prob[rows], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_level_is_the_trace_s_own(kind, policy, make_keys):
    """Annealing the sampler after a rollout changes the next rollout and no recorded ratio."""
    sampler = build(kind)
    before = sampler.sample(policy, make_keys(8), (H, D), explore=True)
    sampler.noise_level = 0.3 * sampler.noise_level
    assert torch.equal(sampler.evaluate(policy, before.trace).log_prob, before.log_prob)
    after = sampler.sample(policy, make_keys(8), (H, D), explore=True)
    assert torch.equal(sampler.evaluate(policy, after.trace).log_prob, after.log_prob)
    assert not torch.equal(after.actions, before.actions)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_without_exploration_it_is_the_ode(kind, policy, make_keys):
    """Bit-equal to the Euler loop from the same start, whatever the noise level and the noise head."""
    sampler, keys = build(kind), make_keys(8, seed=2)
    expected = ode_sample(policy, draw_normal(keys, NoiseStream.INITIAL, (H, D)), 4)
    sampler.noise_level = 3.0
    for parameter in sampler.parameters():
        parameter.fill_(torch.nan)
    sample = sampler.sample(policy, keys, (H, D), explore=False)
    assert torch.equal(sample.actions, expected)
    assert torch.equal(sample.log_prob, torch.zeros_like(sample.log_prob))


@torch.no_grad()
def test_ode_calls_the_velocity_at_the_k_times(make_keys):
    """t = 1, 1 - 1/K, …, 1/K; never 0. A constant velocity moves x by exactly that velocity."""
    seen = []

    def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(float(t[0]))
        return torch.full_like(x, 0.5), x

    x = torch.zeros(2, H, D)
    torch.testing.assert_close(ode_sample(velocity, x, 5), x - 0.5)
    assert seen == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    seen.clear()
    FlowSDE(5, 0.5).sample(velocity, make_keys(2), (H, D), explore=True)
    assert seen == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


@torch.no_grad()
def test_hybrid_disturbs_one_step_of_each_row(policy, make_keys):
    """Before its stochastic step a row follows the ODE, bit for bit; after it, the ODE from where the step led."""
    keys, sampler = make_keys(64), FlowSDE(4, 0.5)
    sample = sampler.sample(policy, keys, (H, D), explore=True)
    steps = sample.trace["step"][:, 0]
    assert set(steps.tolist()) == {0, 1, 2, 3}
    chain, x = [], draw_normal(keys, NoiseStream.INITIAL, (H, D))
    for k in range(4):
        here = steps == k
        chain.append(x)
        x = torch.where(
            here[:, None, None], sample.trace["x_next"][:, 0], x - 0.25 * policy(x, torch.full((64,), 1 - k / 4))[0]
        )
    assert torch.equal(torch.stack(chain, 1)[torch.arange(64), steps], sample.trace["x"][:, 0])
    assert torch.equal(x, sample.actions)


@torch.no_grad()
def test_step_weights_choose_the_steps(policy, make_keys):
    """Rows draw their own step, in proportion to the weights."""
    sampler = FlowSDE(4, 0.5, step_weights=(0, 0, 1, 2))
    steps = sampler.sample(policy, make_keys(3000), (H, D), explore=True).trace["step"]
    counts = torch.bincount(steps.flatten(), minlength=4)
    assert counts[:2].tolist() == [0, 0]
    assert float(counts[3]) / 3000 == pytest.approx(2 / 3, abs=0.04)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("explore", [True, False])
def test_trace_matches_its_specification(kind, explore, policy, make_keys):
    """Names, shapes and dtypes, for a buffer to allocate from; log-probabilities have the announced width."""
    sampler = build(kind)
    sample = sampler.sample(policy, make_keys(6), (H, D), explore=explore)
    actual = {name: (tuple(value.shape[1:]), value.dtype) for name, value in sample.trace.items()}
    assert actual == sampler.trace_spec(H, D)
    assert sample.log_prob.shape == (6, H, sampler.log_prob_width(D))
    assert sampler.log_prob_width(D) == (D if kind == "hybrid" else 4 * D)
    assert sample.features.shape == (6, H, F)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["full", "noise"])
def test_chain_log_prob_is_the_sum_of_its_transitions(kind, policy, make_keys):
    """Against torch.distributions, step by step; the chain is unbroken. The start's density is left out: it cancels in
    the ratio of two policies' joint densities of K + 1 terms."""
    sampler, keys = build(kind), make_keys(6)
    sample = sampler.sample(policy, keys, (H, D), explore=True)
    x, x_next = sample.trace["x"], sample.trace["x_next"]
    assert torch.equal(x[:, 1:], x_next[:, :-1])
    assert torch.equal(x[:, 0], draw_normal(keys, NoiseStream.INITIAL, (H, D)))
    assert torch.equal(x_next[:, -1], sample.actions)

    def joint() -> Tensor:
        """[6], of the whole chain under the policy as it is now."""
        terms = [Normal(0, 1).log_prob(x[:, 0])]
        for k in range(4):
            t = torch.full((6,), 1 - k / 4)
            v, features = policy(x[:, k], t)
            step = sampler.transition(x[:, k], v, features, t, sample.trace["noise_level"])
            terms.append(Normal(step.mean, step.std.expand_as(step.mean)).log_prob(x_next[:, k]))
        now = sampler.evaluate(policy, sample.trace).log_prob
        torch.testing.assert_close(now, torch.cat(terms[1:], dim=-1))
        return torch.stack(terms).sum((0, 2, 3))

    before = joint()
    policy.out.bias.add_(0.01)
    ratio = sampler.evaluate(policy, sample.trace).log_prob - sample.log_prob
    torch.testing.assert_close(ratio.sum((1, 2)), joint() - before, rtol=1e-3, atol=1e-4)
    assert float(ratio.abs().max()) > 1e-3


def test_noise_head_stays_within_its_bounds():
    """At extreme features too; at a zero output it is the geometric mean, with a gradient."""
    sampler = FlowNoise(4, 0.08, 0.16, F, D)
    features = torch.zeros(1, H, F, requires_grad=True)
    std = sampler.std(features)
    torch.testing.assert_close(std, torch.full((1, H, D), (0.08 * 0.16) ** 0.5))
    std.sum().backward()
    assert sampler.head[-1].bias.grad.abs().min() > 0
    nn.init.normal_(sampler.head[-1].weight, std=100.0)
    extreme = sampler.std(torch.randn(64, H, F, generator=torch.Generator().manual_seed(0)) * 1e3).detach()
    assert float(extreme.min()) == pytest.approx(0.08, rel=1e-5)
    assert float(extreme.max()) == pytest.approx(0.16, rel=1e-5)


def test_entropy_is_its_learnable_part(policy, make_keys):
    """Flow-Noise: the entropy of its Gaussians, with a gradient to the head. Flow-SDE: zero, its noise is fixed."""
    noise = build("noise")
    trace = noise.sample(policy, make_keys(6), (H, D), explore=True).trace
    entropy = noise.evaluate(policy, trace).entropy
    std = noise.std(policy(trace["x"][:, 2], torch.full((6,), 0.5))[1])
    torch.testing.assert_close(entropy[:, :, 2 * D : 3 * D], Normal(0, std).entropy())
    entropy.mean().backward()
    assert noise.head[-1].weight.grad.abs().max() > 0
    assert policy.trunk[0].weight.grad.abs().max() > 0
    for kind in ("hybrid", "full"):
        sampler = build(kind)
        trace = sampler.sample(policy, make_keys(6), (H, D), explore=True).trace
        evaluation = sampler.evaluate(policy, trace)
        assert torch.equal(evaluation.entropy, torch.zeros_like(evaluation.log_prob))


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_is_float32_under_autocast(kind, policy, make_keys):
    """A network in bfloat16 does not lower the precision of chains, densities or the noise head."""
    sampler = build(kind)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        sample = sampler.sample(policy, make_keys(6), (H, D), explore=True)
        again = sampler.evaluate(policy, sample.trace)
    for value in (sample.actions, sample.log_prob, sample.features, again.log_prob, again.entropy):
        assert value.dtype == torch.float32
    assert torch.equal(again.log_prob, sample.log_prob)
    if kind == "noise":
        with torch.autocast("cpu", torch.bfloat16):
            inside = sampler.std(sample.features)
        assert torch.equal(inside, sampler.std(sample.features))


@pytest.mark.parametrize("kind", KINDS)
def test_traces_drawn_without_exploration_teach_nothing(kind, policy, make_keys):
    """Their log-probability is 0 with a zero gradient, not NaN."""
    sampler = build(kind)
    with torch.no_grad():
        trace = sampler.sample(policy, make_keys(6), (H, D), explore=False).trace
    evaluation = sampler.evaluate(policy, trace)
    (evaluation.log_prob.sum() + evaluation.entropy.sum()).backward()
    assert torch.equal(evaluation.log_prob, torch.zeros_like(evaluation.log_prob))
    for parameter in policy.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"denoise_steps": 0}, "denoise_steps"),
        ({"noise_level": 0.0}, "noise_level"),
        ({"noise_level": float("nan")}, "noise_level"),
        ({"step_weights": (1, 1)}, "step_weights"),
        ({"step_weights": (1, 1, 1, -1)}, "step_weights"),
        ({"step_weights": (0, 0, 0, 0)}, "step_weights"),
        ({"step_weights": (1, 1, 1, 1), "layers": "full"}, "step_weights"),
        ({"layers": "both"}, "layers"),
    ],
)
def test_bad_settings_are_refused(settings, named):
    """The message names the setting."""
    with pytest.raises(ValueError, match=named):
        FlowSDE(**{"denoise_steps": 4, "noise_level": 0.5} | settings)


@pytest.mark.parametrize("bounds", [(0.0, 0.1), (0.2, 0.1)])
def test_bad_noise_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="std_min"):
        FlowNoise(4, *bounds, F, D)
