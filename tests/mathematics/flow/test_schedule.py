"""Flow times and the noise schedule against closed forms."""

import math

import pytest
import torch

from embodied_rl.mathematics.flow.transition import make_time_grid, sde_sigma


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
