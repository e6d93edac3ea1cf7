"""SmolVLA against lerobot's own, whose golden tensors `tests/parity/lerobot_smolvla.py` made from the same recipe."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl_policies.smolvla.policy import SmolVLA
from embodied_rl_policies.vlm import prepare_images
from tests.support import smolvla_sizes as sizes
from tests.support.double_precision import in_float64
from tests.support.small_smolvla import (
    CLOSE,
    GOLDEN,
    PREFIX,
    STEPS,
    TINY,
    after_steps,
    build,
    difference,
    euler,
    network,
    noise,
    observation,
    times,
)


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


@pytest.mark.parametrize("steps", sizes.OTHER_STEPS)
@pytest.mark.parametrize(
    ("precision", "entered", "tolerance"), [("float32", nullcontext, CLOSE), ("float64", in_float64, 1e-12)]
)
@torch.no_grad()
def test_any_number_of_steps_gives_lerobots_actions(
    steps: int, precision: str, entered: Callable[[], AbstractContextManager[None]], tolerance: float
) -> None:
    """In float32 up to rounding, which in float64 is gone: the formulas are the same."""
    with entered():
        found = after_steps(steps)
    assert difference(found, load_file(STEPS)[f"{precision}.{steps}"]) <= tolerance


@pytest.mark.parametrize("camera", sizes.CAMERAS)
def test_pictures_are_prepared_as_lerobot_prepares_them(camera: str) -> None:
    """Wide and tall ones."""
    prepared = prepare_images(observation().images[camera], sizes.RESOLUTION, centred=False)
    assert difference(prepared[:1], GOLDEN[f"prepared/{camera}"]) <= 1e-6


def test_a_prefix_depends_on_the_language_model_alone_and_a_context_on_what_is_trained() -> None:
    """What may be kept across epochs while the vision-language model is frozen, and what may not."""
    smolvla, given = network(), observation()
    prefix = smolvla.encode_prefix(given)
    assert _reached(smolvla, sum(value.sum() for value in prefix.values())) == PREFIX
    frozen = {name: value.detach() for name, value in prefix.items()}
    context = smolvla.context(frozen, given.state)
    assert _reached(smolvla, sum(value.sum() for value in context.tensors.values())) >= {"state_proj", "expert"}


def test_gradients_reach_every_parameter_and_no_frozen_one() -> None:
    """There is none that nothing reads; a frozen vision-language model gets none and lets the rest learn."""
    smolvla, given = network(), observation()
    _loss(smolvla, given).backward()
    assert [name for name, parameter in smolvla.named_parameters() if parameter.grad is None] == []
    smolvla.zero_grad()
    for parameter in smolvla.prefix_parameters():
        parameter.requires_grad_(False)
    _loss(smolvla, given).backward()
    silent = {name.partition(".")[0] for name, parameter in smolvla.named_parameters() if parameter.grad is None}
    assert silent == PREFIX
    assert smolvla.state_proj.weight.grad.abs().sum() > 0


def _loss(smolvla: SmolVLA, given: PolicyInput) -> Tensor:
    return smolvla.velocity(noise(), times(), smolvla.encode(given))[0].square().mean()


def _reached(smolvla: SmolVLA, value: Tensor) -> set[str]:
    smolvla.zero_grad()
    value.backward()
    return {name.partition(".")[0] for name, parameter in smolvla.named_parameters() if parameter.grad is not None}


def test_every_parameter_is_of_the_prefix_of_a_head_or_of_the_expert() -> None:
    """And of one of them alone."""
    smolvla = network()
    parts = (smolvla.prefix_parameters(), smolvla.head_parameters(), smolvla.expert.parameters())
    found = [id(parameter) for part in parts for parameter in part]
    assert sorted(found) == sorted(id(parameter) for parameter in smolvla.parameters())
    assert len(smolvla.head_parameters()) == 10


def test_each_linear_map_of_both_decoders_can_be_adapted() -> None:
    """Where something reads what it gives: there is no other left."""
    smolvla = network()
    decoders = [
        name
        for name, module in smolvla.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(("text_model.", "expert."))
    ]
    assert sorted(smolvla.adapted_modules()) == sorted(decoders)


def test_a_prompt_is_the_instruction_and_one_line_feed() -> None:
    """As lerobot's step for it writes it."""
    assert build().prompts(["open the drawer", "close it\n"], torch.zeros(2, 7)) == ["open the drawer\n", "close it\n"]


def test_activations_that_are_computed_again_give_the_same_gradients() -> None:
    """And the vision tower, the language model and the expert each keep far fewer of them."""
    kept, gradients = [], []
    for again in (False, True):
        smolvla, given = network(gradient_checkpointing=again), observation()
        with counted() as seeing:
            given.features = smolvla.perceive(given)
        with counted() as reading:
            given.prefix = smolvla.encode_prefix(given)
        context = smolvla.encode(given)
        with counted() as acting:
            loss = smolvla.velocity(noise(), times(), context)[0].square().mean()
        loss.backward()
        kept.append([sum(part) for part in (seeing, reading, acting)])
        gradients.append([parameter.grad for parameter in smolvla.parameters()])
    assert all(less < 0.5 * more for more, less in zip(*kept, strict=True)), kept
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Numbers in each tensor that is kept for the backward pass."""
    found: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found


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


@pytest.mark.thorough
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
    assert {context.tensors[f"key_value/{index}"].dtype for index in range(sizes.LAYERS)} == {torch.bfloat16}
    assert velocity.dtype == features.dtype == context.pooled.dtype == torch.float32
    assert difference(velocity, GOLDEN["base/velocity/0"]) < 0.1
