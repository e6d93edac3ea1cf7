"""Token policies: drawn bins, scores against torch's categorical distribution, cloning, and what is refused."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.network_actor import PRIVILEGED
from embodied_rl.actors.token import BINS, TokenActor, draw_bins
from embodied_rl.assembly import build
from embodied_rl.cli.command import load_commands
from embodied_rl.cli.main import main
from embodied_rl.cli.run_command import freeze_command_config
from embodied_rl.commands.preparation import compose_config
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PolicyNode, SamplerNode, SimNode
from embodied_rl.testing.policy_contract import ROWS, check_actor, make_random_observation
from embodied_rl.training.algorithms.imitation.cloning import cloning_loss
from embodied_rl_policies.pocket_tokens import PocketTokens
from tests.support.refusals import refuses

SMALL = {"width": 16, "layers": 2, "heads": 2, "horizon": 3, "keypoints": 4, "stem_channels": 8, "bins": 7}
TOKENS = SamplerNode(name="tokens")


@pytest.fixture
def spec() -> SimulatorSpec:
    return SimulatorKind.find(SimNode("tabletop", options={"image_size": 32})).spec


def make(spec: SimulatorSpec, critic: str = "privileged", temperature: float = 1.0, executed: int = 2) -> TokenActor:
    torch.manual_seed(0)
    embodiment = Embodiment.of_simulator(spec, executed, token_length=8)
    network = PocketTokens(
        PocketTokens.Config(**SMALL), 4, len(spec.state_names), ("front",), (32, 32), len(embodiment.vocabulary), 8
    )
    torch.nn.init.normal_(network.logits.bias)
    head = make_critic(critic, privileged_dim=len(spec.privileged_names), context_dim=16, feature_dim=16)
    return TokenActor(network, head, embodiment, strength=temperature, privileged_names=spec.privileged_names)


def keys(rows: int, seed: int = 3) -> NoiseKeys:
    return NoiseKeys(seed, np.arange(rows), np.zeros(rows, np.int64))


@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert", "none"])
def test_it_keeps_the_contract(spec: SimulatorSpec, critic: str) -> None:
    check_actor(lambda: make(spec, critic), spec)


@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert"])
@pytest.mark.parametrize("detach", [True, False])
def test_a_critic_learns_from_observations_alone(spec: SimulatorSpec, critic: str, detach: bool) -> None:
    """As it does from replay: its estimates are those of decisions; the network learns unless its input is cut off."""
    actor, observation = make(spec, critic), make_random_observation(spec)
    assert actor.critic is not None
    actor.critic.detach = detach
    value = actor.estimate_value(observation, NoiseKeys.none(ROWS))
    torch.testing.assert_close(value.detach(), actor.act(observation, keys(ROWS), explore=False).value)
    assert torch.equal(value.detach(), actor.value(observation, NoiseKeys.none(ROWS)))
    value.sum().backward()
    assert all(each.grad is not None for each in actor.critic.head.parameters())
    reached = any(each.grad is not None for each in actor.backbone.parameters())
    assert reached == (critic != "privileged" and not detach)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert", "none"])
def test_privileged_state_is_kept_where_something_reads_it(spec: SimulatorSpec, critic: str, explore: bool) -> None:
    """Whoever collects; without it nothing explores whose critic reads it, and a deployed policy has no value."""
    actor, observation = make(spec, critic), make_random_observation(spec)
    decision = actor.act(observation, keys(ROWS), explore)
    assert decision.trace.keys() == actor.trace_spec().keys()
    assert (PRIVILEGED in decision.trace) == (critic == "privileged") and decision.value.isfinite().all()
    blind = observation.without_privileged()
    if critic == "privileged" and explore:
        with refuses("privileged-state-missing", "policy.critic=prefix"):
            actor.act(blind, keys(ROWS), explore)
    else:
        assert actor.act(blind, keys(ROWS), explore).value.isfinite().all() == (critic != "privileged")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_bins_are_drawn_by_their_probability(temperature: float) -> None:
    rows, logits = 20_000, torch.tensor([0.0, 1.0, -1.0, 0.5, -30.0])
    drawn = draw_bins(keys(rows), (logits / temperature).expand(rows, 2, 3, -1))
    wanted = (logits / temperature).softmax(dim=0)
    for entry in drawn.flatten(1).T:
        share = torch.bincount(entry, minlength=5) / rows
        assert (share - wanted).abs().max() < 5 * (0.25 / rows) ** 0.5 and share[4] == 0
    pairs = torch.stack([drawn[:, 0, 0], drawn[:, 1, 2]]).double()
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.04, "entries are independent"
    assert torch.equal(draw_bins(keys(5), (logits / temperature).expand(5, 2, 3, -1)), drawn[:5]), (
        "other rows change none"
    )


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_scores_are_those_of_a_categorical_distribution(spec: SimulatorSpec, temperature: float) -> None:
    actor, observation = make(spec, "none", temperature), make_random_observation(spec)
    decision = actor.act(observation, keys(3), explore=True)
    logits, _ = actor.backbone.action_logits(actor.backbone.encode(actor.observation_inputs(observation)))
    known = Categorical(logits=logits[:, :2] / temperature)
    evaluation = actor.evaluate(decision.trace)
    torch.testing.assert_close(evaluation.log_prob, known.log_prob(decision.trace[BINS]))
    torch.testing.assert_close(evaluation.entropy, known.entropy())
    assert torch.equal(evaluation.log_prob, decision.log_prob), "the first ratio is exactly 1"
    drawn = draw_bins(keys(3), logits / temperature)[:, :2]
    assert torch.equal(decision.trace[BINS], drawn), "what is drawn is what is scored"
    assert not torch.equal(drawn, draw_bins(keys(3), logits)[:, :2]), "these temperatures change the draw"


def test_actions_are_the_centres_of_bins(spec: SimulatorSpec) -> None:
    actor, observation = make(spec, "none"), make_random_observation(spec)
    network = actor.backbone
    assert torch.equal(network.find_bins(network.bin_centres()), torch.arange(7))
    assert torch.equal(network.find_bins(torch.tensor([-9.0, -1.0, 1.0, 9.0])), torch.tensor([0, 0, 6, 6]))
    anything = torch.linspace(-1, 1, 1001)
    assert (network.bin_centres()[network.find_bins(anything)] - anything).abs().max() <= 1 / 7 + 1e-6
    decision = actor.act(observation, keys(3), explore=True)
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    unit = network.bin_centres()[decision.trace[BINS]].numpy()
    np.testing.assert_allclose(decision.actions, low + (unit + 1) * (high - low) / 2, rtol=1e-5, atol=1e-6)


def test_the_likeliest_bins_are_deployed(spec: SimulatorSpec) -> None:
    actor, observation = make(spec, "none"), make_random_observation(spec)
    logits, _ = actor.backbone.action_logits(actor.backbone.encode(actor.observation_inputs(observation)))
    expected = actor.embodiment.all_actions(actor.backbone.bin_centres()[logits.argmax(dim=-1)], observation.state)
    assert np.array_equal(actor.infer(observation, whole=True), expected)
    assert np.array_equal(actor.infer(observation), expected[:, :2])
    assert np.array_equal(actor.act(observation, keys(3), explore=False).actions, expected[:, :2])


def test_cloning_is_the_cross_entropy_of_what_counts(spec: SimulatorSpec) -> None:
    actor, observation = make(spec, "none"), make_random_observation(spec)
    network, inputs = actor.backbone, actor.observation_inputs(observation)
    actions, weight = torch.rand(3, 3, 4) * 2 - 1, torch.tensor([1.0, 2.0, 0.5])
    padding = torch.zeros(3, 3, dtype=torch.bool)
    padding[1, 2] = True
    found = cloning_loss(network, inputs, actions, torch.Generator(), padding, weight=weight)
    known = Categorical(logits=network.action_logits(network.encode(inputs))[0]).log_prob(network.find_bins(actions))
    total = sum(
        -float(known[row, step].sum() * weight[row]) for row in range(3) for step in range(3) if not padding[row, step]
    )
    assert float(found) == pytest.approx(total / (8 * 4), rel=1e-5)


@pytest.mark.parametrize(
    ("node", "sampler", "code"),
    [
        (PolicyNode("pocket_tokens", device="cpu"), SamplerNode(), "sampler-not-supported"),
        (PolicyNode("pocket", device="cpu"), TOKENS, "sampler-not-supported"),
        (PolicyNode("pocket_tokens", device="cpu", delay=2), TOKENS, "prefix-not-supported"),
        (PolicyNode("pocket_tokens", device="cpu", compile=True), TOKENS, "key-unused"),
    ],
)
def test_what_is_for_other_policies_is_refused(
    spec: SimulatorSpec, node: PolicyNode, sampler: SamplerNode, code: str
) -> None:
    with refuses(code):
        build.build_actor(node, sampler, spec, Needs(critic=True))


def test_committed_actions_are_refused(spec: SimulatorSpec) -> None:
    actor, observation = make(spec, "none"), make_random_observation(spec)
    prefix = np.zeros((3, 1, 4), np.float32)
    with refuses("prefix-not-supported"):
        actor.infer(observation, prefix=prefix)
    with refuses("prefix-not-supported"):
        actor.act(observation, keys(3), explore=True, prefix=prefix)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("algo=nft", "algo.sampler.name=tokens"), "sampler-not-supported"),
        (("algo=dsrl",), "algorithm-needs-flow"),
        (("algo=flow_sde",), "sampler-not-supported"),
        (("algo=grpo", "algo.sampler.name=flow_sde"), "sampler-not-supported"),
        (("algo=ppo", "algo.sampler.noise_level=0.5"), "key-unused"),
        (("algo=grpo", "algo.sampler.noise_level=0.5"), "key-unused"),
        (("algo=grpo", "algo.sampler.std=0.2"), "key-unused"),
        (("algo=ppo", "algo.noise_final=0.5"), "key-unused"),
        (("algo=ppo", "policy.delay=1"), "prefix-not-supported"),
    ],
)
def test_methods_and_keys_of_flows_are_refused_before_anything_starts(
    words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "sim=tabletop", "policy=pocket_tokens", "policy.checkpoint=null", *words, "--dry-run"]) == 2
    assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sampler"),
    [
        (("experiment=tabletop_tokens", "algo=grpo"), SamplerNode("tokens", temperature=0.5)),
        (("policy=openvla_oft", "algo=grpo", "algo.sampler.temperature=2"), SamplerNode("tokens", temperature=2.0)),
        (("policy=openvla_oft_l1", "algo=ppo"), SamplerNode(name="gaussian")),
        (("policy=openvla_oft_l1", "algo=grpo"), SamplerNode(name="gaussian")),
        (("policy=pi0_fast_tiny", "algo=grpo"), SamplerNode(name="tokens")),
        (("policy=pocket", "algo=ppo"), SamplerNode(name="tokens")),
        (("policy=pocket", "algo=grpo"), SamplerNode(step_weights=(0, 0, 1, 2))),
    ],
)
def test_the_sampler_is_that_of_the_policy(words: tuple[str, ...], sampler: SamplerNode) -> None:
    command = load_commands()["train"]
    mapping = compose_config("train", words)
    config = freeze_command_config(command, mapping, words)
    assert config.algo.sampler == sampler


def test_settings_are_refused_where_they_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    flow = ["train", "experiment=demo", "algo.sampler.temperature=2", "--dry-run"]
    assert main(flow) == 2 and "[key-unused]" in capsys.readouterr().err
    assert main(["train", "algo=ppo", "--dry-run"]) == 2 and "[sampler-not-supported]" in capsys.readouterr().err
    clone = ["sft", "experiment=tabletop_sft", "policy=pocket_tokens", "policy.checkpoint=null", "--dry-run"]
    for word, code in (("algo.prefix=2", "prefix-not-supported"), ("algo.draws=2", "key-unused")):
        assert main([*clone, word]) == 2 and f"[{code}]" in capsys.readouterr().err
    assert main(clone) == 0
