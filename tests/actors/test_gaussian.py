"""Policies that predict actions: drawn around the prediction, scored as torch's distribution, cloned, refused."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.gaussian import DRAWN, GaussianActor, GaussianKind
from embodied_rl.actors.kinds import ActorSettings
from embodied_rl.actors.start_noise import StartNoiseSettings
from embodied_rl.assembly import build
from embodied_rl.cli.main import main
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PolicyNode, SamplerNode, SimNode
from embodied_rl.testing.policy_contract import check_actor, make_random_observation
from embodied_rl.training.algorithms.imitation.cloning import cloning_loss
from tests.support.gaussian_network import SmallGaussian
from tests.support.refusals import refuses

SMALL = {"width": 16, "layers": 2, "heads": 2, "horizon": 3, "keypoints": 4, "stem_channels": 8}
GAUSSIAN = SamplerNode(name="gaussian")


@pytest.fixture
def spec() -> SimulatorSpec:
    return SimulatorKind.find(SimNode("tabletop", options={"image_size": 32})).spec


def make(spec: SimulatorSpec, critic: str = "none", std: float = 0.1) -> GaussianActor:
    torch.manual_seed(0)
    embodiment = Embodiment.of_simulator(spec, 2, token_length=8)
    sizes = (4, len(spec.state_names), ("front",), (32, 32), len(embodiment.vocabulary), 8)
    network = SmallGaussian(SmallGaussian.Config(**SMALL), *sizes)
    head = make_critic(critic, privileged_dim=len(spec.privileged_names), context_dim=16, feature_dim=16)
    return GaussianActor(network, head, embodiment, strength=std, privileged_names=spec.privileged_names)


def keys(rows: int) -> NoiseKeys:
    return NoiseKeys(3, np.arange(rows), np.zeros(rows, np.int64))


@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert", "none"])
def test_it_keeps_the_contract(spec: SimulatorSpec, critic: str) -> None:
    check_actor(lambda: make(spec, critic), spec)


@pytest.mark.parametrize("std", [0.05, 0.3])
def test_scores_are_those_of_a_normal_distribution(spec: SimulatorSpec, std: float) -> None:
    actor, observation = make(spec, std=std), make_random_observation(spec)
    decision = actor.act(observation, keys(3), explore=True)
    with torch.no_grad():
        mean, _ = actor.backbone.action_mean(actor.backbone.encode(actor.observation_inputs(observation)))
    known = Normal(mean[:, :2], std)
    evaluation = actor.evaluate(decision.trace)
    torch.testing.assert_close(evaluation.log_prob, known.log_prob(decision.trace[DRAWN]))
    torch.testing.assert_close(evaluation.entropy, known.entropy())
    assert torch.equal(evaluation.log_prob, decision.log_prob), "the first ratio is exactly 1"
    expected = actor.embodiment.actions(decision.trace[DRAWN], observation.state)
    assert np.array_equal(decision.actions, expected), "what is drawn is executed"


def test_the_gradient_is_that_of_a_normal_distribution(spec: SimulatorSpec) -> None:
    actor, observation = make(spec, std=0.2), make_random_observation(spec)
    trace = actor.act(observation, keys(3), explore=True).trace
    actor.evaluate(trace).log_prob.sum().backward()
    mean, _ = actor.backbone.action_mean(actor.backbone.encode(actor.observation_inputs(observation)))
    bias = ((trace[DRAWN] - mean[:, :2]) / 0.2**2).sum(dim=0)
    torch.testing.assert_close(actor.backbone.mean.bias.grad[:8], bias.flatten().detach())
    assert not actor.backbone.mean.bias.grad[8:].any(), "actions that are not executed are not scored"


def test_actions_are_drawn_around_the_mean_which_is_deployed(spec: SimulatorSpec) -> None:
    actor, rows = make(spec, std=0.2), 4000
    observation = make_random_observation(spec)
    context = actor.backbone.encode(actor.observation_inputs(observation)).select(torch.zeros(rows, dtype=torch.int64))
    drawn, mean, _ = actor.choose(context, keys(rows))
    noise = ((drawn - mean) / 0.2).flatten(1)
    assert noise.mean(dim=0).abs().max() < 5 / rows**0.5 and (noise.std(dim=0) - 1).abs().max() < 5 / (2 * rows) ** 0.5
    assert (torch.corrcoef(noise.T) - torch.eye(12)).abs().max() < 5 / rows**0.5, "entries are independent"
    few, _, _ = actor.choose(context.select(torch.arange(5)), keys(5))
    torch.testing.assert_close(few, drawn[:5], msg="other rows change none")
    deployed = actor.embodiment.all_actions(mean[:1], observation.state[:1])
    np.testing.assert_allclose(actor.infer(observation, whole=True)[:1], deployed, atol=1e-6)
    np.testing.assert_allclose(actor.act(observation, keys(3), explore=False).actions[:1], deployed[:, :2], atol=1e-6)


def test_cloning_is_the_distance_of_what_counts(spec: SimulatorSpec) -> None:
    actor, observation = make(spec), make_random_observation(spec)
    network, inputs = actor.backbone, actor.observation_inputs(observation)
    actions, weight = torch.rand(3, 3, 4) * 2 - 1, torch.tensor([1.0, 2.0, 0.5])
    padding = torch.zeros(3, 3, dtype=torch.bool)
    padding[1, 2] = True
    found = cloning_loss(network, inputs, actions, torch.Generator(), padding, weight=weight)
    with torch.no_grad():
        distance = (network.action_mean(network.encode(inputs))[0] - actions).abs()
    total = sum(
        float(distance[row, step].sum() * weight[row])
        for row in range(3)
        for step in range(3)
        if not padding[row, step]
    )
    assert float(found.detach()) == pytest.approx(total / (8 * 4), rel=1e-5)


@pytest.mark.parametrize(
    ("sampler", "node", "noise", "code"),
    [
        (SamplerNode(), {}, None, "sampler-not-supported"),
        (SamplerNode(name="tokens"), {}, None, "sampler-not-supported"),
        (GAUSSIAN, {"delay": 2}, None, "prefix-not-supported"),
        (GAUSSIAN, {}, StartNoiseSettings(hidden=4, bound=1.0, shared=True), "algorithm-needs-flow"),
    ],
)
def test_what_is_for_other_policies_is_refused(
    spec: SimulatorSpec, sampler: SamplerNode, node: dict[str, int], noise: StartNoiseSettings | None, code: str
) -> None:
    actor = make(spec)
    settings = ActorSettings(PolicyNode("any", device="cpu", **node), sampler, False, (), noise)
    with refuses(code):
        GaussianKind().make(actor.backbone, actor.embodiment, settings)


def test_a_flow_takes_no_normal_distribution(spec: SimulatorSpec, capsys: pytest.CaptureFixture[str]) -> None:
    with refuses("sampler-not-supported"):
        build.build_actor(PolicyNode("pocket", device="cpu"), GAUSSIAN, spec, Needs())
    assert main(["train", "experiment=demo", "algo.sampler.std=0.2", "--dry-run"]) == 2
    assert "[key-unused]" in capsys.readouterr().err
    words = ["algo=ppo", "algo.sampler.name=gaussian", "algo.sampler.temperature=2"]
    assert main(["train", "experiment=demo", *words, "--dry-run"]) == 2 and "[key-unused]" in capsys.readouterr().err
