"""Small problems with a known optimum: samplers and objectives must find it, and a wrong sign must not."""

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import as_uniform, draw_words
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.mathematics.objectives.advantages import compute_gae, make_discounts, select_next_values
from embodied_rl.mathematics.objectives.losses import (
    Level,
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    reduce_log_prob,
    value_loss,
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


def either(action: Tensor, context: Tensor) -> Tensor:
    """-1 and 0.8 are equally good."""
    return -torch.minimum((action + 1).square(), (action - 0.8).square())


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


@pytest.mark.parametrize("kind", ["hybrid", "noise"])
def test_bandit_with_the_wrong_sign_fails(kind, pretrained):
    """The same run with advantages negated moves away from the optimum."""
    learner = Learner(deepcopy(pretrained), build(kind))
    before = float(quadratic(learner.deployed(), learner.context()).mean())
    for _ in range(20):
        learner.iterate(quadratic, sign=-1.0)
    assert float(quadratic(learner.deployed(), learner.context()).mean()) < 2 * before


@pytest.mark.parametrize("seed", [0, 1])
def test_bandit_with_shuffled_advantages_does_not_find_the_optimum(seed, pretrained):
    """The control of the test above. It drifts, and may even improve by chance; it does not arrive."""
    learner, generator = Learner(deepcopy(pretrained), build("hybrid"), seed), torch.Generator().manual_seed(seed)
    for _ in range(40):
        learner.iterate(lambda a, c: quadratic(a, c)[torch.randperm(len(a), generator=generator)])
    actions = learner.deployed()
    assert abs(float(actions.mean()) - 1.4) > 0.1 or float(quadratic(actions, actions).mean()) < -0.02


@pytest.mark.thorough
def test_modes_of_equal_reward_are_each_paid_for(pretrained):
    """Whatever is drawn from either mode is good, with the entropy bonus and without; the bonus keeps the noise up.

    How much of each mode is left is nothing the objective speaks of.
    """
    entropy = {}
    for bonus in (0.0, 0.05):
        learner = Learner(deepcopy(pretrained), build("noise"), bonus=bonus)
        for _ in range(30):
            learner.iterate(either)
        actions = learner.deployed()
        assert float(either(actions, actions).mean()) > -0.05
        velocity = learner.flow.given(learner.context())
        with torch.no_grad():
            sample = learner.sampler.sample(velocity, learner.keys(), (1, 1), explore=True)
            entropy[bonus] = float(learner.sampler.evaluate(velocity, sample.trace).entropy.mean())
    assert entropy[0.05] > entropy[0.0]


def test_the_context_selects_between_two_modes(pretrained):
    """Conditioning works: each context gets its own mode."""
    learner = Learner(deepcopy(pretrained), build("hybrid"))
    for _ in range(60):
        learner.iterate(by_context)
    actions, context = learner.deployed(), learner.context()
    assert float(actions[context > 0].mean()) == pytest.approx(0.8, abs=0.15)
    assert float(actions[context < 0].mean()) == pytest.approx(-1.0, abs=0.15)


def test_first_minibatch_is_exactly_on_policy(pretrained):
    """Ratio 1, nothing clipped, no divergence, and the loss is minus the mean advantage."""
    learner = Learner(deepcopy(pretrained), build("hybrid"))
    velocity = learner.flow.given(learner.context())
    with torch.no_grad():
        sample = learner.sampler.sample(velocity, learner.keys(), (1, 1), explore=True)
    log_ratio = (learner.sampler.evaluate(velocity, sample.trace).log_prob - sample.log_prob).sum((1, 2))
    advantage = quadratic(sample.actions[:, 0, 0], learner.context())
    assert float(log_ratio.detach().abs().max()) < 1e-6
    assert clip_fraction(log_ratio, 0.2, 0.2) == 0
    assert [float(kl) for kl in approximate_kl(log_ratio)] == [0, 0]
    loss = clipped_policy_loss(log_ratio, advantage, 0.2, 0.2).mean()
    torch.testing.assert_close(loss, -advantage.mean())


@pytest.mark.parametrize("kind", ["hybrid", "noise"])
def test_a_resumed_run_is_bit_equal(kind, pretrained):
    """Weights, optimiser and a counter are all there is to save: the noise has no state of its own."""
    straight = Learner(deepcopy(pretrained), build(kind))
    for _ in range(2):
        straight.iterate(quadratic)
    saved = deepcopy((straight.flow.state_dict(), straight.sampler.state_dict(), straight.optimiser.state_dict()))
    straight.iterate(quadratic)
    torch.manual_seed(99)
    resumed = Learner(Flow(), build(kind), iteration=2)
    for part, state in zip((resumed.flow, resumed.sampler, resumed.optimiser), saved, strict=True):
        part.load_state_dict(state)
    resumed.iterate(quadratic)
    for a, b in zip(resumed.flow.parameters(), straight.flow.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.thorough
def test_delayed_reward_reaches_early_decisions(pretrained):
    """Five decisions move a point; only where it ends is rewarded, so the first four learn through the critic alone."""
    decisions, rows = 5, 128
    learner = Learner(deepcopy(pretrained), build("hybrid"))
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    critic_optimiser = torch.optim.Adam(critic.parameters(), 3e-3)
    for iteration in range(80):
        end, batch, sample = walk(learner, decisions, rows, iteration, explore=True)
        inputs = torch.stack([batch.flatten(), torch.arange(decisions).repeat_interleave(rows) / decisions], 1)
        value = critic(inputs)[:, 0].detach().view(decisions, rows)
        advantage, returns = advantages(value, end)
        centred = (advantage - advantage.mean()) / (advantage.std() + 1e-5)
        update(learner.optimiser, learner.sampler, learner.flow.given(batch.flatten()), sample, centred.flatten())
        for _ in range(10):
            loss = value_loss(critic(inputs)[:, 0], value.flatten(), returns.flatten()).mean()
            critic_optimiser.zero_grad()
            loss.backward()
            critic_optimiser.step()
    end, _, _ = walk(learner, decisions, rows, 10_000, explore=False)
    assert float(end.mean()) == pytest.approx(1.0, abs=0.15)
    assert float((end - 1).square().mean()) < 0.05


def walk(learner: Learner, decisions: int, rows: int, iteration: int, explore: bool):
    """Ends [N], positions [T, N] before each decision, and the decisions as one sample of T·N rows."""
    position, positions, samples = torch.zeros(rows), [], []
    episodes = iteration * rows + torch.arange(rows).numpy()
    for decision in range(decisions):
        keys = NoiseKeys(learner.seed, episodes, 0 * episodes + decision)
        with torch.no_grad():
            sample = learner.sampler.sample(learner.flow.given(position), keys, (1, 1), explore)
        positions.append(position)
        samples.append(sample)
        position = position + 0.3 * sample.actions[:, 0, 0]
    merged = deepcopy(samples[0])
    merged.log_prob = torch.cat([sample.log_prob for sample in samples])
    merged.trace = {name: torch.cat([sample.trace[name] for sample in samples]) for name in merged.trace}
    return position, torch.stack(positions), merged


def advantages(value: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """GAE of episodes that terminate with their last decision, whose reward is -(end - 1)²."""
    reward, terminated = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
    reward[-1], terminated[-1] = -(end - 1).square(), True
    following = select_next_values(
        value, torch.zeros_like(end), torch.zeros_like(value), terminated, ~terminated & False
    )
    discount = make_discounts(torch.ones_like(value, dtype=torch.int64), 0.99, "decision")
    return compute_gae(reward, value, following, discount, ~terminated, 0.9)
