"""Transitions and densities against autograd of exact densities, other derivations and torch.distributions."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from embodied_rl.mathematics.flow.transition import (
    Transition,
    entropy,
    flow_noise_transition,
    flow_sde_transition,
    log_prob,
    make_time_grid,
    ode_step,
    sde_sigma,
)

DOUBLE = torch.float64


def random_states(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, *shape, generator=generator, dtype=DOUBLE)
    return x, v


@pytest.mark.parametrize("time", [0.05, 0.3, 0.7, 0.99])
def test_drift_correction_is_the_score(mixture, time):
    """What Flow-SDE adds to the Euler step is σ² δ / 2 times the gradient of the exact log-density."""
    x = torch.linspace(-2, 2, 41, dtype=DOUBLE, requires_grad=True)
    t, delta = torch.full_like(x, time), 0.01
    (score,) = torch.autograd.grad(mixture.log_density(x, t).sum(), x)
    x = x.detach()
    v = mixture.velocity(x, t)
    added = flow_sde_transition(x, v, t, delta, 0.5).mean - ode_step(x, v, delta)
    sigma = sde_sigma(t, delta, 0.5)
    torch.testing.assert_close(added / (sigma**2 * delta / 2), score, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("denoise_steps", [1, 3, 4, 10])
def test_agrees_with_the_weights_form(denoise_steps):
    """mean = (1 - s) x̂₀ + (s - σ² δ / 2t) x̂₁ with x̂₀ = x - t v and x̂₁ = x + (1 - t) v, s = t - δ."""
    x, v = random_states(denoise_steps, 5, 3)
    t, delta = make_time_grid(denoise_steps).double()[:-1], 1 / denoise_steps
    step = flow_sde_transition(x, v, t, delta, 0.5)
    for k, time in enumerate(t.tolist()):
        sigma = 0.5 * math.sqrt(time / (1 - (1 - delta if k == 0 else time)))
        s = time - delta
        clean, noise = x[k] - time * v[k], x[k] + (1 - time) * v[k]
        mean = (1 - s) * clean + (s - sigma**2 * delta / (2 * time)) * noise
        torch.testing.assert_close(step.mean[k], mean, rtol=0, atol=1e-6)
        assert float(step.std[k]) == pytest.approx(sigma * math.sqrt(delta), rel=1e-6)


def test_agrees_with_the_form_in_rising_time():
    """With τ = 1 - t and v_τ = -v: A + δ [v_τ - σ² / (2 (1 - τ)) (A - τ v_τ)], σ = a √((1 - τ) / τ)."""
    x, v = random_states(3, 2, 2)
    for tau in (0.1, 0.5, 0.9):
        sigma, v_tau = 0.5 * math.sqrt((1 - tau) / tau), -v
        expected = x + 0.1 * (v_tau - sigma**2 / (2 * (1 - tau)) * (x - tau * v_tau))
        actual = flow_sde_transition(x, v, torch.tensor(1 - tau, dtype=DOUBLE), 0.1, 0.5).mean
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def gaussian_law(denoise_steps: int, noise_level: float, mean: float, std: float) -> tuple[float, float]:
    """Mean and standard deviation of x₀ when the target is N(mean, std²): affine steps, so no sampling is needed."""
    t_all, delta = make_time_grid(denoise_steps).double(), 1 / denoise_steps
    probe = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    centre, variance = 0.0, 1.0
    for t in t_all[:-1]:
        posterior = mean + (1 - t) * std**2 * (probe - (1 - t) * mean) / (t**2 + (1 - t) ** 2 * std**2)
        step = flow_sde_transition(probe, (probe - posterior) / t, t, delta, noise_level)
        slope = float(step.mean[1] - step.mean[0])
        centre, variance = float(step.mean[0]) + slope * centre, slope**2 * variance + float(step.std**2)
    return centre, math.sqrt(variance)


@pytest.mark.parametrize("noise_level", [0.0, 0.5, 1.0])
def test_gaussian_target_without_sampling(noise_level):
    """The mean is exact at any K, the standard deviation in the limit."""
    for denoise_steps in (1, 4, 50):
        assert gaussian_law(denoise_steps, noise_level, 0.5, 0.3)[0] == pytest.approx(0.5, abs=1e-6)
    assert gaussian_law(1000, noise_level, 0.5, 0.3)[1] == pytest.approx(0.3, abs=1e-3)


def test_ode_error_is_of_first_order():
    """The ODE's error in the standard deviation halves when K doubles."""
    errors = [abs(gaussian_law(k, 0.0, 0.5, 0.3)[1] - 0.3) for k in (50, 100, 200)]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("denoise_steps", [1, 2, 4, 50])
def test_low_precision_inputs_are_computed_in_float32(denoise_steps, dtype):
    """First and last step are finite, and equal to the float32 result for the same values."""
    x, v = (part.to(dtype) for part in random_states(1, 4, 2))
    for k in {0, denoise_steps - 1}:
        t = make_time_grid(denoise_steps)[k].repeat(1)
        step = flow_sde_transition(x, v, t, 1 / denoise_steps, 0.5)
        exact = flow_sde_transition(x.float(), v.float(), t, 1 / denoise_steps, 0.5)
        assert step.mean.dtype == step.std.dtype == torch.float32
        assert torch.isfinite(step.mean).all()
        assert torch.equal(step.mean, exact.mean)
        assert float(step.std) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_entropy_of_a_low_precision_spread_is_computed_in_float32(dtype):
    """Against torch.distributions; bfloat16 has eight bits, and would miss it by 1e-2."""
    std = torch.tensor([0.03, 0.3, 3.0]).to(dtype)
    assert entropy(std).dtype == torch.float32
    torch.testing.assert_close(entropy(std), Normal(0.0, std.float()).entropy())


def test_each_row_has_its_own_time_and_level():
    """A batch of mixed steps equals its rows one by one; level 0 is the Euler step, bit for bit."""
    x, v = random_states(4, 5, 3)
    t, level = make_time_grid(4).double()[:-1], torch.tensor([0.5, 0.0, 0.3, 0.0], dtype=DOUBLE)
    step = flow_sde_transition(x, v, t, 0.25, level)
    for row in range(4):
        alone = flow_sde_transition(x[row : row + 1], v[row : row + 1], t[row : row + 1], 0.25, float(level[row]))
        assert torch.equal(step.mean[row], alone.mean[0])
        assert torch.equal(step.std[row], alone.std[0])
    assert torch.equal(step.mean[1::2], ode_step(x, v, 0.25)[1::2])


def test_flow_noise_is_an_euler_step_with_the_given_spread():
    """No drift correction, whatever the spread."""
    x, v = random_states(2, 3, 2)
    std = v.abs() + 0.1
    step = flow_noise_transition(x, v, 0.25, std)
    assert torch.equal(step.mean, x - 0.25 * v)
    assert torch.equal(step.std, std)


def test_densities_and_entropy_are_those_of_torch_distributions():
    """Elementwise, with a standard deviation per element and per row."""
    x, mean = random_states(3, 4, 2)
    for std in (random_states(3, 4, 2)[1].abs() + 0.05, torch.tensor([0.1, 0.5, 2.0], dtype=DOUBLE)[:, None, None]):
        reference = Normal(mean, std.expand_as(mean))
        torch.testing.assert_close(log_prob(x, Transition(mean, std)), reference.log_prob(x), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(entropy(std).expand_as(mean), reference.entropy(), rtol=1e-13, atol=1e-13)


def test_noiseless_rows_have_no_density_and_no_gradient():
    """0 rather than infinity or NaN, forwards and backwards; the noisy row is unaffected."""
    mean = torch.zeros(2, 1, 1, requires_grad=True)
    std = torch.tensor([0.0, 0.5])[:, None, None].requires_grad_()
    density = log_prob(torch.ones(2, 1, 1), Transition(mean, std))
    (density.sum() + entropy(std).sum()).backward()
    assert density[0] == 0
    assert mean.grad.flatten().tolist() == pytest.approx([0, 1 / 0.25])
    assert std.grad.flatten().tolist() == pytest.approx([0, (-1 / 0.5 + 1 / 0.5**3) + 1 / 0.5])


def test_log_prob_gradients_match_finite_differences():
    """With respect to the sample, the mean and the standard deviation."""
    x, mean = random_states(2, 2, 2)
    std = mean.abs() + 0.2
    inputs = [part.clone().requires_grad_() for part in (x, mean, std)]
    assert torch.autograd.gradcheck(lambda x, mean, std: log_prob(x, Transition(mean, std)), inputs)


@pytest.mark.parametrize("denoise_steps", range(1, 51))
def test_times_run_from_noise_to_action(denoise_steps):
    """K + 1 evenly spaced times to the last bit of float32, as lerobot computes them."""
    exact = [1.0 + k * (-1.0 / denoise_steps) for k in range(denoise_steps)]
    assert torch.equal(make_time_grid(denoise_steps), torch.tensor([*exact, 0.0], dtype=torch.float64).float())


@pytest.mark.parametrize("noise_level", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("denoise_steps", [1, 2, 3, 4, 10, 100])
def test_first_step_has_standard_deviation_a(denoise_steps, noise_level):
    """σ √δ at t = 1 is the noise level for any K, K = 1 included."""
    delta = 1 / denoise_steps
    sigma = sde_sigma(torch.tensor(1.0), delta, noise_level)
    assert float(sigma) * math.sqrt(delta) == pytest.approx(noise_level, rel=1e-6)


@pytest.mark.parametrize("denoise_steps", [2, 3, 4, 5, 10, 100])
def test_later_steps_follow_the_schedule(denoise_steps):
    """a √(t / (1 - t)) untouched by the clamp after the first step, positive at the last one."""
    for k in range(1, denoise_steps):
        t = 1 - k / denoise_steps
        sigma = sde_sigma(make_time_grid(denoise_steps)[k], 1 / denoise_steps, 0.7)
        assert float(sigma) == pytest.approx(0.7 * math.sqrt(t / (1 - t)), rel=1e-5)
        assert sigma > 0
