"""Build flow policies of several sizes with random weights, and random decisions for them, for benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import ACTIONS, FLOW, FlowActor
from embodied_rl.actors.flow_kind import make_sampler
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.network_actor import FEATURES, IMAGE, PREFIX, STATE, TOKENS, Keep
from embodied_rl.assembly import networks as assembled
from embodied_rl.config import plugins
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.interfaces.policy import NoiseKeys, Trace
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.schema import PolicyNode, SamplerNode

POLICIES = ("pi0", "pi05")
KEEPS: tuple[Keep, ...] = ("images", "features", "prefix")


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of a network and of its observations.

    Attributes:
        name: name in tables.
        cameras: number of cameras. picture: width and height of their images in pixels.
        tokens: prompt length L of each policy.
        options: keys of `policy`; other keys keep their defaults, the sizes of the published checkpoints.
    """

    name: str
    cameras: int
    picture: int
    tokens: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def text(self, policy: str) -> str:
        """Return a description of the sizes for tables."""
        seen = f"{self.cameras} images of {self.picture} x {self.picture}, {self.tokens[policy]} prompt tokens"
        return f"{self.name}: {seen}" + "".join(f", {key} {value}" for key, value in self.options.items())


FULL = NetworkSize("full size", 2, 224, {"pi0": 48, "pi05": 200})

SMALL = NetworkSize(
    "small", 2, 56, {"pi0": 16, "pi05": 48},
    {
        "width": 256, "layers": 6, "hidden": 2048, "heads": 8, "head_dim": 32, "vocabulary": 1000,
        "expert_width": 128, "expert_hidden": 512,
        "vision_width": 144, "vision_layers": 9, "vision_hidden": 538, "vision_heads": 16,
        "patch": 14, "resolution": 56, "horizon": 10, "action_dim": 32, "state_dim": 32,
    },
)  # fmt: skip
"""An eighth of the widths and a third of the layers of the published checkpoints."""

TINY = NetworkSize(
    "tiny", 3, 56, {"pi0": 24, "pi05": 80},
    {
        "width": 40, "layers": 3, "hidden": 72, "heads": 8, "head_dim": 6, "vocabulary": 300,
        "expert_width": 24, "expert_hidden": 48,
        "vision_width": 32, "vision_layers": 2, "vision_hidden": 48, "vision_heads": 2,
        "patch": 14, "resolution": 56, "horizon": 6, "action_dim": 8, "state_dim": 8,
    },
)  # fmt: skip
"""The network of `tests/support/pi_sizes.py`, at which lerobot's own loop can be timed."""


def make_simulator_spec(size: NetworkSize) -> SimulatorSpec:
    """Build the spec of a robot with seven actions and eight state entries, and with the cameras of `size`."""
    return SimulatorSpec(
        cameras=tuple(Camera(f"camera_{index}", size.picture, size.picture) for index in range(size.cameras)),
        state_names=tuple(f"state_{index}" for index in range(8)),
        action_names=tuple(f"action_{index}" for index in range(7)),
        action_low=(-1.0,) * 7,
        action_high=(1.0,) * 7,
        control_hz=10.0,
        horizon=100,
        tasks=(Task("wait", "wait"),),
    )


def lay_out(
    policy: str, size: NetworkSize, *, train: str = "full", steps: int = 4, precision: str = "float32", **changes: Any
) -> FlowActor:
    """Build an actor without a critic on the meta device, so without allocating memory.

    Args:
        policy: name of the policy plug-in. size: sizes of its network.
        train: the part that learns, as in `policy.train`.
        steps: denoise steps K of its sampler.
        precision: "mixed" stores the frozen weights in bfloat16 and the others in float32.
        changes: further keys of the policy.

    Raises:
        UserError: the plug-in, or a package that it needs, is not installed.
    """
    options = {"token_length": size.tokens[policy], **size.options, **changes}
    node = PolicyNode(policy, train=train, options=options)  # type: ignore[arg-type]
    found, config = plugins.configure_plugin("policies", node, "policy")
    embodiment = Embodiment.of_simulator(make_simulator_spec(size), config.horizon, size.tokens[policy])
    with torch.device("meta"):
        network = assembled.make_backbone(found, config, embodiment, ())
        trainable.choose_trainable(network, node.train, node.lora)
        if precision == "mixed":
            for parameter in network.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.bfloat16()
    actor = FlowActor(network, make_sampler(SamplerNode(denoise_steps=steps), network), None, embodiment)
    actor.keep = actor.keepable()[0]
    return actor


def fill_actor(actor: FlowActor, device: str, seed: int = 0) -> FlowActor:
    """Move a laid-out actor to a device and fill it with random weights that keep the scale of activations."""
    torch.manual_seed(seed)
    actor = actor.to_empty(device=device)
    for parameter in actor.parameters():
        nn.init.normal_(parameter, std=0.02 if parameter.dim() < 2 else parameter[0].numel() ** -0.5)
    actor.backbone.restore_buffers()
    return actor.eval()


def make_inputs(actor: FlowActor, rows: int, seed: int = 0) -> PolicyInput:
    """Build random observations on the actor's device, with prompts of the maximum length."""
    generator, spec = torch.Generator().manual_seed(seed), actor.backbone.spec
    shape = (rows, *spec.image_size, 3)
    images = {name: torch.randint(256, shape, generator=generator, dtype=torch.uint8) for name in spec.cameras}
    tokens = torch.randint(1, actor.backbone.config.vocabulary, (rows, spec.token_length), generator=generator)
    state = torch.randn(rows, spec.state_dim, generator=generator)
    return PolicyInput(images, state, tokens).to(actor.device)


@torch.no_grad()
def make_traces(actor: FlowActor, given: PolicyInput, seed: int = 0) -> dict[Keep, Trace]:
    """Record the same decisions as a rollout does, on the host, once for each kind of data that a trace may keep."""
    network, rows = actor.backbone, len(given)
    context, spec = network.encode(given), network.spec
    keys = NoiseKeys(seed, np.arange(rows), np.zeros(rows, np.int64))
    shape = (spec.horizon, spec.action_dim)
    sample = actor.sampler.sample(lambda x, t: network.velocity(x, t, context), keys, shape, True, actor.device)
    rest = {TOKENS: given.tokens, STATE: given.state, ACTIONS: sample.actions[:, : actor.embodiment.executed]}
    rest |= {FLOW + name: value for name, value in sample.trace.items()}
    kept: dict[Keep, Trace] = {
        "images": {IMAGE + name: value for name, value in given.images.items()},
        "features": {FEATURES + name: value for name, value in (network.perceive(given) or {}).items()},
        "prefix": {PREFIX + name: value for name, value in (network.encode_prefix(given) or {}).items()},
    }
    return {name: {key: value.cpu() for key, value in (part | rest).items()} for name, part in kept.items()}
