"""π0 and π0.5 against what lerobot's and openpi's own networks gave: `tests/parity/lerobot_pi.py`, `openpi_pi.py`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl_policies.vlm import prepare_images
from tests.support import pi_inputs
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import lerobot, openpi, tokenizer_files
from tests.support.double_precision import in_float64
from tests.support.key_lists import read
from tests.support.small_pi import CLOSE, FAMILIES, GOLDEN, after_steps, build, golden, integrate, row
from tests.support.using_checkpoints import OPENPI, attach


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("index", range(sizes.ROWS))
@torch.no_grad()
def test_velocities_and_actions_are_those_of_lerobot(family: str, index: int) -> None:
    """At three times, and after four Euler steps, with all cameras, without the last, and without the middle one."""
    network, inputs = row(family, index)
    context, noise, expected = network.encode(inputs), pi_inputs.chunk("noise")[[index]], golden(family)
    for moment in sizes.TIMES:
        velocity, _ = network.velocity(noise, torch.tensor([moment]), context)
        torch.testing.assert_close(velocity[0], expected[f"network.velocity.{moment}"][index], **CLOSE)
    actions = integrate(network, noise, context, sizes.STEPS)
    torch.testing.assert_close(actions[0], expected["network.actions"][index], **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_keys_and_values_are_those_of_lerobot(family: str) -> None:
    """Of the second layer; and the image features are, which are not scaled."""
    network, inputs = row(family, 0)
    prefix, expected = network.encode_prefix(inputs), golden(family)
    kept = prefix["key_value"][0, 1] * prefix["mask"][0][None, None, :, None]
    torch.testing.assert_close(kept[0], expected["network.layer1.keys"][0], **CLOSE)
    torch.testing.assert_close(kept[1], expected["network.layer1.values"][0], **CLOSE)
    features = network.perceive(inputs)["image"][:, 0]
    torch.testing.assert_close(features, expected["network.image_features"], **CLOSE)


@pytest.mark.parametrize("camera", ["base_0_rgb", "left_wrist_0_rgb"])
def test_images_are_prepared_as_in_lerobot(camera: str) -> None:
    """To the bit: wide and tall pictures, resized and padded; every second column of the first row was recorded."""
    prepared = prepare_images(torch.from_numpy(sizes.taken_images(camera)), sizes.IMAGE_SIZE, centred=True)
    expected = golden("pi0")[f"images.{camera}"]
    assert torch.equal(prepared[0, :, :, ::2], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_become_the_tokens_that_lerobot_makes(family: str) -> None:
    """π0.5's holds the state in bins; both end as the format says; padding is 0 here, as PaliGemma's is."""
    from tests.support.tiny_tokenizer import tiny_tokenizer

    kind, parts = ("quantiles", ("q01", "q99")) if family == "pi05" else ("mean_std", ("mean", "std"))
    known = [sizes.statistics("state", sizes.STATE_DIM)[part] for part in parts]
    statistics = (
        Normalisation.from_bounds(kind, known[0], np.where(known[0] == known[1], known[1] + 1e-8, known[1]))
        if family == "pi05"
        else Normalisation(kind, tuple(known[0].tolist()), tuple((known[1] + 1e-8).tolist()))
    )
    state = statistics.normalise(torch.from_numpy(sizes.state()))
    recorded = golden(family)["policy.state"]
    moving = slice(0, -1)  # the last entry never moved, so lerobot divides what float32 leaves of it by 1e-8
    torch.testing.assert_close(state[:, moving], recorded[:, moving], rtol=1e-5, atol=1e-5)
    network = build(family)
    network.config = replace(network.config, prompt="lerobot")
    prompts = network.prompts(sizes.TASKS, recorded)
    ids = tokenizer.tokenize_pieces(prompts, tiny_tokenizer().to_str(), sizes.PROMPT_LENGTH[family])
    expected = golden(family)["policy.tokens"] * golden(family)["policy.token_mask"]
    assert torch.equal(torch.from_numpy(ids), expected)


def test_prompts_follow_the_project_of_the_checkpoint(tmp_path: Path) -> None:
    """Underscores, line feeds and outer spaces stay in lerobot's π0; openpi writes spaces, and removes outer ones."""
    task = [" pick_up\nthe cup"]
    kept, cleaned = [" pick_up\nthe cup\n"], ["pick up the cup\n"]
    network, _ = attach(lerobot(tmp_path / "lerobot", "pi0"), "pi0")
    assert network.prompts(task, torch.zeros(1, 1)) == kept
    network, _ = attach(lerobot(tmp_path / "again", "pi0"), "pi0", options={"prompt": "openpi"})
    assert network.prompts(task, torch.zeros(1, 1)) == cleaned
    tokenizer = str(tokenizer_files(tmp_path / "tokenizer"))
    network, _ = attach(openpi(tmp_path / "openpi", "pi0"), "pi0", options=OPENPI, tokenizer=tokenizer)
    assert network.prompts(task, torch.zeros(1, 1)) == cleaned


def test_the_state_is_written_in_256_bins() -> None:
    """The edges: -1 and the middle open a bin, what lies above falls into the last one, what lies below is -1."""
    state = torch.tensor([[-1.0, 0.0, 0.999, 1.0, 7.0, -1.001, 2 / 256 - 1]])
    (prompt,) = build("pi05").prompts([" pick_up\nthe cup "], state)
    assert prompt == "Task: pick up the cup, State: 0 128 255 255 255 -1 1;\nAction: "


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_changes_nothing(family: str) -> None:
    """A longer prompt buffer, and what stands in images of cameras that are left out, never reach the actions."""
    network, inputs = row(family, 1)
    longer = PolicyInput(inputs.images, inputs.state, torch.nn.functional.pad(inputs.tokens, (0, 9)))
    noise = pi_inputs.chunk("noise")[[1]]
    first, second = (integrate(network, noise, network.encode(given), 2) for given in (inputs, longer))
    torch.testing.assert_close(first, second, **CLOSE)
    assert network.encode(longer).tensors["mask"].shape[1] == network.encode(inputs).tensors["mask"].shape[1] + 9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kept_prefix_gives_the_same_velocity_and_gradients_reach_the_expert_alone(family: str) -> None:
    network, inputs = row(family, 0)
    for parameter in network.prefix_parameters():
        parameter.requires_grad_(False)
    kept = PolicyInput({}, inputs.state, inputs.tokens, prefix=network.encode_prefix(inputs))
    noise, time = pi_inputs.chunk("noise")[[0]], torch.tensor([0.4])
    velocity, _ = network.velocity(noise, time, network.encode(kept))
    assert torch.equal(velocity, network.velocity(noise, time, network.encode(inputs))[0])
    velocity.square().sum().backward()
    learned = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert learned == {name for name in dict(network.named_parameters()) if not name.startswith(PREFIX)}


PREFIX = ("vision.", "projector.", "language.")


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_no_gradient(family: str) -> None:
    _, inputs = row(family, 0)
    gradients: list[dict[str, Tensor]] = []
    for less in (False, True):
        network = build(family, tuple(inputs.images), gradient_checkpointing=less)
        velocity, _ = network.velocity(pi_inputs.chunk("noise")[[0]], torch.tensor([0.7]), network.encode(inputs))
        velocity.square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    plain, saved = gradients
    assert plain.keys() == saved.keys()
    assert any(name.startswith("language") for name in plain)
    for name, value in plain.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("project", ["lerobot", "openpi"])
def test_full_size_networks_have_the_tensors_of_the_published_checkpoints(family: str, project: str) -> None:
    """Names and shapes, 3.5 billion parameters on the meta device; nothing else of a checkpoint is unaccounted for."""
    cls = FAMILIES[family]
    with torch.device("meta"):
        network = cls(cls.Config(), 7, 8, ("base_0_rgb",), (224, 224), 0, cls.Config().token_length)
    own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    theirs = read(GOLDEN / f"keys_{family}_{project}.json")
    ours = {name: weight_names.to_our_name(cls, name) for name in theirs}
    assert set(own) <= set(ours.values())
    assert {mine: theirs[name] for name, mine in ours.items() if mine in own} == own
    import re

    unread = re.compile("|".join(cls.CHECKPOINT_UNREAD))
    assert all(unread.match(weight_names.strip_outermost(name)) for name, mine in ours.items() if mine not in own)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_encoding_and_denoising_compile_into_one_graph(family: str) -> None:
    """What `torch.compile(fullgraph=True)` needs: no step of a decision falls back to Python."""
    network, inputs = row(family, 0)
    noise = pi_inputs.chunk("noise")[[0]]

    def velocity(x: Tensor, key_value: Tensor, mask: Tensor, state: Tensor) -> Tensor:
        context = Context({"key_value": key_value, "mask": mask, "state": state}, key_value)
        return integrate(network, x, context, 2)

    prefix = network.encode_prefix(inputs)
    compiled = torch.compile(velocity, fullgraph=True, backend="eager")
    given = noise, prefix["key_value"], prefix["mask"], inputs.state
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), velocity(*given), **CLOSE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 5}, r"policy\.head_dim=5"),
        ({"vision_heads": 3}, r"policy\.vision_heads=3"),
        ({"resolution": 50}, r"policy\.resolution=50"),
        ({"layers": 0}, r"policy\.layers=0"),
        ({"action_dim": 3}, "5 action entries, the network takes 3"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("pi0", **changes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", sizes.OTHER_STEPS)
@pytest.mark.parametrize(
    ("precision", "entered", "tolerance"), [("float32", nullcontext, 5e-6), ("float64", in_float64, 1e-12)]
)
@torch.no_grad()
def test_any_number_of_steps_gives_the_actions_of_lerobot(
    family: str, steps: int, precision: str, entered: Callable[[], AbstractContextManager[None]], tolerance: float
) -> None:
    """In float32 up to rounding, which in float64 is gone: the formulas are the same."""
    with entered():
        found = after_steps(family, steps)
    expected = load_file(GOLDEN / f"{family}_lerobot_steps.safetensors")[f"{precision}.{steps}"]
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
