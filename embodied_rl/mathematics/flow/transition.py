"""A denoise step as a Gaussian transition x_t → x_{t-δ}, its log-density, and committed actions, which do not move.

Inputs below float32 are computed in float32 (bfloat16 is too imprecise for σ² and the division by t); float64 stays.
Row values (`t`, `noise_level`) are [n] or scalars and broadcast over the trailing axes of x [n, H, D].

Shapes: n rows, H predicted actions, D action dimensions of the model.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def make_time_grid(denoise_steps: int, device: torch.device | str = "cpu") -> Tensor:
    """Make times float32 [K + 1] from 1 to 0; step k goes from entry k to k + 1, and t = 0 is never evaluated.

    Each is 1 - k / K, rounded once: time embeddings multiply an error of t by up to 2π / 0.004, and what `linspace`
    gives in float32 depends on the processor.
    """
    return torch.linspace(1, 0, denoise_steps + 1, dtype=torch.float64, device=device).float()


def sde_sigma(t: Tensor, delta: float, noise_level: Tensor | float) -> Tensor:
    """Compute σ = a √(t / (1 - t)), the diffusion of Flow-SDE (Flow-GRPO, arXiv 2505.05470; π_RL, arXiv 2510.25889).

    At t = 1, where σ diverges, 1 - t is replaced by `delta` = 1 / K, so the first step's standard deviation is a for
    any K. `noise_level`: a, broadcasts against t in (0, 1].
    """
    return noise_level * torch.sqrt(t / (1 - t).clamp(min=delta))


LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Transition:
    """A Gaussian with independent entries; `std` broadcasts against `mean` [n, H, D] and may be zero (no noise)."""

    mean: Tensor
    std: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        return self.mean + self.std * noise


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def per_row(value: Tensor | float, like: Tensor) -> Tensor:
    """Reshape [n] to [n, 1, …, 1] with as many axes as `like`; a scalar becomes a tensor."""
    rows = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return rows.reshape(-1, *[1] * (like.dim() - 1)) if rows.dim() else rows


def ode_step(x: Tensor, v: Tensor, delta: float) -> Tensor:
    """Compute the Euler step x - δ v."""
    return at_least_float32(x) - delta * at_least_float32(v)


def flow_sde_transition(
    x: Tensor, v: Tensor, t: Tensor | float, delta: float, noise_level: Tensor | float
) -> Transition:
    """Return a step of the stochastic process with the ODE's marginals; noise level 0 gives the exact Euler step.

    With the score -(x + (1 - t) v) / t, the process dx = [v + σ² / (2t) (x + (1 - t) v)] dt + σ dw keeps the
    distribution of x_t at every t. This is Flow-GRPO's form; π_RL's equations (7)-(9) are printed for time in the
    opposite direction and do not keep the distribution. x and v are [n, H, D], δ = `delta` = 1 / K; t in (0, 1] and
    a = `noise_level` are [n] or scalars.
    """
    x, v = at_least_float32(x), at_least_float32(v)
    t = per_row(t, x)
    sigma = sde_sigma(t, delta, per_row(noise_level, x))
    correction = sigma.square() * (delta / 2) / t
    return Transition(ode_step(x, v, delta) - correction * (x + (1 - t) * v), sigma * math.sqrt(delta))


def flow_noise_transition(x: Tensor, v: Tensor, delta: float, std: Tensor) -> Transition:
    """Return an Euler step plus noise of the learned `std` [n, H, D]: another policy, so there is no correction.

    ReinFlow, arXiv 2505.22094; π_RL, arXiv 2510.25889.
    """
    return Transition(ode_step(x, v, delta), at_least_float32(std))


def log_prob(x_next: Tensor, transition: Transition) -> Tensor:
    """Compute the elementwise Gaussian log-density of `x_next`; 0, with no gradient, where the step had no noise."""
    noisy = transition.std > 0
    std = torch.where(noisy, transition.std, 1)
    deviation = (at_least_float32(x_next) - transition.mean) / std
    density = -0.5 * deviation.square() - torch.log(std) - 0.5 * LOG_TWO_PI
    return torch.where(noisy, density, 0)


def entropy(std: Tensor) -> Tensor:
    """Compute the elementwise entropy ½ log(2πe std²) in nats; 0 where the step had no noise."""
    std = at_least_float32(std)
    noisy = std > 0
    return torch.where(noisy, torch.log(torch.where(noisy, std, 1)) + 0.5 * (1 + LOG_TWO_PI), 0)


@dataclass(frozen=True)
class Committed:
    """The first actions of n chunks, already fixed, as policies that are trained on them take them (arXiv:2512.05964).

    A robot that acts during inference executes the first actions of the new chunk before the chunk is there. They stand
    clean in the chunk from the first denoise step on, at a flow time of their own, 0; they get no noise and no score.

    Attributes:
        actions: float32 [n, H, D], x₀ of the committed actions; the other entries are not read.
        counts: int64 [n], how many of a row's first actions are committed.
    """

    actions: Tensor
    counts: Tensor

    def to(self, device: torch.device | str) -> "Committed":
        """Return the same on `device`."""
        return Committed(self.actions.to(device), self.counts.to(device))

    @cached_property
    def mask(self) -> Tensor:
        """Return bool [n, H], True for committed actions."""
        return torch.arange(self.actions.shape[1], device=self.counts.device) < self.counts[:, None]

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no row has a committed action: the sampler then is the plain one, to the bit."""
        return not bool(self.counts.any())

    def hold(self, x: Tensor) -> Tensor:
        """Return x [n, H, D] with the committed actions in their places."""
        return torch.where(self.mask[..., None], self.actions, x)

    def select_following(self, values: Tensor, count: int) -> Tensor:
        """Return the first `count` entries after each row's committed actions, [n, H, …] → [n, count, …]."""
        places = self.counts[:, None] + torch.arange(count, device=values.device)
        return values[torch.arange(len(values), device=values.device)[:, None], places]


def give_times(committed: Committed | None, t: Tensor) -> Tensor:
    """Return the flow time of each action, [n, H], from that of the rows, t [n]; t itself where nothing is held."""
    return t if committed is None or committed.is_empty else torch.where(committed.mask, 0, t[:, None])


def freeze(committed: Committed | None, x: Tensor, transition: Transition) -> Transition:
    """Return the transition from x [n, H, D], without motion and noise, and so without a score, of what is held."""
    if committed is None:
        return transition
    mask = committed.mask[..., None]
    return Transition(torch.where(mask, x, transition.mean), torch.where(mask, 0, transition.std))
