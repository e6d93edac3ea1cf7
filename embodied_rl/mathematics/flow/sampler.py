"""Draw action chunks from a velocity field so that log-probabilities can be recomputed with gradients.

Shapes: n rows, K denoise steps, S stochastic ones (1 or K), H predicted actions, D action dimensions of the model, F
width of the features. Log-probabilities are [n, H, S·D]: entry s·D + d is dimension d at the s-th stochastic step. They
omit log N(x₁; 0, 1) of the start, which cancels in every ratio.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Literal

import torch
from torch import Tensor, nn

from embodied_rl.mathematics.flow.noise import Keys, NoiseStream, as_choice, as_normal, draw_words
from embodied_rl.mathematics.flow.transition import (
    Committed,
    Transition,
    entropy,
    flow_noise_transition,
    flow_sde_transition,
    freeze,
    give_times,
    log_prob,
    make_time_grid,
    ode_step,
    per_row,
)

Velocity = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""x float32 [n, H, D], t float32 [n] or [n, H] → velocity [n, H, D], features [n, H, F]."""


@dataclass
class Sample:
    """A drawn action chunk.

    Attributes:
        actions: float32 [n, H, D], x₀, unclipped.
        trace: input of `Sampler.evaluate`: "step" int64 [n, S]; "x" and "x_next" float32 [n, S, H, D], before and
            after those steps; "noise_level" float32 [n], 0 if the chunk was drawn without exploration; "committed"
            int64 [n], where `sample` was given committed actions: how many there are. The actions are those of "x".
        log_prob: float32 [n, H, S·D]; 0 without exploration, and for committed actions.
        features: float32 [n, H, F], averaged over the S stochastic steps, as in `Sampler.evaluate`.
    """

    actions: Tensor
    trace: dict[str, Tensor]
    log_prob: Tensor
    features: Tensor


@dataclass
class SampleEvaluation:
    """A sample recomputed under the current weights; see `Sample`.

    The entropy is 0 where the noise is fixed. Mean and standard deviation of the stochastic steps have the shape of
    `log_prob`.
    """

    log_prob: Tensor
    entropy: Tensor
    features: Tensor
    mean: Tensor
    std: Tensor


def ode_sample(velocity: Velocity, x: Tensor, denoise_steps: int, committed: Committed | None = None) -> Tensor:
    """Integrate the deterministic policy: K Euler steps from x₁ [n, H, D] to x₀ [n, H, D].

    Committed actions are given to the policy, which must be trained on that, and come back to the bit. See
    `embodied_rl.mathematics.flow.continuation` for other policies.
    """
    x = x if committed is None else committed.hold(x)
    for t in make_time_grid(denoise_steps, x.device)[:-1]:
        v, _ = velocity(x, give_times(committed, t.repeat(len(x))))
        x = ode_step(x, v, 1 / denoise_steps)
        x = x if committed is None else committed.hold(x)
    return x


class Sampler(nn.Module, ABC):
    """A sampler with K denoise steps, of which S are stochastic and have a log-probability.

    Attributes:
        denoise_steps: K.
        step_weights: float64 [K], weights by which each row draws its one stochastic step; None: all K are stochastic.
        noise_level: scale of the noise; may be set between rollouts, as a trace keeps its level.
    """

    def __init__(self, denoise_steps: int, noise_level: float) -> None:
        super().__init__()
        if denoise_steps < 1:
            raise ValueError(f"denoise_steps must be at least 1, got {denoise_steps}")
        self.denoise_steps = denoise_steps
        self.step_weights: Tensor | None = None
        self.noise_level = noise_level

    @property
    def noise_level(self) -> float:
        return self._noise_level

    @noise_level.setter
    def noise_level(self, level: float) -> None:
        if not level > 0:
            raise ValueError(f"noise_level must be positive, got {level}: without noise there is nothing to learn from")
        self._noise_level = float(level)

    @property
    def delta(self) -> float:
        """Return the step length in flow time."""
        return 1 / self.denoise_steps

    @property
    def stochastic_steps(self) -> int:
        """Return S, the number of stochastic steps."""
        return self.denoise_steps if self.step_weights is None else 1

    @abstractmethod
    def transition(self, x: Tensor, v: Tensor, features: Tensor, t: Tensor, noise_level: Tensor) -> Transition:
        """Return the transition from x [n, H, D] at t [n]; rows with noise level 0 take the Euler step."""

    @abstractmethod
    def step_entropy(self, transition: Transition) -> Tensor:
        """Compute the elementwise learnable part of the entropy, in the shape of `transition.mean`."""

    def log_prob_width(self, action_dim: int) -> int:
        """Return S·D, the width of log-probabilities."""
        return self.stochastic_steps * action_dim

    def trace_spec(
        self, horizon: int, action_dim: int, committed: bool = False
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of one row of each entry of `Sample.trace`, of samples with `committed` or without."""
        chain = ((self.stochastic_steps, horizon, action_dim), torch.float32)
        return ({"committed": ((), torch.int64)} if committed else {}) | {
            "step": ((self.stochastic_steps,), torch.int64),
            "x": chain,
            "x_next": chain,
            "noise_level": ((), torch.float32),
        }

    def sample(
        self,
        velocity: Velocity,
        keys: Keys,
        shape: tuple[int, int],
        explore: bool,
        device: torch.device | str = "cpu",
        committed: Committed | None = None,
        start: Tensor | None = None,
    ) -> Sample:
        """Draw one chunk for each row. Keeps the autograd graph unless the caller disables gradients.

        Args:
            velocity: velocity field of the policy, with the context of the n rows.
            keys: keys that determine the noise.
            shape: (H, D).
            explore: False gives `ode_sample` from the same x₁, bit for bit, independent of the noise.
            device: device of the velocity field.
            committed: actions that are given to the policy, at a flow time of 0.
            start: x₁ float32 [n, H, D]; None draws it.
        """
        size = shape[0] * shape[1]
        counts = {NoiseStream.INITIAL: size}
        if self.step_weights is not None:
            counts[NoiseStream.STEP] = 1
        if explore:
            counts[NoiseStream.INJECTED] = self.stochastic_steps * size
        words = draw_words(keys, counts)
        drawn = as_normal(words[NoiseStream.INITIAL]).reshape(len(keys.episode), *shape)
        x = (drawn if start is None else start).to(device)
        steps = torch.arange(self.denoise_steps).repeat(len(x), 1)
        if self.step_weights is not None:
            steps = as_choice(words[NoiseStream.STEP], self.step_weights)
        steps, noise = steps.to(device), None
        if explore:  # [n, K, H, D], equal over K with one stochastic step
            noise = as_normal(words[NoiseStream.INJECTED]).reshape(len(x), self.stochastic_steps, *shape).to(device)
            noise = noise.expand(-1, self.denoise_steps, -1, -1)
        x = x if committed is None else committed.hold(x)
        rows = torch.arange(len(x), device=device)[:, None]
        chosen = torch.zeros(len(x), self.denoise_steps, dtype=torch.bool, device=device)
        chosen[rows, steps] = True
        states, transitions, features = self._integrate(velocity, x, chosen, noise, committed)
        trace = {
            "step": steps,
            "x": states[rows, steps],
            "x_next": states[rows, steps + 1],
            "noise_level": x.new_full((len(x),), self.noise_level if explore else 0.0),
        }
        trace |= {} if committed is None else {"committed": committed.counts}
        scored = Transition(transitions.mean[rows, steps], transitions.std[rows, steps])
        return Sample(states[:, -1], trace, _widen(log_prob(trace["x_next"], scored)), features)

    def evaluate(self, velocity: Velocity, trace: dict[str, Tensor]) -> SampleEvaluation:
        """Recompute recorded chunks with gradients: S evaluations of the velocity, of n rows each."""
        t = make_time_grid(self.denoise_steps, trace["x"].device)[trace["step"]]
        transitions, total = [], torch.zeros((), device=t.device)
        committed = Committed(trace["x"][:, 0], trace["committed"]) if "committed" in trace else None
        for s in range(self.stochastic_steps):
            x = trace["x"][:, s]
            v, features = velocity(x, give_times(committed, t[:, s].contiguous()))
            transition = self.transition(x, v, features.float(), t[:, s], trace["noise_level"])
            transitions.append(freeze(committed, x, transition))
            total = total + features.float()
        scored = _stack(transitions)
        density = log_prob(trace["x_next"], scored)
        std = scored.std.expand_as(scored.mean)
        return SampleEvaluation(
            _widen(density),
            _widen(self.step_entropy(scored)),
            total / self.stochastic_steps,
            _widen(scored.mean),
            _widen(std),
        )

    def _integrate(
        self, velocity: Velocity, x: Tensor, chosen: Tensor, noise: Tensor | None, committed: Committed | None
    ) -> tuple[Tensor, Transition, Tensor]:
        """Return states [n, K + 1, H, D], K stacked transitions, and mean features of the `chosen` [n, K] steps.

        Features are summed, not stacked, because a large policy has wide features.
        """
        levels = chosen * self.noise_level
        states, transitions, total = [x], [], torch.zeros((), device=x.device)
        for k, time in enumerate(make_time_grid(self.denoise_steps, x.device)[:-1]):
            t = time.repeat(len(x))
            v, features = velocity(x, give_times(committed, t))
            features = features.float()
            if noise is None:
                transition = Transition(ode_step(x, v, self.delta), x.new_zeros(len(x), 1, 1))
            else:
                transition = self.transition(x, v, features, t, levels[:, k])
            transition = freeze(committed, x, transition)
            x = transition.mean if noise is None else transition.draw(noise[:, k])
            total = total + torch.where(chosen[:, k, None, None], features, 0)
            states.append(x)
            transitions.append(transition)
        return torch.stack(states, 1), _stack(transitions), total / self.stochastic_steps


class FlowSDE(Sampler):
    """The sampler Flow-SDE (π_RL, arXiv 2510.25889): a stochastic process with the same marginals as the flow.

    Args:
        denoise_steps: K.
        noise_level: a in σ = a √(t / (1 - t)); the first step's standard deviation is a.
        step_weights: K weights for drawing the stochastic step of a row, hybrid only; None: equal weights.
        layers: "hybrid": one stochastic step for each row, the others follow the ODE; "full": every step is stochastic.
    """

    def __init__(
        self,
        denoise_steps: int,
        noise_level: float,
        step_weights: Sequence[float] | None = None,
        layers: Literal["hybrid", "full"] = "hybrid",
    ) -> None:
        super().__init__(denoise_steps, noise_level)
        if layers not in ("hybrid", "full"):
            raise ValueError(f"layers must be 'hybrid' or 'full', got {layers!r}")
        if layers == "full":
            if step_weights is not None:
                raise ValueError("step_weights choose the stochastic step of layers='hybrid'; remove them for 'full'")
            return
        given = (
            torch.ones(denoise_steps) if step_weights is None else torch.tensor([*step_weights], dtype=torch.float32)
        )
        if len(given) != denoise_steps or given.min() < 0 or given.sum() <= 0:
            raise ValueError(
                f"step_weights needs denoise_steps = {denoise_steps} weights ≥ 0, not all 0, got {step_weights}"
            )
        self.step_weights = given.double()

    def transition(self, x: Tensor, v: Tensor, features: Tensor, t: Tensor, noise_level: Tensor) -> Transition:
        return flow_sde_transition(x, v, t, self.delta, noise_level)

    def step_entropy(self, transition: Transition) -> Tensor:
        return torch.zeros_like(transition.mean)


class FlowNoise(Sampler):
    """The sampler Flow-Noise (π_RL, arXiv 2510.25889; ReinFlow, arXiv 2505.22094): a head on the features learns noise.

    The deployed policy is the ODE only, without the head. Initially every standard deviation is √(std_min · std_max).

    Args:
        denoise_steps: K.
        std_min, std_max: bounds of the standard deviation, at noise level 1.
        feature_dim: F.
        action_dim: D.
        hidden: widths of the hidden layers of the head.
        noise_level: factor on the standard deviation, for annealing.
    """

    def __init__(
        self,
        denoise_steps: int,
        std_min: float,
        std_max: float,
        feature_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (128, 64),
        noise_level: float = 1.0,
    ) -> None:
        super().__init__(denoise_steps, noise_level)
        if not 0 < std_min <= std_max:
            raise ValueError(f"expected 0 < std_min <= std_max, got std_min {std_min} and std_max {std_max}")
        self.log_std_min, self.log_std_max = log(std_min), log(std_max)
        widths = (feature_dim, *hidden)
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.SiLU())]
        output = nn.Linear(widths[-1], action_dim)
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        self.head = nn.Sequential(*layers, output)

    def std(self, features: Tensor) -> Tensor:
        """Compute the standard deviation [n, H, D] at noise level 1, interpolated between the bounds in log space."""
        with torch.autocast(features.device.type, enabled=False):
            fraction = (torch.tanh(self.head(features)) + 1) / 2
        return torch.exp(self.log_std_min + (self.log_std_max - self.log_std_min) * fraction)

    def transition(self, x: Tensor, v: Tensor, features: Tensor, t: Tensor, noise_level: Tensor) -> Transition:
        return flow_noise_transition(x, v, self.delta, per_row(noise_level, x) * self.std(features))

    def step_entropy(self, transition: Transition) -> Tensor:
        return entropy(transition.std)


def _stack(transitions: Sequence[Transition]) -> Transition:
    """Stack transitions of [n, H, D] into one of [n, steps, H, D]."""
    return Transition(torch.stack([step.mean for step in transitions], 1), torch.stack([s.std for s in transitions], 1))


def _widen(x: Tensor) -> Tensor:
    """Reshape [n, S, H, D] to [n, H, S·D]."""
    return x.transpose(1, 2).flatten(2)
