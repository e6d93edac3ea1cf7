"""π0-FAST: lerobot's logits, losses and actions; sequences as decisions; cloning; what is refused."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.sequence import TOKENS, SequenceActor
from embodied_rl.actors.token import draw_uniform, invert
from embodied_rl.checkpoints import weight_names
from embodied_rl.cli.main import main
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import LoraNode, PolicyNode
from embodied_rl.testing.policy_contract import check_actor, make_random_inputs, make_random_observation
from embodied_rl.training.algorithms.batch import Batch
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate
from embodied_rl.training.algorithms.imitation.cloning import cloning_loss
from embodied_rl_policies.pi.pi0_fast import Pi0Fast, Pi0FastConfig
from tests.support import building_checkpoints as building
from tests.support import fast_sizes, key_lists, small_fast
from tests.support import pi_sizes as sizes
from tests.support.refusals import refuses

GOLDEN = small_fast.GOLDEN
CAMERAS = ("front", "wrist")
each = pytest.mark.parametrize


@each("index", range(sizes.ROWS))
@torch.no_grad()
def test_logits_and_losses_are_lerobots(index: int) -> None:
    """Each row alone: with its cameras, after a prompt of its length; lerobot's loss has the mean over all rows."""
    network, inputs = small_fast.row(index)
    codes, context = small_fast.golden_rows("network.codes")[index], network.encode(inputs)
    logits, _ = network.token_logits(context, small_fast.close([codes], network))
    first, places = len(fast_sizes.OPENING), len(codes) + 1
    expected, config = GOLDEN["network.logits"][index, : first + places], network.config
    choices = [*range(config.last_action_token, config.last_action_token - network.choices, -1), config.end_token]
    torch.testing.assert_close(logits[0, :places], expected[first:, choices], **small_fast.CLOSE)
    error, counted = network.cloning_error(context, torch.from_numpy(fast_sizes.walks("demonstrated", 3))[[index]])
    wanted = torch.tensor(fast_sizes.ids(codes, list(config.opening), config.end_token))
    known = -expected.log_softmax(dim=-1).gather(1, wanted[:, None])[:, 0]
    torch.testing.assert_close(error[0, : len(known)], known, **small_fast.CLOSE)
    assert counted.all() and error.shape == (1, len(known))


@torch.no_grad()
def test_the_mean_loss_is_lerobots() -> None:
    """Of all tokens but the first, which the start token predicts: in lerobot's training, no word sees that one."""
    total = count = 0.0
    for index in range(sizes.ROWS):
        network, inputs = small_fast.row(index)
        actions = torch.from_numpy(fast_sizes.walks("demonstrated", 3))[[index]]
        error, counted = network.cloning_error(network.encode(inputs), actions)
        total, count = total + float(error[:, 1:].sum()), count + float(counted[:, 1:].sum())
    assert total / count == pytest.approx(float(GOLDEN["network.loss"]), abs=1e-5)


def test_actions_are_lerobots() -> None:
    """Of whole sequences, and of ones that are cut, too long or empty."""
    network = small_fast.build_network()
    found = network.read_tokens(small_fast.close(small_fast.golden_rows("policy.written"), network))
    torch.testing.assert_close(found, GOLDEN["policy.normalized_actions"], rtol=0, atol=1e-6)


@torch.no_grad()
def test_cached_keys_and_values_give_the_logits_of_one_pass() -> None:
    network = small_fast.filled()
    inputs, seen = make_random_inputs(network, 90), list[Tensor]()

    def choose(logits: Tensor, place: int) -> Tensor:
        seen.append(logits)
        return (logits.argmax(dim=-1) + place) % network.choices if place else logits.argmin(dim=-1) % network.choices

    context = network.encode(inputs)
    tokens = network.choose_tokens(context, choose)
    logits, features = network.token_logits(context, tokens)
    torch.testing.assert_close(torch.stack(seen, dim=1), logits, rtol=1e-5, atol=1e-5)
    changed = tokens.clone()
    changed[:, 5:] = 7
    others, same = network.token_logits(context, changed)
    torch.testing.assert_close(others[:, :6], logits[:, :6], rtol=0, atol=1e-5)
    assert not torch.allclose(others[:, 6], logits[:, 6], atol=1e-3), "a token sees the one before it"
    torch.testing.assert_close(features, same)
    torch.testing.assert_close(features, network.token_logits(context, tokens[:, :0])[1])


def make_actor(critic: str = "none", temperature: float = 1.0, executed: int = 2, **changes: Any) -> SequenceActor:
    spec = building.simulator(CAMERAS, (sizes.IMAGE_SIZE,) * 2)
    robot = Embodiment.of_simulator(spec, executed, fast_sizes.PROMPT_LENGTH)
    robot = Embodiment(**vars(robot) | {"tokenizer": fast_sizes.prompt_tokenizer().to_str()})
    network = small_fast.build_network(CAMERAS, **changes)
    network.prompts = lambda instructions, state: list(instructions)
    width = network.config.width
    head = make_critic(critic, privileged_dim=0, context_dim=width, feature_dim=width)
    return SequenceActor(network, head, robot, strength=temperature)


def keys(rows: int) -> NoiseKeys:
    return NoiseKeys(3, np.arange(rows), np.zeros(rows, np.int64))


def observe() -> Any:
    return make_random_observation(building.simulator(CAMERAS, (sizes.IMAGE_SIZE,) * 2))


@pytest.mark.thorough
@each("critic", ["prefix", "expert", "none"])
def test_it_keeps_the_contract(critic: str) -> None:
    check_actor(lambda: make_actor(critic), building.simulator(CAMERAS, (sizes.IMAGE_SIZE,) * 2))


@each("temperature", [0.6, 1.5])
def test_scores_are_sums_over_the_sequence_and_the_first_ratio_is_exactly_1(temperature: float) -> None:
    actor, observation = make_actor("prefix", temperature), observe()
    decision = actor.act(observation, keys(3), explore=True)
    tokens, again = decision.trace[TOKENS], actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob) and torch.equal(again.value, decision.value)
    network = actor.backbone
    logits, _ = network.token_logits(network.encode(actor.observation_inputs(observation)), tokens)
    uniform = draw_uniform(keys(3), 1, network.longest, torch.device("cpu"))[:, 0]
    known, counted = Categorical(logits=logits / temperature), network.find_counted(tokens)
    assert torch.equal(torch.where(counted, invert(logits / temperature, uniform), network.choices), tokens)
    expected = torch.where(counted, known.log_prob(tokens), 0).sum(dim=1)
    torch.testing.assert_close(again.log_prob[:, 0, 0], expected)
    torch.testing.assert_close(again.entropy[:, 0, 0], torch.where(counted, known.entropy(), 0).sum(dim=1))
    assert again.log_prob.shape == (3, 2, 1) and not again.log_prob[:, 1:].any(), "the sum stands at the first action"
    restored = network.read_tokens(tokens)[:, :2]
    assert torch.equal(restored, decision.trace["actions"])
    again.log_prob.sum().backward()
    assert all(each.grad is not None for each in network.parameters())


@torch.no_grad()
def test_the_probabilities_of_all_sequences_sum_to_1() -> None:
    actor = make_actor(fast="", action_tokens=2, offset=1, longest=3)
    network, context = actor.backbone, actor.backbone.encode(make_random_inputs(actor.backbone, 90).to(actor.device))
    rows = [row for row in product(range(3), repeat=3) if 2 not in row or {*row[row.index(2) :]} == {2}]
    ended = torch.tensor(rows)
    assert len(ended) == 1 + 2 + 4 + 8
    logits, _ = network.token_logits(context.select(torch.zeros(len(ended), dtype=torch.long)), ended)
    log_prob, _ = actor.score(logits, ended)
    assert float(log_prob[:, 0, 0].exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_likeliest_tokens_are_deployed() -> None:
    actor, observation = make_actor(), observe()
    network = actor.backbone
    context = network.encode(actor.observation_inputs(observation))
    tokens = network.choose_tokens(context, lambda logits, place: logits.argmax(dim=-1))
    expected = actor.embodiment.all_actions(network.read_tokens(tokens), observation.state)
    assert np.array_equal(actor.infer(observation, whole=True), expected)
    assert np.array_equal(actor.act(observation, keys(3), explore=False).actions, expected[:, :2])


def test_a_chunk_with_too_many_tokens_is_cut_and_has_no_end() -> None:
    network = small_fast.build_network(longest=4)
    tokens = network.write_actions(torch.from_numpy(fast_sizes.walks("demonstrated", 3)))
    assert tokens.shape == (3, 4) and (tokens < network.choices).all() and network.find_counted(tokens).all()


def test_cloning_is_the_mean_over_all_tokens_that_count() -> None:
    network = small_fast.build_network()
    inputs, weight = make_random_inputs(network, 90), torch.tensor([1.0, 2.0, 0.5])
    actions = torch.from_numpy(fast_sizes.walks("demonstrated", 3))
    error, counted = network.cloning_error(network.encode(inputs), actions)
    assert len(set(counted.sum(dim=1).tolist())) > 1
    found = cloning_loss(network, inputs, actions, torch.Generator(), weight=weight)
    pairs = zip(error.tolist(), counted.tolist(), weight.tolist(), strict=True)
    total = sum(w * sum(e for e, there in zip(row, count, strict=True) if there) for row, count, w in pairs)
    assert found.item() == pytest.approx(total / int(counted.sum()))


def test_at_full_size_it_has_lerobots_tensors() -> None:
    listed = json.loads((building.GOLDEN / "keys_pi0_fast_lerobot.json").read_text())["keys"]
    official = {name: shape for short, shape in listed.items() for name in key_lists.expand([short])}
    with torch.device("meta"):
        network = Pi0Fast(Pi0FastConfig(), 7, 8, ("any",), (224, 224), 257_152, 200)
    names = {name: f"model.{weight_names.to_their_name(Pi0Fast, name)}" for name in network.state_dict()}
    assert {names[name]: list(value.shape) for name, value in network.state_dict().items()} == official


@each(
    ("words", "code"),
    [
        (("algo=ppo", "algo.sampler.name=tokens"), "level-not-supported"),
        (("algo=grpo", "algo.sampler.name=tokens", "algo.level=token"), "level-not-supported"),
        (("algo=ppo", "algo.sampler.name=flow_sde", "algo.level=chunk"), "sampler-not-supported"),
        (("algo=nft",), "sampler-not-supported"),
        (("algo=ppo", "algo.sampler.name=tokens", "algo.level=chunk", "policy.delay=1"), "prefix-not-supported"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["train", "sim=tabletop", "policy=pi0_fast_tiny", "policy.checkpoint=null"]
    assert main([*start, *words, "--dry-run"]) == 2
    assert f"[{code}]" in capsys.readouterr().err


@each(
    ("changes", "code"),
    [
        ({"scale": 0.0}, "value-out-of-range"),
        ({"opening": ()}, "value-out-of-range"),
        ({"end_token": 512}, "policy-sizes-invalid"),
        ({"action_tokens": 600}, "policy-sizes-invalid"),
        ({"action_dim": 4}, "policy-does-not-fit"),
        ({"head_dim": 5}, "policy-sizes-invalid"),
        ({"offset": -1}, "value-out-of-range"),
    ],
)
def test_wrong_sizes(changes: dict[str, Any], code: str) -> None:
    with refuses(code, next(iter(changes))):
        small_fast.build_network(**changes)


@pytest.mark.thorough
@each("train", ["full", "lora"])
@each("autocast", [False, True])
def test_adapters_and_half_precision_keep_the_first_ratio(train: str, autocast: bool) -> None:
    """Weights that do not learn are halved; the others have gradients."""
    actor = make_actor()
    trainable.choose_trainable(actor.backbone, train, LoraNode())
    precision = "bfloat16" if train == "lora" else None
    node = PolicyNode("pi0_fast", device="cpu", precision=precision, train=train, autocast=autocast)
    actor = place_actor(actor, node)
    decision = actor.act(observe(), keys(3), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob)
    again.log_prob.sum().backward()
    assert all(each.grad is not None for each in actor.backbone.parameters() if each.requires_grad)


@each("micro_batch", [3, 1])
def test_an_update_starts_at_ratio_1_and_raises_what_was_good(micro_batch: int) -> None:
    """The largest distance of a ratio from 1 in the first step is 0, to the bit in batches as of the rollout."""
    actor, advantage = make_actor(), torch.tensor([1.0, -1.0, 0.0])
    decision = actor.act(observe(), keys(3), explore=True)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    batch = Batch(decision.trace, decision.log_prob, mask, advantage, torch.arange(3))
    config = ClippedConfig(level="chunk", epochs=1, minibatch=3, micro_batch=micro_batch, lr=1e-3)
    update = ClippedUpdate(config, actor, Ranks(), seed=0, iterations=1)
    _, figures = update.run([batch], 0)
    assert figures["worst_ratio"] <= (0 if micro_batch == 3 else 1e-5) and figures["clip_share"] == 0
    change = (actor.evaluate(decision.trace).log_prob - decision.log_prob)[:, 0, 0]
    assert change[0] > 0 > change[1]


@pytest.mark.thorough
def test_cloned_chunks_are_written_again() -> None:
    torch.manual_seed(0)
    network = small_fast.build_network(layers=2)
    inputs, actions = make_random_inputs(network, 90), torch.from_numpy(fast_sizes.walks("demonstrated", 3))
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(150):
        loss = cloning_loss(network, inputs, actions, torch.Generator())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss < 0.03:
            break
    with torch.no_grad():
        tokens = network.choose_tokens(network.encode(inputs), lambda logits, place: logits.argmax(dim=-1))
    assert torch.equal(tokens, network.write_actions(actions))
