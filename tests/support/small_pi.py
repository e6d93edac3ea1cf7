"""Small π0 and π0.5 with the recipe's weights, and what lerobot's own networks made of the recipe's inputs."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl_policies.pi.config import Pi05Config, PiConfig
from embodied_rl_policies.pi.network import Pi
from embodied_rl_policies.pi.pi0 import Pi0
from embodied_rl_policies.pi.pi05 import Pi05
from tests.support import pi_inputs
from tests.support import pi_sizes as sizes

GOLDEN = Path(__file__).parents[1] / "parity" / "golden"
FAMILIES: dict[str, type[Pi]] = {"pi0": Pi0, "pi05": Pi05}
CLOSE = {"rtol": 0.0, "atol": 5e-6}
SIZES = {
    "width": sizes.LANGUAGE["width"], "layers": sizes.LANGUAGE["depth"], "hidden": sizes.LANGUAGE["mlp_dim"],
    "heads": sizes.LANGUAGE["num_heads"], "head_dim": sizes.LANGUAGE["head_dim"], "vocabulary": sizes.VOCABULARY,
    "expert_width": sizes.EXPERT["width"], "expert_hidden": sizes.EXPERT["mlp_dim"],
    "vision_width": sizes.VISION["hidden_size"], "vision_layers": sizes.VISION["num_hidden_layers"],
    "vision_hidden": sizes.VISION["intermediate_size"], "vision_heads": sizes.VISION["num_attention_heads"],
    "patch": sizes.VISION["patch_size"], "resolution": sizes.IMAGE_SIZE, "horizon": sizes.CHUNK,
    "action_dim": sizes.PADDED_DIM, "state_dim": sizes.PADDED_DIM,
}  # fmt: skip


def golden(family: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{family}_lerobot.safetensors")


def build(family: str, cameras: tuple[str, ...] = tuple(sizes.CAMERAS), **changes: Any) -> Pi:
    """A small network with fresh weights."""
    length = sizes.PROMPT_LENGTH[family]
    config = (Pi05Config if family == "pi05" else PiConfig)(**SIZES | {"token_length": length} | changes)
    robot = sizes.ACTION_DIM, sizes.STATE_DIM
    torch.manual_seed(0)
    return FAMILIES[family](config, *robot, cameras, (sizes.IMAGE_SIZE,) * 2, sizes.VOCABULARY, length).eval()


def filled(family: str, cameras: tuple[str, ...] = tuple(sizes.CAMERAS)) -> Pi:
    """The same with the recipe's weights, under lerobot's names."""
    network = build(family, cameras)
    names = {name: "model." + weight_names.to_their_name(type(network), name) for name in network.state_dict()}
    shapes = {names[name]: tuple(value.shape) for name, value in network.state_dict().items()}
    given = pi_inputs.weights(shapes | {pi_inputs.HEAD: shapes[pi_inputs.EMBEDDING]})
    network.load_state_dict({name: given[theirs] for name, theirs in names.items()})
    return network


def row(family: str, index: int) -> tuple[Pi, PolicyInput]:
    """One row of the recipe's inputs, and a network with the cameras that row has; what is absent takes no place."""
    given = pi_inputs.network_inputs(family)
    present = [bool(mask[index]) for mask in given["masks"]]
    cameras = tuple(name for name, there in zip(sizes.CAMERAS, present, strict=True) if there)
    images = {
        name: ((pixels[index : index + 1] + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        for name, pixels, there in zip(sizes.CAMERAS, given["images"], present, strict=True)
        if there
    }
    return filled(family, cameras), PolicyInput(images, given["state"][[index]], given["tokens"][[index]])


def after_steps(family: str, count: int) -> Tensor:
    """Every row's actions after `count` Euler steps by our sampler, in the default type."""
    found = []
    for index in range(sizes.ROWS):
        network, inputs = row(family, index)
        velocity = partial(network.velocity, context=network.encode(inputs))
        found.append(ode_sample(velocity, pi_inputs.chunk("noise")[[index]].to(torch.get_default_dtype()), count))
    return torch.cat(found)


def integrate(network: Pi, x: Tensor, context: Context, steps: int) -> Tensor:
    for k in range(steps):
        x = x - network.velocity(x, torch.full((len(x),), 1 - k / steps), context)[0] / steps
    return x
