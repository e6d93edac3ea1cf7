"""SmolVLA against lerobot's own, whose golden tensors `tests/parity/lerobot_smolvla.py` made from the same recipe."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.interfaces.policy import Context, PolicyInput
from embodied_rl.testing.contract import check_backbone

pytest.importorskip("transformers")

import recipe
import smolvla_sizes as sizes

from embodied_rl_policies.smolvla.checkpoint import checkpoint_key
from embodied_rl_policies.smolvla.images import prepare
from embodied_rl_policies.smolvla.policy import SmolVLA

PARITY = Path(__file__).parents[1] / "parity"
GOLDEN = load_file(PARITY / "golden" / "smolvla_lerobot.safetensors")
KEYS = json.loads((PARITY / "golden" / "keys_smolvla_lerobot.json").read_text())
CLOSE = 2e-6

TINY = SmolVLA.Config(
    width=sizes.WIDTH,
    layers=sizes.LAYERS,
    hidden=sizes.HIDDEN,
    heads=sizes.HEADS,
    key_value_heads=sizes.KEY_VALUE_HEADS,
    head_dim=sizes.HEAD_DIM,
    vocabulary=sizes.VOCABULARY,
    vision_width=sizes.VISION_WIDTH,
    vision_layers=sizes.VISION_LAYERS,
    vision_hidden=sizes.VISION_HIDDEN,
    vision_heads=sizes.VISION_HEADS,
    patch=sizes.PATCH,
    resolution=sizes.RESOLUTION,
    pixel_shuffle=sizes.PIXEL_SHUFFLE,
    image_start_tokens=sizes.IMAGE_START_TOKENS,
    image_end_token=sizes.IMAGE_END_TOKEN,
    horizon=sizes.HORIZON,
    action_dim=sizes.ACTION_DIM,
    state_dim=sizes.STATE_DIM,
    token_length=sizes.TOKEN_LENGTH,
)


def network(variant: str = "base") -> SmolVLA:
    """A tiny SmolVLA with the recipe's weights."""
    every, framed = sizes.VARIANTS[variant]
    config = replace(TINY, self_attention_every=every, image_special_tokens=framed)
    smolvla = build(config)
    with torch.no_grad():
        for name, value in smolvla.state_dict().items():
            value.copy_(torch.from_numpy(recipe.weight(checkpoint_key(name), value.shape)))
    return smolvla


def build(config: SmolVLA.Config = TINY, cameras: tuple[str, ...] = sizes.CAMERAS) -> SmolVLA:
    """A tiny SmolVLA with fresh weights."""
    return SmolVLA(config, 6, 5, cameras, (32, 32), config.vocabulary, config.token_length)


def observation() -> PolicyInput:
    """What the golden tensors were made from."""
    pictures = {
        name: torch.from_numpy(recipe.picture(name, sizes.ROWS, *sizes.PICTURES[name])) for name in sizes.CAMERAS
    }
    state = torch.from_numpy(recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM)))
    tokens = recipe.words("tokens", sizes.ROWS, sizes.TOKEN_LENGTH, sizes.IMAGE_START_TOKENS[1])
    return PolicyInput(pictures, state, torch.from_numpy(tokens))


def noise() -> Tensor:
    """What a chunk is denoised from."""
    return torch.from_numpy(recipe.normal("noise", (sizes.ROWS, sizes.HORIZON, sizes.ACTION_DIM)))


def times(turn: int = 0) -> Tensor:
    """A flow time for each row."""
    return torch.tensor(np.roll(sizes.TIMES, turn), dtype=torch.float32)


def euler(smolvla: SmolVLA, context: Context) -> Tensor:
    """Actions after `sizes.STEPS` steps from t = 1 to 0."""
    x = noise()
    for step in range(sizes.STEPS):
        x = x - smolvla.velocity(x, torch.full((len(x),), 1 - step / sizes.STEPS), context)[0] / sizes.STEPS
    return x


def difference(one: Tensor, other: Tensor) -> float:
    """The largest one."""
    assert one.shape == other.shape
    return (one - other).abs().max().item()


@pytest.mark.parametrize("variant", sizes.VARIANTS)
@torch.no_grad()
def test_velocities_and_actions_are_lerobots(variant: str) -> None:
    """Joint and cross layers in every mixture, framed images, prompts of different lengths, a time for each row."""
    smolvla = network(variant)
    context = smolvla.encode(observation())
    for turn in range(sizes.ROWS):
        velocity, _ = smolvla.velocity(noise(), times(turn), context)
        assert difference(velocity, GOLDEN[f"{variant}/velocity/{turn}"]) <= CLOSE
    assert difference(euler(smolvla, context), GOLDEN[f"{variant}/actions"]) <= CLOSE


@pytest.mark.parametrize("camera", sizes.CAMERAS)
def test_pictures_are_prepared_as_lerobot_prepares_them(camera: str) -> None:
    """Wide and tall ones."""
    prepared = prepare(observation().images[camera], sizes.RESOLUTION)
    assert difference(prepared[:1], GOLDEN[f"prepared/{camera}"]) <= 1e-6


def test_it_keeps_the_contract_of_a_backbone() -> None:
    """Shapes, rows that do not depend on one another, contexts that can be cut, perception that can be kept."""
    check_backbone(lambda: build(), vocabulary=sizes.VOCABULARY)


def test_a_full_size_network_has_lerobots_parameters_but_those_that_nothing_reads() -> None:
    """Every key of ours is lerobot's with its shape; what is left over changes no action."""
    with torch.device("meta"):
        smolvla = build(SmolVLA.Config())
    own = {checkpoint_key(name): list(value.shape) for name, value in smolvla.state_dict().items()}
    assert own == {key: shape for key, shape in KEYS["shapes"].items() if key in own}
    text = "model.vlm_with_expert.vlm.model.text_model"
    last = f"{text}.layers.15"
    assert KEYS["shapes"].keys() - own.keys() == {
        "model.vlm_with_expert.vlm.lm_head.weight",
        f"{text}.norm.weight",
        f"{last}.post_attention_layernorm.weight",
        *(f"{last}.self_attn.{name}_proj.weight" for name in "qo"),
        *(f"{last}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }
    assert sum(parameter.numel() for parameter in smolvla.parameters()) == 393_519_456


@torch.no_grad()
def test_kept_image_features_and_a_kept_prefix_give_the_same_context() -> None:
    """Whatever is computed earlier: to the bit."""
    smolvla, given = network(), observation()
    whole = smolvla.encode(given)
    features = smolvla.perceive(given)
    nothing = {name: torch.zeros_like(image) for name, image in given.images.items()}
    kept = smolvla.prefix(PolicyInput(nothing, torch.zeros_like(given.state), given.tokens, features))
    again = smolvla.context(kept, given.state)
    assert torch.equal(again.pooled, whole.pooled)
    assert all(torch.equal(again.tensors[name], value) for name, value in whole.tensors.items())


def test_a_prefix_depends_on_the_language_model_alone_and_a_context_on_what_is_trained() -> None:
    """What may be kept across epochs while the vision-language model is frozen, and what may not."""
    smolvla, given = network(), observation()
    prefix = smolvla.prefix(given)
    assert _reached(smolvla, sum(value.sum() for value in prefix.values())) == {
        "vision_model",
        "connector",
        "text_model",
    }
    frozen = {name: value.detach() for name, value in prefix.items()}
    context = smolvla.context(frozen, given.state)
    assert _reached(smolvla, sum(value.sum() for value in context.tensors.values())) >= {"state_proj", "expert"}


def test_gradients_reach_every_parameter_and_no_frozen_one() -> None:
    """There is none that nothing reads; a frozen vision-language model gets none and lets the rest learn."""
    smolvla, given = network(), observation()
    _loss(smolvla, given).backward()
    assert [name for name, parameter in smolvla.named_parameters() if parameter.grad is None] == []
    smolvla.zero_grad()
    for parameter in (*smolvla.perception_parameters(), *smolvla.text_model.parameters()):
        parameter.requires_grad_(False)
    _loss(smolvla, given).backward()
    silent = {name.partition(".")[0] for name, parameter in smolvla.named_parameters() if parameter.grad is None}
    assert silent == {"vision_model", "connector", "text_model"}
    assert smolvla.state_proj.weight.grad.abs().sum() > 0


def _loss(smolvla: SmolVLA, given: PolicyInput) -> Tensor:
    return smolvla.velocity(noise(), times(), smolvla.encode(given))[0].square().mean()


def _reached(smolvla: SmolVLA, value: Tensor) -> set[str]:
    smolvla.zero_grad()
    value.backward()
    return {name.partition(".")[0] for name, parameter in smolvla.named_parameters() if parameter.grad is not None}


@torch.no_grad()
def test_cross_keys_projected_once_are_those_projected_at_every_step() -> None:
    """The context holds, of a cross layer, its own linear map of the language model's keys and values."""
    smolvla, given = network(), observation()
    prefix = smolvla.prefix(given)
    context = smolvla.context(prefix, given.state)
    attention = smolvla.expert.layers[1].self_attn
    for name, layer in (("key/1", attention.k_proj), ("value/1", attention.v_proj)):
        kept = prefix[name].transpose(1, 2).flatten(2)
        projected = layer(kept).unflatten(-1, (sizes.KEY_VALUE_HEADS, -1)).transpose(1, 2)
        assert difference(context.tensors[name][:, :, :-1], projected) <= 1e-6
    for name in ("key/2", "value/2"):
        assert torch.equal(context.tensors[name][:, :, :-1], prefix[name])


@torch.no_grad()
def test_how_far_and_on_which_side_a_prompt_is_padded_does_not_matter() -> None:
    """Neither to the velocity nor to the pooled prefix, which is the mean of the tokens that exist."""
    smolvla, given = network(), observation()
    rows = given.tokens[:, -1] == 0
    assert rows.any()
    pictures = {name: image[rows] for name, image in given.images.items()}
    padded = given.tokens[rows]
    shortened = padded[:, : int((padded != 0).sum(dim=1).max())]
    assert shortened.shape[1] < sizes.TOKEN_LENGTH
    on_the_left = torch.stack([torch.cat([row[row == 0], row[row != 0]]) for row in padded])
    results = []
    for tokens in (padded, shortened, on_the_left):
        context = smolvla.encode(PolicyInput(pictures, given.state[rows], tokens))
        results.append((*smolvla.velocity(noise()[rows], times()[rows], context), context.pooled))
    for one, *others in zip(*results, strict=True):
        assert all(difference(one, other) <= 1e-6 for other in others)


@torch.no_grad()
def test_pooled_is_the_mean_of_the_tokens_that_enter_the_last_layer() -> None:
    """Seen by a hook on that layer's norm, which the image and word tokens pass first and the state's token second."""
    smolvla, given = network(), observation()
    seen: list[Tensor] = []
    smolvla.text_model.layers[-1].input_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    context = smolvla.encode(given)
    tokens, mask = torch.cat(seen, dim=1), context.tensors["mask"]
    expected = torch.stack([row[exists].mean(dim=0) for row, exists in zip(tokens, mask, strict=True)])
    assert context.pooled.dtype == torch.float32
    assert difference(context.pooled, expected) <= 1e-6


@torch.no_grad()
def test_encoding_and_a_denoise_step_are_one_graph_each() -> None:
    """So that `torch.compile(fullgraph=True)` takes them; only traced here, with a layer of each kind, not compiled."""
    smolvla, given = build(replace(TINY, layers=2, vision_layers=1)), observation()
    encode = torch.compile(smolvla.encode, backend="eager", fullgraph=True)
    velocity = torch.compile(smolvla.velocity, backend="eager", fullgraph=True)
    expected = smolvla.velocity(noise(), times(), smolvla.encode(given))[0]
    assert difference(velocity(noise(), times(), encode(given))[0], expected) <= CLOSE


def test_half_precision_computes_in_half_precision_and_answers_in_float32() -> None:
    """A bfloat16 network is near its float32 self."""
    smolvla, given = network().to(torch.bfloat16), observation()
    context = smolvla.encode(given)
    velocity, features = smolvla.velocity(noise(), times(), context)
    assert context.tensors["key/0"].dtype == context.tensors["key/1"].dtype == torch.bfloat16
    assert velocity.dtype == features.dtype == context.pooled.dtype == torch.float32
    assert difference(velocity, GOLDEN["base/velocity/0"]) < 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 5}, "policy.heads"),
        ({"head_dim": 7}, "policy.head_dim"),
        ({"layers": 0}, "policy.layers"),
        ({"self_attention_every": -1}, "policy.self_attention_every"),
        ({"expert_width_multiplier": 0.7}, "policy.expert_width_multiplier"),
        ({"vision_heads": 5}, "policy.vision_heads"),
        ({"resolution": 40}, "policy.resolution"),
        ({"image_special_tokens": True, "vocabulary": 61}, "policy.image_start_tokens"),
        ({"min_period": 5.0}, "policy.min_period"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(change: dict[str, object], words: str) -> None:
    """Before any weight is made."""
    with pytest.raises(ValueError, match=words):
        replace(TINY, **change)


def test_a_robot_that_does_not_fit_is_refused_by_name() -> None:
    """More actions, state, words or tokens than the network has, no camera, or a head it lacks."""
    fitting = {"action_dim": 8, "state_dim": 7, "vocabulary_size": 64, "token_length": 9, "cameras": ("front",)}
    wrong = {
        "action_dim": (9, "policy.action_dim"),
        "state_dim": (8, "policy.state_dim"),
        "vocabulary_size": (65, "policy.vocabulary"),
        "token_length": (10, "policy.token_length"),
        "cameras": ((), "camera"),
        "auxiliary_names": (("x",), "algo.auxiliary_names"),
    }
    for name, (value, words) in wrong.items():
        with pytest.raises(ValueError, match=words):
            SmolVLA(TINY, image_size=(32, 32), **{**fitting, name: value})
