"""The pocket VLA: pads, batching, cameras, attention, localisation, and that it learns."""

import importlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.testing.contract import check_backbone
from embodied_rl_policies import POLICIES
from embodied_rl_policies.pocket import Attention, Pocket, make_pixel_grid, make_position_encoding, modulate

SMALL = Pocket.Config(width=32, layers=3, heads=4, horizon=4, keypoints=8, stem_channels=16)


def network(cameras: tuple[str, ...] = ("front",), config: Pocket.Config = SMALL, seed: int = 0) -> Pocket:
    """A small network whose modulation depends on time."""
    torch.manual_seed(seed)
    pocket = Pocket(config, 3, 5, cameras, (32, 32), 10, 6, ("x", "y"))
    torch.nn.init.normal_(pocket.modulation.weight, std=0.2)
    torch.nn.init.normal_(pocket.views, std=0.5)
    return pocket


def inputs(n: int, cameras: tuple[str, ...] = ("front",), words: int = 4) -> PolicyInput:
    """Random rows with instructions of `words` words and two pads."""
    random = torch.Generator().manual_seed(1)
    images = {name: torch.randint(0, 256, (n, 32, 32, 3), dtype=torch.uint8, generator=random) for name in cameras}
    tokens = torch.zeros(n, 6, dtype=torch.int64)
    tokens[:, :words] = torch.randint(1, 10, (n, words), generator=random)
    return PolicyInput(images, torch.randn(n, 5, generator=random), tokens)


@torch.no_grad()
def outputs(pocket: Pocket, given: PolicyInput) -> tuple[Tensor, ...]:
    """Velocity, features, pooled prefix and localisation at a fixed noise and time."""
    random = torch.Generator().manual_seed(2)
    x = torch.randn(1, 4, 3, generator=random).expand(len(given), 4, 3)
    context = pocket.encode(given)
    return *pocket.velocity(x, torch.full((len(given),), 0.6), context), context.pooled, context.auxiliary


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Equal within rounding."""
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


def test_the_table_names_importable_classes() -> None:
    """Entry points resolve POLICIES lazily."""
    for path in POLICIES.values():
        module, name = path.split(":")
        assert hasattr(getattr(importlib.import_module(module), name), "Config")


def test_padding_changes_nothing() -> None:
    """Neither how many pads follow the words nor what their embedding holds reaches an output."""
    pocket, given = network(), inputs(3)
    with_pads = outputs(pocket, given)
    assert same(with_pads, outputs(pocket, replace(given, tokens=given.tokens[:, :4])))
    with torch.no_grad():
        pocket.words.weight[0] = 50.0
    assert same(with_pads, outputs(pocket, given))


def test_an_empty_instruction_is_finite() -> None:
    """Nothing but pads: no word to average, and no NaN."""
    given = inputs(2)
    assert all(value.isfinite().all() for value in outputs(network(), replace(given, tokens=0 * given.tokens)))


@pytest.mark.parametrize("field", ["images", "tokens", "state"])
def test_every_input_reaches_the_action(field) -> None:
    """Another image, another word and another state each move the velocity; image and words move perception."""
    pocket, given = network(), inputs(2)
    changes = {
        "images": {"images": {"front": 255 - given.images["front"]}},
        "tokens": {"tokens": (given.tokens % 9 + 1) * (given.tokens != 0)},
        "state": {"state": given.state + 1},
    }
    before, after = outputs(pocket, given), outputs(pocket, replace(given, **changes[field]))
    assert not torch.allclose(before[0], after[0], atol=1e-4)
    assert torch.allclose(before[3], after[3]) == (field == "state")


def test_cameras_share_the_stem_and_keep_their_identity() -> None:
    """The parameters grow by an embedding and a localisation input alone; each image counts; swapping them shows."""
    two, given = network(("front", "wrist")), inputs(2, ("front", "wrist"))
    stem = sum(parameter.numel() for parameter in two.stem.parameters())
    assert stem == sum(parameter.numel() for parameter in network().stem.parameters())
    swapped = {"front": given.images["wrist"], "wrist": given.images["front"]}
    twice = two.perceive(replace(given, images=dict.fromkeys(("front", "wrist"), given.images["front"])))
    assert not torch.allclose(twice["keypoints"][:, 0], twice["keypoints"][:, 1], atol=1e-4)
    for images in (given.images | {"wrist": 255 - given.images["wrist"]}, swapped):
        assert not torch.allclose(outputs(two, given)[0], outputs(two, replace(given, images=images))[0], atol=1e-4)


def test_perception_parameters_are_what_perceive_and_localisation_use() -> None:
    """Exactly those receive a gradient from features and localisation."""
    pocket, given = network(), inputs(3)
    features = pocket.perceive(given)
    (pocket.predict_auxiliary(features).square().sum() + sum(f.square().sum() for f in features.values())).backward()
    used = {id(parameter) for parameter in pocket.parameters() if parameter.grad is not None}
    assert used == {id(parameter) for parameter in pocket.perception_parameters()}


def test_gradients_reach_every_parameter() -> None:
    """No part of the network is dead."""
    pocket = network()
    with torch.no_grad():
        for parameter in pocket.localise.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    context = pocket.encode(inputs(4))
    velocity, _ = pocket.velocity(torch.randn(4, 4, 3), torch.rand(4), context)
    (velocity.square().sum() + context.auxiliary.square().sum() + context.pooled.square().sum()).backward()
    assert [name for name, p in pocket.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_without_a_camera_it_acts_on_state_and_words() -> None:
    torch.manual_seed(0)
    pocket = Pocket(SMALL, 3, 5, (), (0, 0), 10, 6)
    torch.nn.init.normal_(pocket.modulation.weight, std=0.2)
    given = inputs(4, cameras=())
    velocity, *_ = outputs(pocket, given)
    assert velocity.shape == (4, 4, 3)
    for other in (replace(given, state=given.state + 1), replace(given, tokens=given.tokens.roll(1, 0))):
        assert not torch.allclose(outputs(pocket, other)[0], velocity)
    context = pocket.encode(given)
    pocket.velocity(torch.randn(4, 4, 3), torch.rand(4), context)[0].square().sum().backward()
    assert {name for name, p in pocket.named_parameters() if p.grad is None} <= {"views", "places.weight"}
    check_backbone(lambda: Pocket(SMALL, 3, 5, (), (0, 0), 10, 6), vocabulary=10)


def test_modulation_starts_without_time_and_then_has_it() -> None:
    """A fresh expert ignores t; a trained one does not."""
    torch.manual_seed(0)
    fresh = Pocket(SMALL, 3, 5, ("front",), (32, 32), 10, 6)
    given, x = inputs(2), torch.randn(2, 4, 3)
    for pocket, differs in ((fresh, False), (network(), True)):
        context = pocket.encode(given)
        early, late = (pocket.velocity(x, torch.full((2,), t), context)[0] for t in (0.9, 0.1))
        assert torch.allclose(early, late, atol=1e-6) != differs


def test_action_tokens_attend_to_each_other_and_have_positions() -> None:
    """Changing the noise of one action moves the velocity of the others; equal noise still gives unequal actions."""
    pocket, t = network(), torch.full((1,), 0.5)
    with torch.no_grad():
        context = pocket.encode(inputs(1))
        x = torch.zeros(1, 4, 3)
        before, _ = pocket.velocity(x, t, context)
        x[0, 3] = 2.0
        after, _ = pocket.velocity(x, t, context)
    assert not torch.allclose(before[0, 0], after[0, 0], atol=1e-4)
    assert not torch.allclose(before[0, 0], before[0, 1], atol=1e-4)


def test_grids_are_symmetric_and_distinct() -> None:
    """Cell centres average to 0 and lie half a cell inside; no two patches share a position code."""
    grid = make_pixel_grid(4, 8)
    assert torch.allclose(grid.mean(dim=0), torch.zeros(2), atol=1e-6)
    assert grid[0].tolist() == [-1 + 1 / 8, -1 + 1 / 4]
    codes = make_position_encoding(4, 32)
    assert (torch.cdist(codes, codes) + 10 * torch.eye(16)).min() > 0.5


def scene(n: int, random: torch.Generator) -> tuple[PolicyInput, Tensor]:
    """A red and a green square on grey; word 1 or 2 names one, whose centre in [-1, 1] is the target."""
    corner = torch.randint(0, 27, (n, 2, 2), generator=random)
    named = torch.randint(0, 2, (n,), generator=random)
    pixel = torch.arange(32)
    inside = (pixel >= corner[..., None]) & (pixel < corner[..., None] + 5)
    image = torch.full((n, 32, 32, 3), 80, dtype=torch.uint8)
    for colour, paint in enumerate(([230, 0, 20], [0, 230, 20])):
        image[inside[:, colour, 1, :, None] & inside[:, colour, 0, None]] = torch.tensor(paint, dtype=torch.uint8)
    target = (corner[torch.arange(n), named] + 2.5) / 16 - 1
    return PolicyInput({"front": image}, torch.zeros(n, 5), (named + 1)[:, None].repeat(1, 6)), target


@pytest.mark.thorough
def test_perception_learns_to_localise_what_the_words_name() -> None:
    """In 150 steps the localisation error falls far below the 0.6 of guessing, and follows the word."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    pocket = Pocket(SMALL, 3, 5, ("front",), (32, 32), 10, 6, ("x", "y"))
    optimiser = torch.optim.Adam(pocket.perception_parameters(), 3e-3)
    for _ in range(150):
        given, target = scene(32, random)
        loss = (pocket.predict_auxiliary(pocket.perceive(given)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    given, target = scene(128, random)
    with torch.no_grad():
        error = (pocket.predict_auxiliary(pocket.perceive(given)) - target).norm(dim=1)
        other = replace(given, tokens=3 - given.tokens)
        swapped = (pocket.predict_auxiliary(pocket.perceive(other)) - target).norm(dim=1)
    assert error.median() < 0.2
    assert swapped.median() > 0.4


def test_sizes_that_do_not_fit_are_refused() -> None:
    """Each message names what to change."""
    for change, message in [
        ({"width": 36}, r"policy\.width=36"),
        ({"heads": 3}, r"policy\.heads=3"),
        ({"layers": 0}, r"policy\.layers=0"),
        ({"stem_channels": 20}, r"policy\.stem_channels=20"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **change)
    with pytest.raises(ValueError, match="requires a camera"):
        Pocket(SMALL, 3, 5, (), (0, 0), 10, 6, ("x",))
    with pytest.raises(ValueError, match="multiples of 16"):
        Pocket(SMALL, 3, 5, ("front",), (30, 32), 10, 6)


def test_attention_against_its_definition() -> None:
    """softmax(q k / sqrt(d)) v head by head, over the keys that may be seen."""
    torch.manual_seed(0)
    attention, tokens = Attention(16, 2), torch.randn(3, 5, 16)
    prefix, mask = torch.randn(3, 4, 32), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 2:4] = False
    key_value = torch.cat([prefix, attention.key_value(tokens)], dim=1)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        query, key, value = attention.query(tokens)[..., head], key_value[..., :16][..., head], key_value[..., 16:]
        score = torch.einsum("nqc,nkc->nqk", query, key) / 8**0.5
        weight = score.masked_fill(~mask[:, None], -torch.inf).softmax(dim=-1)
        heads.append(weight @ value[..., head])
    expected = attention.out(torch.cat(heads, dim=-1))
    assert torch.allclose(attention(tokens, key_value, mask), expected, atol=1e-5)


def test_modulation_scales_and_shifts_a_vector_of_unit_mean_square() -> None:
    """adaRMS: x / rms(x) · (1 + scale) + shift, whatever the size of x."""
    torch.manual_seed(0)
    tokens, scale, shift = 5 * torch.randn(2, 4, 32), torch.randn(2, 1, 32), torch.randn(2, 1, 32)
    normed = (modulate(tokens, scale, shift) - shift) / (1 + scale)
    assert torch.allclose(normed.square().mean(dim=-1), torch.ones(2, 4), atol=1e-3)
    assert torch.allclose(normed, tokens / tokens.square().mean(dim=-1, keepdim=True).sqrt(), atol=1e-3)
