"""A small SmolVLA with the recipe's weights, and what lerobot's own network made of the recipe's inputs."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl_policies.smolvla.policy import SmolVLA
from tests.support import recipe
from tests.support import smolvla_sizes as sizes

PARITY = Path(__file__).parents[1] / "parity"
GOLDEN = load_file(PARITY / "golden" / "smolvla_lerobot.safetensors")
STEPS = PARITY / "golden" / "smolvla_lerobot_steps.safetensors"
KEYS = json.loads((PARITY / "golden" / "keys_smolvla_lerobot.json").read_text())
CLOSE = 1e-6
PREFIX = {"vision_model", "connector", "text_model"}

TINY = SmolVLA.Config(
    width=sizes.WIDTH,
    layers=sizes.LAYERS,
    hidden=sizes.HIDDEN,
    heads=sizes.HEADS,
    key_value_heads=sizes.KEY_VALUE_HEADS,
    head_dim=sizes.HEAD_DIM,
    vocabulary=sizes.VOCABULARY,
    expert_width=sizes.EXPERT_WIDTH,
    expert_hidden=sizes.EXPERT_HIDDEN,
    vision_width=sizes.VISION_WIDTH,
    vision_layers=sizes.VISION_LAYERS,
    vision_hidden=sizes.VISION_HIDDEN,
    vision_heads=sizes.VISION_HEADS,
    patch=sizes.PATCH,
    resolution=sizes.RESOLUTION,
    pixel_shuffle=sizes.PIXEL_SHUFFLE,
    fake_image_token=sizes.FAKE_IMAGE_TOKEN,
    global_image_token=sizes.GLOBAL_IMAGE_TOKEN,
    horizon=sizes.HORIZON,
    action_dim=sizes.ACTION_DIM,
    state_dim=sizes.STATE_DIM,
    token_length=sizes.TOKEN_LENGTH,
)


def checkpoint_key(name: str) -> str:
    """lerobot's name of one of ours."""
    return weight_names.PREFIX + weight_names.to_their_name(SmolVLA, name)


def network(variant: str = "base", **changes: Any) -> SmolVLA:
    """A tiny SmolVLA with the recipe's weights."""
    every, framed = sizes.VARIANTS[variant]
    config = replace(TINY, self_attention_every=every, image_special_tokens=framed, **changes)
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
    tokens = recipe.words("tokens", sizes.ROWS, sizes.TOKEN_LENGTH, sizes.GLOBAL_IMAGE_TOKEN)
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


def after_steps(count: int) -> Tensor:
    """Actions after `count` Euler steps by our sampler, in the default type."""
    smolvla = network()
    velocity = partial(smolvla.velocity, context=smolvla.encode(observation()))
    return ode_sample(velocity, noise().to(torch.get_default_dtype()), count)


def difference(one: Tensor, other: Tensor) -> float:
    """The largest one."""
    assert one.shape == other.shape
    return (one - other).abs().max().item()
