"""GR00T N1.7: the same numbers as lerobot's own, which are NVIDIA's, and the contracts of a flow policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.assembly.build import build_backbone
from embodied_rl.cli.main import main
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.sampler import FlowSDE
from embodied_rl.schema import PolicyNode
from embodied_rl.testing.policy_contract import check_actor, check_backbone
from embodied_rl_policies.gr00t import action_head, images, vision_language
from embodied_rl_policies.gr00t.config import encode_state
from embodied_rl_policies.gr00t.policy import Gr00t
from tests.support import gr00t_sizes as sizes
from tests.support import small_gr00t
from tests.support.double_precision import in_float64
from tests.support.gr00t_tokenizer import make_tokenizer

GOLDEN = small_gr00t.golden()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gr00t.nvidia(tmp_path_factory.mktemp("gr00t") / "folder")


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return (one - other).abs().max().item()


def given(made: Gr00t) -> PolicyInput:
    """The recipe's inputs, with the state that lerobot normalised."""
    ids = torch.zeros(sizes.ROWS, made.spec.token_length, dtype=torch.int64)
    for row, prompt in enumerate(made.prompts(sizes.INSTRUCTIONS, GOLDEN["state"])):
        found = make_tokenizer().encode(prompt).ids
        ids[row, : len(found)] = torch.tensor(found)
    pictures = {name: torch.from_numpy(value) for name, value in sizes.pictures().items()}
    return PolicyInput(pictures, GOLDEN["state"], ids)


@torch.no_grad()
@pytest.mark.parametrize("variant", sizes.VARIANTS)
def test_prefix_and_actions_are_lerobots(variant: str) -> None:
    """Each of its rows was alone: its action head lets a shorter prompt's padding change the actions of the batch."""
    made = small_gr00t.network(variant)
    prefix = made.encode_prefix(given(made))
    mask = prefix["mask"][..., None]
    mean = (prefix["hidden"] * mask).sum(dim=1) / mask.sum(dim=1)
    assert difference(mean, GOLDEN[f"{variant}/hidden"]) <= 1e-6
    context = made.encode(given(made))
    counts = (sizes.STEPS, *sizes.OTHER_STEPS) if variant == "base" else (sizes.STEPS,)
    for count in counts:
        actions = small_gr00t.euler(made, context, count)
        assert difference(actions, GOLDEN[f"{variant}/actions/{count}"]) <= small_gr00t.CLOSE, count


@torch.no_grad()
def test_in_double_precision_the_formulas_are_the_same() -> None:
    with in_float64():
        made = small_gr00t.network()
        inputs = given(made)
        actions = small_gr00t.euler(made, made.encode(inputs), sizes.STEPS)
    assert actions.dtype == torch.float64
    assert difference(actions, GOLDEN["float64"]) <= 1e-8  # the state came in float32


@pytest.mark.parametrize("name", ["area", "bicubic", "bilinear"])
def test_pictures_become_the_same_patches(name: str) -> None:
    """Every eighth, to the bit: resized and cut, by OpenCV there, and in whole merged patches, by transformers."""
    config = small_gr00t.network().config
    height, width = sizes.CUT
    changed = {"resize": name, "shortest_edge": None, "cut_fraction": height / sizes.TARGET[0]}
    changed |= {"cut_height": height, "cut_width": width}
    config = config if name == "area" else replace(config, **changed)
    pictures = torch.stack([torch.from_numpy(value[:1]) for value in sizes.pictures().values()], dim=1).flatten(0, 1)
    patches = images.make_patches(images.prepare_pictures(pictures, config), config.patch, config.merge)
    assert difference(patches.flatten(0, 1)[::8], GOLDEN[f"pixels/{name}"][0]) <= 1e-6


def test_halving_rounds_halves_up_and_other_areas_are_means() -> None:
    """As OpenCV's INTER_AREA does."""
    halved = images.resize(torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8).expand(1, 3, 2, 2), (1, 1), "area")
    assert halved.flatten().tolist() == [1, 1, 1]
    row = torch.tensor([0, 30, 90], dtype=torch.uint8).expand(1, 3, 3, 3)
    assert images.resize(row, (1, 1), "area").flatten().tolist() == [40, 40, 40]


def test_prompts_are_the_chat_templates() -> None:
    """With as many places for a picture's tokens as the network puts in, in lower case and without punctuation."""
    made, loaded = small_gr00t.network(), make_tokenizer()
    count = made.grid[0] * made.grid[1] // made.config.merge**2
    for row, prompt in enumerate(made.prompts(sizes.INSTRUCTIONS, GOLDEN["state"])):
        expanded = prompt.replace("<|vision_start|>", "<|vision_start|>" + "<|image_pad|>" * count)
        ids = loaded.encode(expanded).ids
        expected = GOLDEN["tokens"][row]
        assert ids == expected[expected >= 0].tolist()


def test_state_and_actions_are_normalised_as_there(folder: Path) -> None:
    """Beyond the statistics they are clipped; actions of this library come back the same."""
    made, robot = small_gr00t.attach(folder)
    state = encode_state(robot.inputs(small_gr00t.observation(), made).state, made.config)
    assert difference(state, GOLDEN["state"]) <= 1e-6
    assert GOLDEN["state"].abs().max() == 1
    predicted = GOLDEN[f"base/actions/{sizes.STEPS}"]
    assert predicted[..., :4].abs().max() > 1
    found = torch.from_numpy(robot.all_actions(predicted, sizes.state()))
    assert difference(found[:, : sizes.TRAINED], GOLDEN["decoded"]) <= 1e-6
    again = robot.model_actions(found, sizes.state(), sizes.ACTION_DIM)
    assert difference(again[..., :4], predicted[..., :4].clamp(-1, 1)) <= 1e-5


def test_a_state_can_become_sines_and_cosines() -> None:
    config = small_gr00t.network(state_sizes=(2, 1), state_forms=("sin_cos", "plain")).config
    state = torch.tensor([[0.5, -2.0, 3.0]])
    found = encode_state(state, config)
    assert found.shape == (1, sizes.STATE_DIM)
    expected = torch.cat([state[:, :2].sin(), state[:, :2].cos(), state[:, 2:]], dim=1)
    assert difference(found[:, :5], expected) == 0 and not found[:, 5:].any()


@pytest.mark.parametrize("variant", sizes.VARIANTS)
def test_backbone_contract(variant: str) -> None:
    check_backbone(lambda: small_gr00t.network(variant), vocabulary=sizes.TEXT["vocab_size"])


def make_actor(folder: Path) -> FlowActor:
    made, robot = small_gr00t.attach(folder)
    return FlowActor(made, FlowSDE(sizes.STEPS, 0.5, None, "hybrid"), None, robot)


def test_actor_contract(folder: Path) -> None:
    check_actor(lambda: make_actor(folder), small_gr00t.simulator(), observation=small_gr00t.observation())


def test_the_first_ratio_is_exactly_one(folder: Path) -> None:
    """Recomputed by the same operations, of one batch, the log-probabilities are equal to the bit."""
    actor = make_actor(folder)
    decision = actor.act(small_gr00t.observation(), NoiseKeys.none(sizes.ROWS), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob.detach(), decision.log_prob)
    assert decision.log_prob.abs().sum() > 0


@torch.no_grad()
def test_a_kept_prefix_gives_the_same_context_and_uses_the_language_model_alone() -> None:
    made = small_gr00t.network()
    inputs = given(made)
    context = made.encode(inputs)
    kept = made.encode(PolicyInput({}, inputs.state, inputs.tokens, prefix=made.encode_prefix(inputs)))
    assert all(torch.equal(value, kept.tensors[name]) for name, value in context.tensors.items())
    used = {id(parameter) for parameter in made.prefix_parameters()}
    others = [parameter for parameter in made.parameters() if id(parameter) not in used]
    assert {id(parameter) for parameter in others} == {id(parameter) for parameter in made.action_head.parameters()}


@torch.no_grad()
def test_a_denoise_step_computes_neither_pictures_nor_words() -> None:
    made = small_gr00t.network()
    context = made.encode(given(made))
    for module in (made.visual, made.language_model):
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    assert made.velocity(small_gr00t.noise(), torch.ones(sizes.ROWS), context)[0].isfinite().all()


@torch.no_grad()
def test_a_word_of_id_0_is_a_word() -> None:
    """Qwen's id 0 is "!"; only zeros at the end are padding."""
    made = small_gr00t.network()
    inputs = given(made)
    changed = replace(inputs, tokens=inputs.tokens.clone())
    place = (inputs.tokens[0] > 0).sum() - 3
    changed.tokens[0, place] = 0
    assert torch.equal(made.encode_prefix(changed)["mask"], made.encode_prefix(inputs)["mask"])
    assert difference(made.encode(changed).pooled, made.encode(inputs).pooled) > 1e-4


def test_times_fall_into_isaac_gr00ts_buckets() -> None:
    """It has int(k / K · 1000) of its own times k / K, in double precision; ours come in float32."""
    for count in (1, 3, 4, 6, 7, 8, 10, 16, 30, 50, 100, 999, 1000):
        expected = [min(k * 1000 // count, 999) for k in range(count + 1)]
        times = torch.tensor([1 - k / count for k in range(count + 1)], dtype=torch.float32)
        assert action_head.find_buckets(times, 1000).tolist() == expected, count


@pytest.mark.parametrize("views", [1, 3])
def test_places_are_qwens(views: int) -> None:
    """By transformers' own count, for a grid that is not square."""
    from transformers import Qwen3VLConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    text: dict[str, Any] = {**sizes.TEXT, "num_hidden_layers": 1}
    kind: Any = Qwen3VLConfig
    with torch.device("meta"):
        model: Any = Qwen3VLModel(kind(text_config=text, vision_config=sizes.VISION))
    grid, start, length = (3, 5), 4, 4 + 2 * views + 6
    seen = vision_language.find_pictures(start, views, 15, length, torch.device("cpu"))
    thw = torch.tensor([[1, 2 * grid[0], 2 * grid[1]]] * views)
    ids = torch.ones(1, len(seen), dtype=torch.int64)
    expected, _ = model.get_rope_index(ids, seen.int()[None], image_grid_thw=thw, attention_mask=ids)
    found = vision_language.find_places(start, views, grid, length, torch.device("cpu"))
    assert torch.equal(found, expected[:, 0])


@pytest.mark.thorough
@torch.no_grad()
def test_encoding_and_a_denoise_step_are_one_graph_each() -> None:
    """So that `torch.compile(fullgraph=True)` takes them; only traced here, not compiled."""
    made = small_gr00t.network()
    inputs = given(made)
    encode = torch.compile(made.encode, backend="eager", fullgraph=True)
    velocity = torch.compile(made.velocity, backend="eager", fullgraph=True)
    expected = made.velocity(small_gr00t.noise(), torch.ones(sizes.ROWS), made.encode(inputs))[0]
    assert difference(velocity(small_gr00t.noise(), torch.ones(sizes.ROWS), encode(inputs))[0], expected) <= 1e-5


@torch.no_grad()
def test_half_precision_answers_in_float32() -> None:
    made = small_gr00t.network().to(torch.bfloat16)
    context = made.encode(given(made))
    velocity, features = made.velocity(small_gr00t.noise(), torch.ones(sizes.ROWS), context)
    assert context.tensors["key_value/0"].dtype == torch.bfloat16
    assert velocity.dtype == features.dtype == context.pooled.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 5}, "policy.heads=5 must be a multiple of policy.key_value_heads=2"),
        ({"robot": 4}, "policy.robot=4 must be below policy.robots=4"),
        ({"horizon": 12}, "policy.horizon=12 must be at most policy.positions=9"),
        ({"deepstack": (0, 9)}, "policy.deepstack"),
        ({"vision_positions": 24}, "policy.vision_positions=24 must be a square number"),
        ({"layers": 2}, "policy.deepstack"),
        ({"state_sizes": (20,), "state_forms": ("plain",)}, "policy.state_sizes"),
        ({"layers": 0}, "policy.layers=0 must be at least 1"),
        ({"expert_layers": 10**6}, "policy.expert_layers=1000000 must be at most"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Gr00t.Config(**small_gr00t.config() | changes)
    assert said in str(caught.value)


def test_new_weights_of_full_size_ask_for_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "policy=gr00t", "sim=tabletop", "algo=flow_sde", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "[checkpoint-missing] policy.checkpoint=null" in said and "policy=gr00t_tiny" in said


def test_the_tiny_one_has_rows_for_the_tasks_words_and_keeps_the_contract() -> None:
    config = freeze_config(PolicyNode, compose_config("train", ["policy=gr00t_tiny"])["policy"], "policy")
    network, robot = build_backbone(config, small_gr00t.simulator())
    assert network.language_model.embed_tokens.num_embeddings == robot.vocabulary_size
    assert sum(parameter.numel() for parameter in network.parameters()) < 10**6
    check_backbone(lambda: build_backbone(config, small_gr00t.simulator())[0], vocabulary=robot.vocabulary_size)
