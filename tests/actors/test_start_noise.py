"""The policy over a flow's start noise: its density, its start, and what the flow makes of it."""

from collections.abc import Callable
from math import log

import numpy as np
import pytest
import torch
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.start_noise import StartNoise, StartNoiseSettings, find_plain_std
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import ode_sample
from tests.support.stored_actions import observe
from tests.support.two_modes import TwoModes, steer

Make = Callable[..., FlowActor]


def attach(actor: FlowActor, **settings) -> StartNoise:
    """Give an actor a policy over start noise none of whose weights is zero."""
    made = StartNoise(StartNoiseSettings(**settings), actor.network.spec)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    actor.start_noise = made
    return made


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_its_density_is_that_of_torch(bound: float) -> None:
    made = StartNoise(StartNoiseSettings(bound, shared=False, hidden=8), TwoModes().spec)
    torch.nn.init.normal_(made.head.weight)
    pooled, noise = torch.randn(50, 2), torch.randn(50, 2)
    drawn, log_prob = made.draw(pooled, noise)
    mean, log_std = (each.double() for each in made(pooled))
    parts = [TanhTransform(), AffineTransform(0, bound)]
    plain = Independent(Normal(mean, log_std.exp()), 1)
    inner = mean + log_std.exp() * noise.double()
    expected = TransformedDistribution(plain, parts)
    assert torch.allclose(drawn.double(), bound * inner.tanh(), atol=1e-6)
    near = (inner.abs() < 4).all(dim=1)  # beyond, the inverse of tanh is inexact even so
    assert near.sum() > 20
    assert torch.allclose(log_prob.double()[near], expected.log_prob(bound * inner.tanh())[near], atol=1e-4)
    assert torch.isfinite(made.draw(pooled, 1000 * noise)[1]).all()


@pytest.mark.parametrize("bound", [1.8, 2.0, 3.0])
def test_a_new_one_has_the_spread_of_the_plain_noise_and_its_mean(bound: float) -> None:
    made = StartNoise(StartNoiseSettings(bound), TwoModes().spec)
    drawn, _ = made.draw(torch.randn(20_000, 2), torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)))
    assert float(drawn.detach().std()) == pytest.approx(1, abs=0.03) and drawn.abs().max() <= bound
    assert made.find_centre(torch.randn(3, 2)).tolist() == [[0.0]] * 3


def test_a_narrow_bound_gets_the_widest_start() -> None:
    assert find_plain_std(0.5) == pytest.approx(1.0)
    assert made_log_std(0.5) == pytest.approx(0.0)


def made_log_std(bound: float) -> float:
    made = StartNoise(StartNoiseSettings(bound), TwoModes().spec)
    return float(made(torch.zeros(1, 2))[1])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_the_flow_starts_from_it(make_actor: Make, observe, keys, sampler: str, shared: bool) -> None:
    """To the bit, exploring and deployed; nothing else is drawn."""
    actor = make_actor(sampler, critic="prefix")
    made, seen = attach(actor, shared=shared, hidden=8), observe(5)
    with torch.no_grad():
        context = actor.encode_kept(actor.keep_observation(seen))
        for explore in (True, False):
            decision = actor.act(seen, keys(5), explore=explore)
            noise = decision.trace["start_noise"]
            start = made.expand(noise)
            assert start.shape == (5, 4, 4) and (not shared or torch.equal(start[:, 0], start[:, 3]))
            chunk = ode_sample(actor._velocity(context), start, 3)
            assert torch.equal(decision.trace["actions"], chunk[:, :2])
            assert not decision.log_prob.any()
        epsilon = draw_normal(keys(5), NoiseStream.INITIAL, (made.size,))
        assert torch.equal(
            actor.act(seen, keys(5), explore=True).trace["start_noise"], made.draw(context.pooled, epsilon)[0]
        )
        assert torch.equal(decision.trace["start_noise"], made.find_centre(context.pooled))
    for given in (None, keys(5)):
        assert np.array_equal(actor.infer(seen, given), decision.actions)
    assert actor.trace_spec()["start_noise"] == ((made.size,), torch.float32)


def test_warm_up_is_the_plain_policy(make_actor: Make, observe, keys) -> None:
    """To the bit, where each action has noise of its own."""
    actor = make_actor(critic="prefix")
    plain = actor.act(observe(5), keys(5), explore=False).actions
    attach(actor, shared=False)
    assert actor.exploration()["plain_start"] == 0
    actor.explore_with({"plain_start": 1.0, "noise_level": 0.4})
    assert actor.exploration() == {"noise_level": 0.4, "plain_start": 1.0}
    assert np.array_equal(actor.act(observe(5), keys(5), explore=True).actions, plain)
    deployed = actor.act(observe(5), keys(5), explore=False).actions
    assert np.array_equal(deployed, actor.infer(observe(5))) and not np.array_equal(deployed, plain)


def test_rows_do_not_depend_on_their_batch() -> None:
    actor, rows = steer(), np.arange(40)
    whole = actor.act(observe(40), NoiseKeys(3, rows, rows), explore=True)
    part = actor.act(observe(3), NoiseKeys(3, rows[7:10], rows[7:10]), explore=True)
    assert torch.equal(part.trace["start_noise"], whole.trace["start_noise"][7:10])
    assert len(set(whole.trace["start_noise"].flatten().tolist())) == 40


def test_it_alone_is_trained_with_a_frozen_network() -> None:
    actor = steer()
    assert actor.start_noise is not None
    mine = [id(parameter) for parameter in actor.start_noise.parameters()]
    assert [id(parameter) for parameter in actor.parameter_groups()["actor"]] == mine


def test_committed_actions_are_continued_from_it(make_actor: Make, observe) -> None:
    actor = make_actor(critic="prefix")
    actor.backbone.prefix_trained_to = 2
    attach(actor, bound=1.0)
    prefix = np.full((5, 1, 3), 0.05, np.float32)
    chunk = actor.infer(observe(5), None, prefix)
    assert np.array_equal(chunk[:, :1], prefix) and not np.array_equal(chunk, actor.infer(observe(5)))


def test_the_density_of_uniform_noise() -> None:
    """An entropy of the plain noise lies below that of uniform noise in the bound."""
    made = StartNoise(StartNoiseSettings(2.0), TwoModes().spec)
    _, log_prob = made.draw(torch.zeros(10_000, 2), torch.randn(10_000, 1, generator=torch.Generator().manual_seed(0)))
    assert 1.2 < -float(log_prob.mean()) < log(4)
