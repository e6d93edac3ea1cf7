"""SmolVLA's sizes and names: lerobot's checkpoints say them, and what does not fit is refused by name."""

import re
from dataclasses import replace

import pytest
import torch

from embodied_rl.checkpoints import weight_names
from embodied_rl_policies.smolvla.policy import SmolVLA
from tests.support import smolvla_sizes as sizes
from tests.support.small_smolvla import KEYS, TINY, build, checkpoint_key, network


def full() -> SmolVLA:
    """A network of smolvla_base's sizes, without memory."""
    with torch.device("meta"):
        return build(SmolVLA.Config())


def test_a_full_size_network_has_lerobots_parameters_except_the_unused_ones() -> None:
    """Every key of ours is lerobot's with its shape; what is left over changes no action and is named."""
    smolvla = full()
    own = {checkpoint_key(name): tuple(value.shape) for name, value in smolvla.state_dict().items()}
    theirs = {key: tuple(shape) for key, shape in KEYS["shapes"].items()}
    unread = {f"model.{name}": shape for name, shape in smolvla.unread_shapes().items()}
    assert own | unread == theirs
    assert not own.keys() & unread.keys()
    assert sum(parameter.numel() for parameter in smolvla.parameters()) == 393_519_456
    assert list(smolvla.buffers()) == []  # so that loading a checkpoint fills all of it


def test_names_are_translated_both_ways() -> None:
    """By the table that readers and writers of checkpoints use; what is only carried along matches its patterns."""
    smolvla = full()
    for name in smolvla.state_dict():
        key = checkpoint_key(name)
        assert (weight_names.to_our_name(SmolVLA, key), f"model.{weight_names.to_their_name(SmolVLA, name)}") == (
            name,
            key,
        )
    for name in smolvla.unread_shapes():
        assert any(re.match(pattern, name) for pattern in SmolVLA.CHECKPOINT_UNREAD)


def shapes() -> dict[str, tuple[int, ...]]:
    """What a reader sees of smolvla_base's tensors."""
    return {weight_names.to_our_name(SmolVLA, key): tuple(shape) for key, shape in KEYS["shapes"].items()}


BASE = {
    "chunk_size": 50,
    "tokenizer_max_length": 48,
    "num_vlm_layers": 16,
    "num_expert_layers": 0,
    "self_attn_every_n_layers": 2,
    "attention_mode": "cross_attn",
    "resize_imgs_with_padding": [512, 512],
    "add_image_special_tokens": False,
    "adapt_to_pi_aloha": False,
    "min_period": 0.004,
    "max_period": 4.0,
}


def test_sizes_are_read_from_a_checkpoint() -> None:
    """Those of smolvla_base are the defaults; its expert's attention follows lerobot's two settings."""
    assert SmolVLA.Config(**SmolVLA.checkpoint_sizes(shapes(), BASE, {})) == SmolVLA.Config()
    for change, every in (
        ({"self_attn_every_n_layers": 3}, 3),
        ({"self_attn_every_n_layers": -1}, 0),
        ({"attention_mode": "self_attn"}, 1),
    ):
        assert SmolVLA.checkpoint_sizes(shapes(), BASE | change, {})["self_attention_every"] == every


@pytest.mark.parametrize("variant", sizes.VARIANTS)
def test_sizes_are_read_from_an_exported_network(variant: str) -> None:
    """What is written is read again, for every mixture of layers; openpi has no such network."""
    smolvla = network(variant)
    tensors = {name: tuple(value.shape) for name, value in smolvla.state_dict().items()}
    told = smolvla.checkpoint_config("lerobot", 10) | {"chunk_size": sizes.HORIZON, "tokenizer_max_length": 9}
    given = {"head_dim": sizes.HEAD_DIM, "vision_heads": sizes.VISION_HEADS}
    special = {"fake_image_token": sizes.FAKE_IMAGE_TOKEN, "global_image_token": sizes.GLOBAL_IMAGE_TOKEN}
    found = SmolVLA.checkpoint_sizes(tensors, told, given)
    assert SmolVLA.Config(**found, **given, **special) == smolvla.config
    assert int(sizes.WIDTH * told["expert_width_multiplier"]) == sizes.EXPERT_WIDTH
    with pytest.raises(ValueError, match="format=lerobot"):
        smolvla.checkpoint_config("openpi", 10)


def test_sizes_that_shapes_do_not_determine_are_requested() -> None:
    """How wide a head is, for widths that are not SmolVLM2's."""
    other = shapes() | {"text_model.embed_tokens.weight": (100, 640)}
    with pytest.raises(ValueError, match=r"policy\.head_dim=<number>"):
        SmolVLA.checkpoint_sizes(other, BASE, {})
    found = SmolVLA.checkpoint_sizes(other, BASE, {"head_dim": 32})
    assert (found["heads"], found["key_value_heads"], found["width"]) == (30, 10, 640)
    with pytest.raises(ValueError, match=r"policy\.horizon=<number>"):
        SmolVLA.checkpoint_sizes(shapes(), {**BASE, "chunk_size": None}, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_expert_layers": 8}, "8 expert layers"),
        ({"resize_imgs_with_padding": [512, 384]}, "512, 384"),
        ({"resize_imgs_with_padding": [224, 224]}, "224, 224"),
        ({"resize_imgs_with_padding": None}, "None"),
    ],
)
def test_unsupported_checkpoint_settings_are_refused(change: dict[str, object], words: str) -> None:
    """What lerobot's network does in such a case, this one does not."""
    with pytest.raises(ValueError, match=words):
        SmolVLA.checkpoint_sizes(shapes(), BASE | change, {})


def test_a_checkpoint_of_something_else_is_refused() -> None:
    """By the first tensor that it lacks."""
    with pytest.raises(ValueError, match=r"not a SmolVLA: text_model\.embed_tokens\.weight is missing"):
        SmolVLA.checkpoint_sizes({}, BASE, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 5}, "policy.heads"),
        ({"head_dim": 7}, "policy.head_dim"),
        ({"layers": 0}, "policy.layers"),
        ({"self_attention_every": -1}, "policy.self_attention_every"),
        ({"expert_width": 35}, "policy.expert_width"),
        ({"vision_heads": 5}, "policy.vision_heads"),
        ({"resolution": 40}, "policy.resolution"),
        ({"image_special_tokens": True, "vocabulary": 61}, "policy.fake_image_token"),
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
    open_ended = replace(TINY, vocabulary=None)
    smolvla = SmolVLA(open_ended, image_size=(32, 32), **{**fitting, "vocabulary_size": 65})
    assert smolvla.text_model.embed_tokens.weight.shape[0] == 65
