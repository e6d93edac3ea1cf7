"""OpenVLA-OFT with its L1 head: the official code's actions, folders, learning, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.gaussian import GaussianActor
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.tokenizer import make_word_tokenizer
from embodied_rl.checkpoints import detection
from embodied_rl.commands import inspect
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.schema import InspectConfig, LoraNode, PolicyNode
from embodied_rl.testing.policy_contract import check_actor, make_random_observation
from tests.support import openvla_sizes as sizes
from tests.support import recipe, small_openvla
from tests.support.building_checkpoints import POISON
from tests.support.refusals import refuses
from tests.support.small_openvla import HEAD, attach, write_folder
from tests.support.using_checkpoints import assert_same_tensors, small_files, stored, there_and_back

NAME, CLOSE = "openvla_oft_l1", 1e-5
each = pytest.mark.parametrize


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cameras, state, an L1 head."""
    return write_folder(tmp_path / "folder", "two", head=True)


def build_actor(critic: str = "prefix", train: str = "full") -> GaussianActor:
    """An actor with words for a tokenizer, the whole of whose actions are executed."""
    spec = small_openvla.simulator(sizes.CAMERAS)
    network = small_openvla.network(NAME, "two", token_length=24)
    trainable.choose_trainable(network, train, LoraNode(rank=2))
    robot = Embodiment.of_simulator(spec, network.spec.horizon, 24)
    robot = replace(robot, tokenizer=make_word_tokenizer([*spec.words, *network.PROMPT_WORDS]))
    network.spec = replace(network.spec, token_length=24)
    head = make_critic(critic, privileged_dim=0, context_dim=sizes.WIDTH, feature_dim=sizes.WIDTH)
    return GaussianActor(network, head, robot, strength=0.1)


def keys(rows: int) -> NoiseKeys:
    return NoiseKeys(3, np.arange(rows), np.zeros(rows, np.int64))


@each("variant", sizes.VARIANTS)
@torch.no_grad()
def test_predictions_and_actions_are_the_official_ones(variant: str) -> None:
    network, golden = small_openvla.network(NAME, variant), small_openvla.golden(NAME)
    mean, _ = network.action_mean(network.encode(small_openvla.observation(variant)))
    assert small_openvla.difference(mean, golden[f"{variant}/predicted"]) < CLOSE
    assert small_openvla.difference(small_openvla.restore(mean), golden[f"{variant}/actions"]) < CLOSE
    assert (golden[f"{variant}/predicted"].diff(dim=1).abs().amax(dim=-1) > 0.01).all(), "actions differ"


@torch.no_grad()
def test_neither_padding_nor_other_rows_change_a_row() -> None:
    network, inputs = small_openvla.network(NAME, "two", token_length=20), small_openvla.observation("two")
    mean, features = network.action_mean(network.encode(inputs))
    padded = torch.nn.functional.pad(inputs.tokens[1:2], (0, 5))
    images = {camera: image[1:2] for camera, image in inputs.images.items()}
    found = network.action_mean(network.encode(PolicyInput(images, inputs.state[1:2], padded)))
    assert small_openvla.difference(found[0], mean[1:2]) < CLOSE
    assert small_openvla.difference(found[1], features[1:2]) < CLOSE


@each("critic", ["prefix", "expert", "none"])
def test_the_contract_of_an_actor(critic: str) -> None:
    check_actor(lambda: build_actor(critic), small_openvla.simulator(sizes.CAMERAS))


@each("train", ["full", "lora"])
def test_the_first_ratio_is_exactly_1_and_every_trained_parameter_learns(train: str) -> None:
    actor, observation = build_actor(train=train), make_random_observation(small_openvla.simulator(sizes.CAMERAS))
    decision = actor.act(observation, keys(3), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob) and torch.equal(again.value, decision.value)
    again.log_prob.sum().backward()
    learned = {name for name, parameter in actor.backbone.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in actor.backbone.named_parameters() if parameter.grad is not None} == learned
    assert {name for name in learned if name.startswith("action_head.")} == {
        f"action_head.{name}" for name in actor.backbone.action_head.state_dict()
    }


@each("autocast", [False, True])
def test_frozen_weights_may_be_bfloat16_while_head_and_adapters_learn_in_float32(autocast: bool) -> None:
    node = PolicyNode(NAME, device="cpu", precision="bfloat16", train="lora", autocast=autocast)
    actor = place_actor(build_actor(train="lora"), node)
    types = {each.requires_grad: each.dtype for each in actor.backbone.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}
    decision = actor.act(make_random_observation(small_openvla.simulator(sizes.CAMERAS)), keys(3), explore=True)
    assert torch.equal(actor.evaluate(decision.trace).log_prob, decision.log_prob)


@each("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    """The main file to the byte, with the output layer that is not used; the parts without the prefix of training."""
    folder = write_folder(tmp_path / "folder", "two", head=True, dtype=dtype)
    back = there_and_back(folder, "openvla", attach(folder, NAME), NAME)
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    plain = [{name: text for name, text in small_files(each).items() if "--" not in name} for each in (back, folder)]
    assert plain[0] == plain[1]
    (part,) = back.glob("action_head--*_checkpoint.safetensors")
    expected = {name.removeprefix("module."): value for name, value in stored(folder / HEAD).items()}
    assert_same_tensors(stored(part), expected)


def test_a_new_network_is_written_whole(tmp_path: Path, folder: Path) -> None:
    network, robot = attach(folder, NAME)
    with torch.no_grad():
        network.action_head.model.fc2.bias.add_(1)
    network.source = None
    back = there_and_back(folder, "openvla", (network, robot), NAME)
    assert stored(back / "model.safetensors").keys() == stored(folder / "model.safetensors").keys()
    assert_same_tensors(attach(back, NAME, options={"horizon": 8})[0].state_dict(), network.state_dict())


def test_deployed_actions_are_those_of_the_official_evaluation(folder: Path) -> None:
    """From images, state and prompt in the simulator's units; the gripper 2x - 1, its sign, inverted (LIBERO)."""
    network, robot = attach(folder, NAME)
    assert (network.config.head_hidden, network.config.head_blocks) == (sizes.HEAD_HIDDEN, sizes.HEAD_BLOCKS)
    size = sizes.RESOLUTION
    images = {
        name: recipe.picture(view, sizes.ROWS, size, size)
        for name, view in zip(("front", "wrist"), sizes.CAMERAS, strict=True)
    }
    state = recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM))
    actor = GaussianActor(network, None, robot).eval()
    inputs = actor.observation_inputs(Observation(images, state, ("",) * sizes.ROWS))
    inputs = replace(inputs, tokens=small_openvla.observation().tokens)
    with torch.no_grad():
        actions = robot.all_actions(network.action_mean(network.encode(inputs))[0], state)
    expected = small_openvla.golden(NAME)["two/actions"].numpy().copy()
    expected[..., -1] = -np.sign(2 * expected[..., -1] - 1)
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_inspect_names_the_policy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.run(InspectConfig(str(folder)))
    assert NAME in capsys.readouterr().out


def test_a_folder_is_only_of_the_policy_that_it_holds(folder: Path, tmp_path: Path) -> None:
    with refuses("checkpoint-of-another-policy", NAME):
        attach(folder)
    with refuses("checkpoint-of-another-policy", "openvla_oft"):
        attach(write_folder(tmp_path / "tokens", "two"), NAME)


def test_the_head_as_a_pickle(folder: Path) -> None:
    file = (folder / HEAD).rename((folder / HEAD).with_suffix(".pt"))
    file.write_bytes(POISON)
    with refuses("checkpoint-is-pickle", file):
        detection.read_checkpoint(folder)


def test_other_heads_and_missing_tensors(folder: Path) -> None:
    tensors = load_file(folder / HEAD)
    save_file({f"module.noise_predictor.{name[7:]}": value for name, value in tensors.items()}, folder / HEAD)
    with refuses("checkpoint-unsupported", HEAD):
        detection.read_checkpoint(folder)
    for missing in (
        "module.model.fc1.weight",
        "module.model.layer_norm2.bias",
        "module.model.mlp_resnet_blocks.1.ffn.1.bias",
    ):
        save_file({name: value for name, value in tensors.items() if name != missing}, folder / HEAD)
        with pytest.raises(ValueError, match=missing.removeprefix("module.").replace(".", r"\.")):
            attach(folder, NAME)


def test_another_number_of_action_entries(folder: Path) -> None:
    robot = small_openvla.simulator()
    less = replace(
        robot, action_names=robot.action_names[1:], action_low=robot.action_low[1:], action_high=robot.action_high[1:]
    )
    with pytest.raises(ValueError, match="7"):
        attach(folder, NAME, less)


def test_at_full_size_the_head_has_the_official_shapes() -> None:
    """`L1RegressionActionHead(4096, 4096, 7)`; no memory is taken, and the output layer is only stored."""
    cls = small_openvla.CLASSES[NAME]
    with torch.device("meta"):
        network = cls(cls.Config(), 7, 8, ("any",), (224, 224), 32_001, 64)
    shapes = {name: tuple(value.shape) for name, value in network.action_head.model.state_dict().items()}
    assert (shapes["layer_norm1.weight"], shapes["fc1.weight"]) == ((28_672,), (4096, 28_672))
    assert (shapes["mlp_resnet_blocks.1.ffn.1.weight"], shapes["fc2.weight"]) == ((4096, 4096), (7, 4096))
    official = json.loads((small_openvla.GOLDEN / "keys_openvla.json").read_text())
    found = {name: list(value.shape) for name, value in network.state_dict().items() if "action_head" not in name}
    assert found | {name: list(shape) for name, shape in network.unread_shapes().items()} == official


@each("key", ["head_hidden", "head_blocks"])
def test_wrong_sizes(key: str) -> None:
    with refuses("value-out-of-range", key):
        small_openvla.build(NAME, "two", **{key: 0})
