"""Policy gradients of the samplers against exact gradients, on a flow of five parameters and a smooth reward."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler, ode_sample
from embodied_rl.mathematics.flow.transition import flow_sde_transition

K, ROWS, SHAPE = 4, 20_000, (1, 1)
START = (-0.6, 0.4, 0.3, -0.5, 0.2)


def field(parameters: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A velocity that is nonlinear in x and depends on t; its features are x."""

    def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        t = t[:, None, None]
        bias, slope, time, bend, mixed = parameters
        return bias + slope * x + time * t + bend * torch.tanh(2 * x) + mixed * x * t, x

    return velocity


def parameters(offset: float = 0.0) -> Tensor:
    return (torch.tensor(START) + offset).requires_grad_()


def reward(actions: Tensor) -> Tensor:
    """[n], smooth."""
    return -(actions[:, 0, 0] - 1).square()


def likelihood_ratio_gradient(sampler: Sampler, theta: Tensor, keys, behaviour: Tensor | None = None) -> Tensor:
    """∇ E[R] from log-probabilities; the ODE's reward from the same start is the baseline.

    Where `behaviour` drew the samples, they are weighted by their importance.
    """
    drawn = theta if behaviour is None else behaviour
    with torch.no_grad():
        sample = sampler.sample(field(drawn), keys, SHAPE, explore=True)
        baseline = reward(sampler.sample(field(theta), keys, SHAPE, explore=False).actions)
    joint = sampler.evaluate(field(theta), sample.trace).log_prob.sum((1, 2))
    importance = (joint.detach() - sample.log_prob.sum((1, 2))).exp()
    surrogate = importance * joint * (reward(sample.actions) - baseline)
    return torch.autograd.grad(surrogate.mean(), theta)[0]


def assert_same_direction(estimate: Tensor, exact: Tensor, cosine: float, ratio: float) -> None:
    assert float(torch.cosine_similarity(estimate, exact, dim=0)) > cosine
    assert float(estimate.norm() / exact.norm()) == pytest.approx(1, abs=ratio)


@pytest.mark.thorough
def test_expected_score_is_zero(make_keys):
    """E[∇ log π] = 0, within 4.5 standard errors over batches."""
    for sampler in (FlowSDE(K, 0.5), FlowSDE(K, 0.5, layers="full"), FlowNoise(K, 0.1, 0.2, 1, 1)):
        theta, batches = parameters(), []
        for decision in range(40):
            with torch.no_grad():
                trace = sampler.sample(field(theta), make_keys(500, decision=decision), SHAPE, explore=True).trace
            joint = sampler.evaluate(field(theta), trace).log_prob.sum((1, 2))
            batches.append(torch.autograd.grad(joint.mean(), theta)[0])
        scores = torch.stack(batches)
        error = scores.std(0) / len(scores) ** 0.5
        assert (scores.mean(0).abs() < 4.5 * error).all()


def test_joint_gradient_is_the_pathwise_gradient(make_keys):
    """Flow-SDE at every step: the gradient from log-probabilities equals that through the reparameterised chain."""
    theta, keys, sampler = parameters(), make_keys(ROWS), FlowSDE(K, 0.3, layers="full")
    x = draw_normal(keys, NoiseStream.INITIAL, SHAPE)
    noise = draw_normal(keys, NoiseStream.INJECTED, (K, *SHAPE))
    for k in range(K):
        t = torch.full((ROWS,), 1 - k / K)
        x = flow_sde_transition(x, field(theta)(x, t)[0], t, 1 / K, 0.3).draw(noise[:, k])
    exact = torch.autograd.grad(reward(x).mean(), theta)[0]
    assert_same_direction(likelihood_ratio_gradient(sampler, theta, keys), exact, cosine=0.99, ratio=0.1)


@pytest.mark.parametrize("noise_level", [0.05, 0.2])
def test_hybrid_gradient_is_the_deployed_policy_s(noise_level, make_keys):
    """K times the hybrid gradient tends to the exact gradient of the ODE's reward: what is trained is what is run."""
    theta, keys = parameters(), make_keys(ROWS)
    actions = ode_sample(field(theta), draw_normal(keys, NoiseStream.INITIAL, SHAPE), K)
    exact = torch.autograd.grad(reward(actions).mean(), theta)[0]
    estimate = K * likelihood_ratio_gradient(FlowSDE(K, noise_level), theta, keys)
    assert_same_direction(estimate, exact, cosine=0.99, ratio=0.1)


def test_uneven_steps_weigh_their_gradients(make_keys):
    """With weights w the estimate is Σ w_k g_k of the steps' own gradients g_k, which only `step_weights` can tell."""
    theta, keys = parameters(), make_keys(ROWS)
    alone = [
        likelihood_ratio_gradient(FlowSDE(K, 0.2, step_weights=tuple(torch.eye(K)[k].tolist())), theta, keys)
        for k in (2, 3)
    ]
    weighted = likelihood_ratio_gradient(FlowSDE(K, 0.2, step_weights=(0, 0, 1, 2)), theta, keys)
    assert_same_direction(weighted, (alone[0] + 2 * alone[1]) / 3, cosine=0.99, ratio=0.1)


def test_stale_samples_give_the_on_policy_gradient(make_keys):
    """Weighted by their importance, whole chains of an older policy give the present policy's gradient."""
    theta, old, keys = parameters(), parameters(offset=0.05).detach(), make_keys(ROWS)
    sampler = FlowSDE(K, 0.3, layers="full")
    on_policy = likelihood_ratio_gradient(sampler, theta, keys)
    assert_same_direction(likelihood_ratio_gradient(sampler, theta, keys, old), on_policy, cosine=0.99, ratio=0.1)
