"""OpenVLA-OFT with FiLM: the official code's predictions, folders there and back, learning, and what is refused."""

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
from embodied_rl.actors.network_actor import Keep
from embodied_rl.actors.token import TokenActor
from embodied_rl.actors.tokenizer import make_word_tokenizer
from embodied_rl.checkpoints import detection
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.schema import LoraNode
from embodied_rl.testing.policy_contract import check_actor, make_random_observation
from tests.support import openvla_sizes as sizes
from tests.support import small_openvla
from tests.support.building_checkpoints import POISON
from tests.support.refusals import refuses
from tests.support.small_openvla import VISION, attach, write_folder
from tests.support.using_checkpoints import assert_same_tensors, stored, there_and_back

NAMES, CLOSE, START = ("openvla_oft", "openvla_oft_l1"), 1e-5, "vision_backbone.vision_backbone."
ACTORS = {"openvla_oft": TokenActor, "openvla_oft_l1": GaussianActor}
each = pytest.mark.parametrize


def golden(name: str) -> dict[str, torch.Tensor]:
    return small_openvla.golden(f"{name}_film")


def compute(network: object, variant: str) -> tuple[torch.Tensor, str]:
    """What the network predicts of the recipe's inputs, and its name among the golden tensors."""
    context = network.encode(small_openvla.observation(variant))
    if isinstance(network, small_openvla.CLASSES["openvla_oft_l1"]):
        return network.action_mean(context)[0], f"{variant}/predicted"
    return network.action_logits(context)[0].flatten(1, 2)[:, :: sizes.STEP], f"{variant}/logits"


@each("name", NAMES)
@each("variant", sizes.VARIANTS)
@torch.no_grad()
def test_predictions_are_the_official_ones(name: str, variant: str) -> None:
    """The official code takes one prompt at a time, here they are padded; without FiLM it predicts others."""
    network = small_openvla.network(name, variant, film_rank=sizes.FILM_RANK)
    found, key = compute(network, variant)
    assert small_openvla.difference(found, golden(name)[key]) < CLOSE
    assert small_openvla.difference(golden(name)[key], small_openvla.golden(name)[key]) > 0.1


@each("name", NAMES)
@each("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_comes_back(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """The main file, with the towers that FiLM replaces, to the byte; the towers with FiLM tensor by tensor."""
    folder = write_folder(tmp_path / "folder", "two", head=name.endswith("l1"), film=True, dtype=dtype)
    network, robot = attach(folder, name)
    assert network.config.film_rank == sizes.FILM_RANK
    back = there_and_back(folder, "openvla", (network, robot), name)
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    (part,) = back.glob("vision_backbone--*_checkpoint.safetensors")
    assert_same_tensors(stored(part), stored(folder / VISION))


@pytest.mark.thorough
def test_trained_towers_are_written_and_new_ones_are_whole(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", film=True)
    network, robot = attach(folder)
    for parameter in network.parameters():
        parameter.data.add_(0.01)
    for source, place in ((network.source, "trained"), (None, "new")):
        network.source = source
        (tmp_path / place).mkdir()
        back = there_and_back(tmp_path / place / "one", "openvla", (network, robot), "openvla_oft")
        assert_same_tensors(attach(back, options={"horizon": 8})[0].state_dict(), network.state_dict())
        for file in ("model.safetensors", VISION):
            (there,) = back.glob(file.replace("150000", "*"))
            shapes = {key: value.shape for key, value in stored(folder / file).items()}
            assert {key: value.shape for key, value in stored(there).items()} == shapes


def build_actor(name: str, keep: Keep = "images", train: str = "full") -> TokenActor | GaussianActor:
    """An actor with words for a tokenizer, the whole of whose actions are executed."""
    spec = small_openvla.simulator(sizes.CAMERAS)
    network = small_openvla.network(name, "two", token_length=24, film_rank=sizes.FILM_RANK)
    trainable.choose_trainable(network, train, LoraNode(rank=2))
    robot = Embodiment.of_simulator(spec, network.spec.horizon, 24)
    robot = replace(robot, tokenizer=make_word_tokenizer([*spec.words, *network.PROMPT_WORDS]))
    network.spec = replace(network.spec, token_length=24)
    critic = make_critic("prefix", privileged_dim=0, context_dim=sizes.WIDTH, feature_dim=sizes.WIDTH)
    return ACTORS[name](network, critic, robot, freeze_perception=keep == "features", keep=keep)


@each("name", NAMES)
@each("keep", ["images", "features"])
def test_the_contract_of_an_actor(name: str, keep: Keep) -> None:
    """Also with towers that are frozen and whose results are kept: what they read of the prompt is frozen as well."""
    check_actor(lambda: build_actor(name, keep), small_openvla.simulator(sizes.CAMERAS))


@each("name", NAMES)
@each(("train", "keep"), [("full", "images"), ("full", "features"), ("lora", "images"), ("lora", "features")])
def test_the_first_ratio_is_exactly_1_and_every_trained_parameter_learns(name: str, train: str, keep: Keep) -> None:
    actor, rows = build_actor(name, keep, train), np.arange(3)
    observation = make_random_observation(small_openvla.simulator(sizes.CAMERAS))
    decision = actor.act(observation, NoiseKeys(3, rows, np.zeros(3, np.int64)), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob) and torch.equal(again.value, decision.value)
    again.log_prob.sum().backward()
    parameters = dict(actor.backbone.named_parameters())
    learned = {key for key, parameter in parameters.items() if parameter.requires_grad}
    assert {key for key, parameter in parameters.items() if parameter.grad is not None} == learned
    seen = {key for key in learned if key.startswith(START) or "embed_tokens" in key}
    assert bool(seen) == (train == "full" and keep == "images")
    assert bool(seen) == any(key.endswith("block.attn.qkv.down.weight") for key in learned)


def test_recomputed_activations_give_the_same_gradients() -> None:
    found = []
    for recompute in (False, True):
        network = small_openvla.network(film_rank=sizes.FILM_RANK, gradient_checkpointing=recompute)
        compute(network, "one")[0].square().sum().backward()
        found.append({key: parameter.grad for key, parameter in network.named_parameters()})
    assert all(value is not None and torch.allclose(value, found[1][key]) for key, value in found[0].items())


@each("stop", [2, None])
@torch.no_grad()
def test_what_the_towers_read_is_the_mean_of_the_words(stop: int | None) -> None:
    """With the start token, the empty token and the stop token, without padding and actions."""
    network = small_openvla.network(film_rank=sizes.FILM_RANK, stop_token=stop)
    tokens = torch.tensor([[1, 5, 9, 0, 0], [1, 7, 3, 4, 8]])
    table = network.language_model.model.embed_tokens.weight
    after = [29_871] + ([] if stop is None else [stop])
    expected = torch.stack([table[[1, 5, 9, *after]].mean(dim=0), table[[1, 7, 3, 4, 8, *after]].mean(dim=0)])
    torch.testing.assert_close(network.average_words(tokens), expected)


def test_at_full_size_the_other_tensors_are_the_official_ones() -> None:
    """And the rank of the low-rank maps changes no name; no memory is taken."""
    official = json.loads((small_openvla.GOLDEN / "keys_openvla.json").read_text())
    cls = small_openvla.CLASSES["openvla_oft"]
    with torch.device("meta"):
        network = cls(cls.Config(film_rank=32), 7, 8, ("any",), (224, 224), 32_001, 64)
    shapes = {key: list(value.shape) for key, value in network.state_dict().items()}
    assert not shapes.keys() & network.unread_shapes().keys()
    shapes |= {key: list(shape) for key, shape in network.unread_shapes().items()}
    assert {key: shape for key, shape in shapes.items() if not key.startswith(START)} == official
    assert shapes[f"{START}fused_featurizer.blocks.26.scale.weight"] == [1152, 4096]
    assert shapes[f"{START}featurizer.patch_embed.proj.up.weight"] == [1024, 32, 1, 1]


@each(
    "missing",
    [
        "featurizer.blocks.0.block.attn.qkv.lora_A.default.weight",
        "fused_featurizer.blocks.1.block.mlp.fc1.lora_B.default.weight",
        "featurizer.blocks.1.scale.weight",
        "featurizer.patch_embed.proj.base_layer.bias",
    ],
)
def test_missing_tensors(tmp_path: Path, missing: str) -> None:
    folder = write_folder(tmp_path / "folder", film=True)
    tensors = load_file(folder / VISION)
    save_file({key: value for key, value in tensors.items() if key != f"vision_backbone.{missing}"}, folder / VISION)
    said = missing.replace("lora_A.default", "down").replace("lora_B.default", "up")
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        attach(folder)


def test_towers_without_film_and_pickles(tmp_path: Path) -> None:
    """Towers that would replace those of the main file without FiLM are refused, as is what runs code."""
    folder = write_folder(tmp_path / "folder", film=True)
    plain = {key.removeprefix("vision_backbone."): value for key, value in load_file(folder / VISION).items()}
    save_file(plain, folder / VISION)
    with refuses("checkpoint-unsupported", VISION):
        detection.read_checkpoint(folder)
    pickled = (folder / VISION).rename((folder / VISION).with_suffix(".pt"))
    pickled.write_bytes(POISON)
    with refuses("checkpoint-is-pickle", pickled):
        detection.read_checkpoint(folder)


def test_only_parallel_policies_have_film() -> None:
    with pytest.raises(TypeError, match="film_rank"):
        small_openvla.build("openvla", film_rank=2)
    with refuses("value-out-of-range", "film_rank"):
        small_openvla.build("openvla_oft", film_rank=0)
