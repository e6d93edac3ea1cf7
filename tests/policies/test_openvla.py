"""OpenVLA and OpenVLA-OFT: the official code's logits and actions, bins, images, the cheaper output layer, learning."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.learning.update_memory import make_blank_trace
from embodied_rl.actors.network_actor import Keep, read_inputs
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.token import BINS, TokenActor, draw_uniform, invert
from embodied_rl.actors.tokenizer import make_word_tokenizer
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.schema import AlgoNode, LoraNode, PolicyNode, SimNode, TrainConfig
from embodied_rl.testing.policy_contract import check_actor, make_random_observation
from embodied_rl.training import predicted_hours
from embodied_rl_policies.openvla.images import normalise_colours, prepare_images
from tests.support import openvla_sizes as sizes
from tests.support import recipe, small_openvla
from tests.support.double_precision import in_float64
from tests.support.refusals import refuses

NAMES = ("openvla_oft", "openvla")
CLOSE = 1e-5
each = pytest.mark.parametrize


@each("variant", sizes.VARIANTS)
@torch.no_grad()
def test_parallel_logits_and_actions_are_the_official_ones(variant: str) -> None:
    """The official code takes one row at a time, without padding, and a mask of its own transformers."""
    network, golden = small_openvla.network("openvla_oft", variant), small_openvla.golden("openvla_oft")
    logits, _ = network.action_logits(network.encode(small_openvla.observation(variant)))
    assert small_openvla.difference(logits.flatten(1, 2)[:, :: sizes.STEP], golden[f"{variant}/logits"]) < CLOSE
    actions = small_openvla.restore(network.bin_centres()[logits.argmax(dim=-1)])
    assert small_openvla.difference(actions, golden[f"{variant}/actions"]) < CLOSE
    assert (golden[f"{variant}/logits"].diff(dim=1).abs().amax(dim=-1) > 0.01).all(), "places differ"


@torch.no_grad()
def test_logits_and_actions_in_order_are_the_official_ones() -> None:
    network, golden = small_openvla.network("openvla"), small_openvla.golden("openvla")
    context = network.encode(small_openvla.observation())
    logits, _ = network.action_logits(context, small_openvla.given_bins())
    assert small_openvla.difference(logits[:, 0], golden["logits"]) < CLOSE
    unit = network.bin_centres()[small_openvla.choose_in_order(network, context)]
    assert small_openvla.difference(small_openvla.restore(unit), golden["actions"]) < CLOSE


def test_images_of_the_right_size_are_prepared_as_in_the_official_processor() -> None:
    network, images = small_openvla.build(), small_openvla.observation().images["full_image"][:1]
    colours, config = prepare_images(images, sizes.RESOLUTION, 1.0), network.config
    both = [
        normalise_colours(colours, *pair)
        for pair in ((config.dino_mean, config.dino_std), (config.siglip_mean, config.siglip_std))
    ]
    assert small_openvla.difference(torch.cat(both, dim=1), small_openvla.golden("openvla_oft")["one/pixels"]) < CLOSE


@each("shape", [(64, 64), (31, 50)])
def test_other_images_are_resized_by_lanczos(shape: tuple[int, int]) -> None:
    """Pillow has the same kernel; with floating-point pixels it rounds nothing in between."""
    picture = recipe.picture("resized", 1, *shape)
    found = prepare_images(torch.from_numpy(picture), sizes.RESOLUTION, 1.0)[0].numpy() * 255
    for channel in range(3):
        image = Image.fromarray(picture[0, :, :, channel].astype(np.float32))
        expected = np.asarray(image.resize((sizes.RESOLUTION, sizes.RESOLUTION), Image.Resampling.LANCZOS)).clip(0, 255)
        assert np.abs(found[channel] - expected).max() <= 0.5 + 1e-3
        assert np.abs(found[channel] - found[channel].round()).max() < 1e-4


def test_the_centre_is_cut_out_and_enlarged() -> None:
    """Corner pixels of the cut-out lie on those of the result, as in `tf.image.crop_and_resize`."""
    picture, size, side = torch.from_numpy(recipe.picture("cropped", 2, 42, 42)), 42, 0.9**0.5
    line = torch.linspace(-side, side, size, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij")[::-1], dim=-1).expand(2, -1, -1, -1)
    colours = picture.permute(0, 3, 1, 2).double() / 255
    expected = F.grid_sample(colours, grid, align_corners=True) * 255
    found = prepare_images(picture, size, 0.9).double() * 255
    assert (found - expected).abs().max() < 1.0, "rounded down, after a stretch from 255 to 255.5"
    assert small_openvla.difference(found, (expected * (255.5 / 255)).floor().clamp(0, 255)) < 1e-4


def test_bins_are_the_official_tokens() -> None:
    """`prismatic/vla/action_tokenizer.py`: ids 31744 to 31999, edges and centres of 255 intervals."""
    network = small_openvla.build()
    assert (network.config.first_action_token, network.bins) == (31_744, 256)
    edges = np.linspace(-1, 1, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    actions = np.concatenate([np.linspace(-1.2, 1.2, 1001), edges, centres]).astype(np.float32)
    ids = 32_000 - np.digitize(np.clip(actions.astype(np.float64), -1, 1), edges)
    bins = network.find_bins(torch.from_numpy(actions))
    assert np.array_equal(bins.numpy() + 31_744, ids)
    restored = centres[np.clip(32_000 - np.arange(31_744, 32_000) - 1, 0, 254)]
    np.testing.assert_allclose(network.bin_centres().numpy(), restored, atol=1e-7)


def compare_output_layers(name: str) -> float:
    """The largest difference of log-probabilities of bins, between the rows of bins and the whole output layer."""
    network, kept = small_openvla.network(name), []
    network.bin_logits = lambda hidden: kept.append(hidden) or type(network).bin_logits(network, hidden)
    logits, _ = network.action_logits(network.encode(small_openvla.observation()))
    first, weight = network.config.first_action_token, network.language_model.lm_head.weight
    expected = F.linear(kept[-1], weight)[..., first : first + network.bins].log_softmax(dim=-1)
    return small_openvla.difference(logits.log_softmax(dim=-1).reshape(expected.shape), expected)


@each("name", NAMES)
@torch.no_grad()
def test_the_rows_of_bins_give_what_the_whole_output_layer_does(name: str) -> None:
    assert compare_output_layers(name) <= 1e-6
    with in_float64():
        assert compare_output_layers(name) <= 1e-12


class LargestTensor(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation computes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        storages = (each.untyped_storage().nbytes() // 4 for each in [result] if isinstance(each, torch.Tensor))
        if not func.is_view:
            self.elements = max(self.elements, *storages, 0)
        return result


@each("name", NAMES)
@torch.no_grad()
def test_logits_take_a_125th_of_the_whole_vocabularys_memory(name: str) -> None:
    """No larger tensor is computed on the way, so that the whole output is not computed and cut either."""
    network = small_openvla.network(name)
    hidden = torch.ones(sizes.ROWS, sizes.ACTION_DIM, sizes.WIDTH)
    with LargestTensor() as seen:
        logits = network.bin_logits(hidden)
    assert seen.elements == logits.numel() == sizes.ROWS * sizes.ACTION_DIM * sizes.BINS
    assert sizes.VOCABULARY / sizes.BINS > 125


@each("name", NAMES)
@torch.no_grad()
def test_neither_padding_nor_other_rows_change_a_row(name: str) -> None:
    network, inputs = small_openvla.network(name, "two", token_length=20), small_openvla.observation("two")
    logits, features = network.action_logits(network.encode(inputs), small_openvla.given_bins())
    padded = F.pad(inputs.tokens[1:2], (0, 5))
    images = {camera: image[1:2] for camera, image in inputs.images.items()}
    alone = network.encode(PolicyInput(images, inputs.state[1:2], padded))
    found = network.action_logits(alone, small_openvla.given_bins()[1:2])
    assert (
        small_openvla.difference(found[0], logits[1:2]) < CLOSE
        and small_openvla.difference(found[1], features[1:2]) < CLOSE
    )
    assert small_openvla.difference(alone.pooled, network.encode(inputs).pooled[1:2]) < CLOSE


@torch.no_grad()
def test_an_entry_depends_on_those_before_it_alone() -> None:
    network = small_openvla.network("openvla")
    context, bins = network.encode(small_openvla.observation()), small_openvla.given_bins()
    logits, features = network.action_logits(context, bins)
    for entry in range(sizes.ACTION_DIM):
        stepped = network.next_logits(context, bins[:, 0, :entry])
        assert small_openvla.difference(stepped, logits[:, 0, entry]) < CLOSE
    changed = bins.clone()
    changed[:, 0, 3] = (changed[:, 0, 3] + 100) % 256
    other, same = network.action_logits(context, changed)
    assert torch.equal(same, features) and small_openvla.difference(other[:, 0, :4], logits[:, 0, :4]) < CLOSE
    assert all(small_openvla.difference(other[:, 0, entry], logits[:, 0, entry]) > 1e-4 for entry in (4, 5, 6))


@each("name", NAMES)
def test_the_state_beyond_its_range_is_clipped(name: str) -> None:
    network, inputs = small_openvla.network(name, "two"), small_openvla.observation("two")
    far, edge = (replace(inputs, state=torch.full_like(inputs.state, value)) for value in (7.0, 1.0))
    assert torch.equal(network.encode(far).pooled, network.encode(edge).pooled)
    assert not torch.equal(network.encode(far).pooled, network.encode(inputs).pooled)


def build_actor(name: str, critic: str = "prefix", keep: Keep = "images", train: str = "full") -> TokenActor:
    """An actor with words for a tokenizer, the whole of whose actions are executed."""
    spec = small_openvla.simulator(("full_image", "wrist_image"))
    network = small_openvla.network(name, "two", token_length=24)
    trainable.choose_trainable(network, train, LoraNode(rank=2))
    robot = Embodiment.of_simulator(spec, network.spec.horizon, 24)
    robot = replace(robot, tokenizer=make_word_tokenizer([*spec.words, *network.PROMPT_WORDS]))
    network.spec = replace(network.spec, token_length=24)
    head = make_critic(critic, privileged_dim=0, context_dim=sizes.WIDTH, feature_dim=sizes.WIDTH)
    return TokenActor(network, head, robot, freeze_perception=keep == "features", keep=keep)


def keys(rows: int) -> NoiseKeys:
    return NoiseKeys(3, np.arange(rows), np.zeros(rows, np.int64))


@each("name", NAMES)
@each(("critic", "keep"), [("prefix", "images"), ("expert", "features"), ("none", "images")])
def test_the_contract_of_an_actor(name: str, critic: str, keep: Keep) -> None:
    check_actor(lambda: build_actor(name, critic, keep), small_openvla.simulator(("full_image", "wrist_image")))


@each("name", NAMES)
@each("train", ["full", "lora"])
def test_the_first_ratio_of_an_update_is_exactly_1(name: str, train: str) -> None:
    actor, observation = build_actor(name, train=train), make_random_observation(small_openvla.simulator(sizes.CAMERAS))
    decision = actor.act(observation, keys(3), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal((again.log_prob - decision.log_prob).exp(), torch.ones_like(decision.log_prob))
    assert torch.equal(again.value, decision.value)
    again.log_prob.sum().backward()
    learned = {name for name, parameter in actor.backbone.named_parameters() if parameter.requires_grad}
    reached = {name for name, parameter in actor.backbone.named_parameters() if parameter.grad is not None}
    assert reached == learned
    if train == "lora":
        assert all(".lora_" in name or name.startswith("proprio_projector.") for name in learned)


@each("name", NAMES)
@each("autocast", [False, True])
def test_frozen_weights_may_be_bfloat16_while_adapters_learn_in_float32(name: str, autocast: bool) -> None:
    """No part of these networks can be cached as a prefix, so all that does not learn is halved."""
    node = PolicyNode(name, device="cpu", precision="bfloat16", train="lora", autocast=autocast)
    actor = place_actor(build_actor(name, train="lora"), node)
    types = {each.requires_grad: each.dtype for each in actor.backbone.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}
    decision = actor.act(make_random_observation(small_openvla.simulator(sizes.CAMERAS)), keys(3), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob)
    again.log_prob.sum().backward()
    assert all(each.grad is not None for each in actor.backbone.parameters() if each.requires_grad)


@each("name", NAMES)
def test_the_operations_of_a_decision_are_counted_in_shapes(name: str) -> None:
    """As torch counts them on real tensors: the prefix and all entries."""
    actor, rows = build_actor(name, "none"), 2
    inputs = read_inputs(make_blank_trace(actor.input_spec(), rows))
    plain = sdpa_kernel(SDPBackend.MATH)  # torch does not count its fused attention on a processor
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        actor.choose(actor.backbone.encode(inputs), None)
    config = TrainConfig(SimNode("libero"), PolicyNode(name), AlgoNode("ppo"))
    counted = predicted_hours.count_decision(config, Needs(), actor)
    assert counted is not None and counted * rows == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_entries_are_drawn_in_order_each_by_its_own_distribution() -> None:
    actor, observation = build_actor("openvla", "none"), make_random_observation(small_openvla.simulator(sizes.CAMERAS))
    bins = actor.act(observation, keys(3), explore=True).trace[BINS]
    context = actor.backbone.encode(actor.observation_inputs(observation))
    logits, _ = actor.backbone.action_logits(context, bins)
    uniform = draw_uniform(keys(3), 1, sizes.ACTION_DIM, torch.device("cpu"))
    assert torch.equal(invert(logits, uniform), bins)


@each("name", NAMES)
def test_recomputed_activations_give_the_same_gradients(name: str) -> None:
    found = []
    for recompute in (False, True):
        network = small_openvla.network(name, gradient_checkpointing=recompute)
        network.action_logits(network.encode(small_openvla.observation()), small_openvla.given_bins())[
            0
        ].square().sum().backward()
        found.append({name: parameter.grad for name, parameter in network.named_parameters()})
    assert found[0].keys() == found[1].keys()
    assert all(value is not None and torch.allclose(value, found[1][name]) for name, value in found[0].items())


def test_at_full_size_it_has_the_official_tensors() -> None:
    """Names and shapes of openvla/openvla-7b as timm 0.9.10 and transformers 4.40.1 make them; no memory is taken."""
    official = json.loads((small_openvla.GOLDEN / "keys_openvla.json").read_text())
    cls = small_openvla.CLASSES["openvla_oft"]
    with torch.device("meta"):
        network = cls(cls.Config(), 7, 8, ("any",), (224, 224), 32_001, 64)
    found = {name: list(value.shape) for name, value in network.state_dict().items()}
    assert not found.keys() & network.unread_shapes().keys()
    found |= {name: list(shape) for name, shape in network.unread_shapes().items()}
    assert found == official
    assert 7.5e9 < sum(np.prod(shape) for shape in found.values()) < 7.6e9


WRONG: dict[str, tuple[Any, str]] = {
    "heads": (3, "policy-sizes-invalid"),
    "key_value_heads": (3, "policy-sizes-invalid"),
    "dino_heads": (5, "policy-sizes-invalid"),
    "resolution": (43, "policy-sizes-invalid"),
    "crop_area": (0.0, "value-out-of-range"),
    "bins": (1, "value-out-of-range"),
    "stop_token": (40_000, "value-out-of-range"),
    "empty_token": (-1, "value-out-of-range"),
    "padding_rows": (32_000, "policy-sizes-invalid"),
    "dino_std": ((0.0, 1.0, 1.0), "value-out-of-range"),
    "layers": (1001, "value-out-of-range"),
    "action_dim": (4, "policy-does-not-fit"),
    "state_dim": (3, "policy-does-not-fit"),
    "token_length": (2, "policy-does-not-fit"),
}


@each("key", WRONG)
def test_wrong_sizes(key: str) -> None:
    value, code = WRONG[key]
    with refuses(code, key):
        small_openvla.build("openvla_oft", "two", **{key: value})
