"""Small problems with a known optimum: samplers and objectives must find it, and a wrong sign must not."""

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import as_uniform, draw_words
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.mathematics.objectives.losses import (
    Level,
    clipped_policy_loss,
    reduce_log_prob,
)

K, F, ROWS, EPOCHS = 4, 32, 512, 4


class Flow(nn.Module):
    """A one-dimensional flow that knows one number about its situation."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, F), nn.SiLU(), nn.Linear(F, F), nn.SiLU())
        self.out = nn.Linear(F, 1)

    def given(self, context: Tensor):
        def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            features = self.trunk(torch.stack([x[:, 0, 0], t, context], 1))[:, None]
            return self.out(features), features

        return velocity


@pytest.fixture(scope="module")
def pretrained() -> Flow:
    """A flow that has learned to draw from a mixture around -1 and 0.8, whatever the context."""
    torch.manual_seed(0)
    flow, rows = Flow(), 256
    optimiser = torch.optim.Adam(flow.parameters(), 3e-3)
    for _ in range(500):
        first = torch.rand(rows) < 0.3
        action = torch.where(first, -1 + 0.15 * torch.randn(rows), 0.8 + 0.25 * torch.randn(rows))
        noise, t = torch.randn(rows), torch.rand(rows)
        v, _ = flow.given(torch.randn(rows))((t * noise + (1 - t) * action)[:, None, None], t)
        loss = (v[:, 0, 0] - (noise - action)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return flow


@dataclass
class Learner:
    """PPO without a critic on a contextual bandit of one action."""

    flow: Flow
    sampler: Sampler
    seed: int = 0
    iteration: int = 0
    bonus: float = 0.0

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.Adam([*self.flow.parameters(), *self.sampler.parameters()], 2e-3)

    def keys(self) -> NoiseKeys:
        rows = torch.arange(ROWS).numpy()
        return NoiseKeys(self.seed, rows, 0 * rows + self.iteration)

    def context(self) -> Tensor:
        """-1 or 1, for each row."""
        return torch.from_numpy(as_uniform(draw_words(self.keys(), {3: 1})[3])[:, 0] < 0.5).float() * 2 - 1

    def iterate(self, reward, sign: float = 1.0) -> None:
        velocity = self.flow.given(self.context())
        with torch.no_grad():
            sample = self.sampler.sample(velocity, self.keys(), (1, 1), explore=True)
        advantage = sign * reward(sample.actions[:, 0, 0], self.context())
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-5)
        update(self.optimiser, self.sampler, velocity, sample, advantage, self.bonus)
        self.iteration += 1

    def deployed(self) -> Tensor:
        with torch.no_grad():
            sample = self.sampler.sample(self.flow.given(self.context()), self.keys(), (1, 1), explore=False)
        return sample.actions[:, 0, 0]


def update(
    optimiser: torch.optim.Optimizer, sampler: Sampler, velocity, sample, advantage: Tensor, bonus: float = 0.0
) -> None:
    """Some epochs of the clipped objective on one rollout."""
    everything = torch.ones(len(advantage), 1, dtype=torch.bool)
    old = reduce_log_prob(sample.log_prob, everything, Level.CHUNK)
    for _ in range(EPOCHS):
        now = sampler.evaluate(velocity, sample.trace)
        new = reduce_log_prob(now.log_prob, everything, Level.CHUNK)
        loss = clipped_policy_loss(new - old, advantage, 0.2, 0.2).mean() - bonus * now.entropy.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def quadratic(action: Tensor, context: Tensor) -> Tensor:
    return -(action - 1.4).square()


def by_context(action: Tensor, context: Tensor) -> Tensor:
    """The best action is -1 or 0.8, by context."""
    return -(action - torch.where(context > 0, 0.8, -1.0)).square()


def build(kind: str) -> Sampler:
    torch.manual_seed(0)
    return FlowNoise(K, 0.08, 0.16, F, 1) if kind == "noise" else FlowSDE(K, 0.5, layers=kind)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["hybrid", "full", "noise"])
def test_bandit_finds_the_optimum(kind, seed, pretrained):
    """The deployed policy is at 1.4, which pretraining never drew from; improvement alone would prove nothing."""
    learner = Learner(deepcopy(pretrained), build(kind), seed)
    assert abs(float(learner.deployed().mean()) - 1.4) > 0.8
    for _ in range(40):
        learner.iterate(quadratic)
    actions = learner.deployed()
    assert abs(float(actions.mean()) - 1.4) < 0.1
    assert float(quadratic(actions, actions).mean()) > -0.02


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["hybrid", "noise"])
def test_bandit_with_the_wrong_sign_fails(kind, pretrained):
    """The same run with advantages negated moves away from the optimum."""
    learner = Learner(deepcopy(pretrained), build(kind))
    before = float(quadratic(learner.deployed(), learner.context()).mean())
    for _ in range(20):
        learner.iterate(quadratic, sign=-1.0)
    assert float(quadratic(learner.deployed(), learner.context()).mean()) < 2 * before


@pytest.mark.thorough
def test_the_context_selects_between_two_modes(pretrained):
    """Conditioning works: each context gets its own mode."""
    learner = Learner(deepcopy(pretrained), build("hybrid"))
    for _ in range(60):
        learner.iterate(by_context)
    actions, context = learner.deployed(), learner.context()
    assert float(actions[context > 0].mean()) == pytest.approx(0.8, abs=0.15)
    assert float(actions[context < 0].mean()) == pytest.approx(-1.0, abs=0.15)
