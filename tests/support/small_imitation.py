"""Folders of small ACTs and Diffusion Policies in lerobot's format, and what lerobot made of the recipe's inputs."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.assembly import build
from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.interfaces.sim import Camera, Observation, SimulatorSpec, Task
from embodied_rl.schema import PolicyNode
from tests.support import imitation_sizes as sizes
from tests.support import recipe
from tests.support.using_checkpoints import Attached

PLACE = Path(__file__).parents[1] / "parity" / "golden" / "imitation"
GOLDEN = load_file(PLACE / "golden.safetensors")
DIGESTS = json.loads((PLACE / "tensors.json").read_text())


def simulator(cameras: tuple[str, ...] = sizes.CAMERAS, size: tuple[int, int] = sizes.SIZE) -> SimulatorSpec:
    """One with the recipe's robot, whose actions no limit cuts."""
    return SimulatorSpec(
        cameras=tuple(Camera(name, *size) for name in cameras),
        state_names=tuple(f"joint_{index}" for index in range(sizes.STATE_DIM)),
        action_names=("dx", "dy", "dz"),
        action_low=(-100.0,) * sizes.ACTION_DIM,
        action_high=(100.0,) * sizes.ACTION_DIM,
        control_hz=10,
        horizon=20,
        tasks=(Task("reach", "reach"),),
        words=("reach", "it"),
    )


def folder(place: Path, variant: str, **changes: Any) -> Path:
    """A folder as lerobot leaves it: its own small files, and the recipe's weights by its names and types."""
    made, kind = place / variant, sizes.VARIANTS[variant][0]
    shutil.copytree(PLACE / kind, made)
    told = json.loads((PLACE / variant / "config.json").read_text()) | changes
    (made / "config.json").write_text(json.dumps(told, indent=4))
    save_file({"nothing": torch.zeros(1)}, made / "model.safetensors")
    save_file(weights(made, kind), made / "model.safetensors")
    return made


def weights(made: Path, kind: str) -> dict[str, Tensor]:
    """lerobot's name → the recipe's weight, for the config.json of a folder."""
    with patch.object(weight_names, "match_tensors"):
        network = build.build_backbone(PolicyNode(kind, checkpoint=str(made)), simulator(), outline=True)[0]
    network, cls = type(network)(network.config, **_arguments()), type(network)
    found = {weight_names.to_their_name(cls, name): value for name, value in network.state_dict().items()}
    found |= {name: torch.zeros(shape, dtype=torch.int64) for name, shape in network.unread_shapes().items()}
    given = {cls.CHECKPOINT_OUTERMOST + name: value for name, value in found.items()}
    known = {name: sizes.weight(name, tuple(value.shape)) for name, value in given.items()}
    return {name: given[name] if value is None else torch.from_numpy(value) for name, value in known.items()}


def _arguments() -> dict[str, Any]:
    return {
        "action_dim": sizes.ACTION_DIM, "state_dim": sizes.STATE_DIM, "cameras": sizes.CAMERAS,
        "image_size": sizes.SIZE, "vocabulary_size": 1, "token_length": 1,
    }  # fmt: skip


def attach(made: Path, kind: str, spec: SimulatorSpec | None = None, **node: Any) -> Attached:
    """The network of a folder, and its robot."""
    return build.build_backbone(PolicyNode(kind, checkpoint=str(made), **node), spec or simulator())


def observe(step: int) -> Observation:
    """The recipe's observation of a control step."""
    seen = sizes.observation(step)
    return Observation({name: seen[name] for name in sizes.CAMERAS}, seen["state"], ("reach it",) * sizes.ROWS)


def inputs(attached: Attached) -> PolicyInput:
    """The recipe's observations of as many control steps as the policy reads."""
    network, robot = attached
    *earlier, last = (robot.inputs(observe(step), network) for step in range(network.observations))
    last.earlier = tuple(earlier)
    return last


def noise(shape: tuple[int, ...]) -> Tensor | None:
    """The recipe's noise of `ImitationBackbone.noise_shape`; lerobot draws a DDPM's for DDIM, too."""
    if not shape:
        return None
    draws = sizes.DIFFUSION["num_inference_steps"]
    return torch.from_numpy(recipe.normal("noise", (sizes.ROWS, draws, *shape[1:])))[:, : shape[0]]


@torch.no_grad()
def actions(attached: Attached) -> Tensor:
    """What a policy does, in the robot's units: as many actions as lerobot executes, or all of ACT's."""
    network, robot = attached
    start = noise(network.noise_shape)
    start = None if start is None else start.to(torch.get_default_dtype())
    predicted = network.predict(network.encode(inputs(attached)), start)
    return torch.from_numpy(robot.all_actions(predicted, observe(network.observations - 1).state))


def loss(attached: Attached) -> Tensor:
    """The loss of the recipe's demonstration."""
    network = attached[0]
    demonstrated, padding = map(torch.from_numpy, sizes.chunk(network.config.horizon + network.observations - 1))
    draw = demonstrated.shape if network.noise_shape else (sizes.ROWS, 8)
    drawn = torch.from_numpy(recipe.normal("noise of the loss", tuple(draw)))
    with (
        patch.object(torch, "randn", lambda *_, **__: drawn),
        patch.object(torch, "randint", lambda *_, **__: torch.from_numpy(sizes.STEPS)),
    ):
        return network.imitation_loss(inputs(attached), demonstrated, torch.Generator(), padding)
