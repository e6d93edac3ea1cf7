"""Functions on a backbone: the form of its inputs in traces, its frozen parts, and whether it fits a robot."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone, PolicyInput, TensorSpec, Trace

Keep = Literal["images", "features", "prefix"]
IMAGE, FEATURES, PREFIX = "input/image/", "input/features/", "input/prefix/"
TOKENS, STATE = "input/tokens", "input/state"


def keep_inputs(network: FlowBackbone, inputs: PolicyInput, keep: Keep) -> PolicyInput:
    """Return the inputs in the form of a trace: images, or the output of a frozen part of the network."""
    if keep == "images":
        return inputs
    if keep == "features":
        return replace(inputs, images={}, features=network.perceive(inputs))
    return replace(inputs, images={}, prefix=network.encode_prefix(inputs))


def make_input_trace(inputs: PolicyInput) -> Trace:
    """Return the entries of a trace from which `read_inputs` makes the same inputs."""
    trace = {TOKENS: inputs.tokens, STATE: inputs.state}
    trace |= {IMAGE + name: image for name, image in inputs.images.items()}
    trace |= {FEATURES + name: value for name, value in (inputs.features or {}).items()}
    return trace | {PREFIX + name: value for name, value in (inputs.prefix or {}).items()}


def read_inputs(trace: Trace) -> PolicyInput:
    """Return the inputs that a trace keeps."""
    images, features, prefix = (select_entries(trace, start) for start in (IMAGE, FEATURES, PREFIX))
    return PolicyInput(images, trace[STATE], trace[TOKENS], features or None, prefix or None)


def select_entries(trace: Trace, start: str) -> Trace:
    """Return the entries of a trace with a name that begins with `start`, by the rest of their names."""
    return {name.removeprefix(start): value for name, value in trace.items() if name.startswith(start)}


@torch.no_grad()
def make_input_spec(network: FlowBackbone, keep: Keep, device: torch.device) -> TensorSpec:
    """Return shape and dtype of one row of each entry of `make_input_trace`, found on a blank observation."""
    spec = network.spec
    blank = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=device)
    tokens = torch.zeros(1, spec.token_length, dtype=torch.int64, device=device)
    inputs = PolicyInput(dict.fromkeys(spec.cameras, blank), torch.zeros(1, spec.state_dim, device=device), tokens)
    trace = make_input_trace(keep_inputs(network, inputs, keep))
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in trace.items()}


def freeze_parameters(parameters: Iterable[nn.Parameter]) -> None:
    """Freeze parameters, so that they are not trained."""
    for parameter in parameters:
        parameter.requires_grad_(False)


def select_learning(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the trainable parameters."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def is_frozen(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether none of the parameters is trainable."""
    return not select_learning(parameters)


def check_fit(backbone: FlowBackbone, embodiment: Embodiment, freeze_perception: bool) -> None:
    """Check that a network fits a robot, and has the perception that is to be frozen.

    Raises:
        UserError: they do not fit; the message names the entry.
    """
    spec = backbone.spec
    pairs = {
        "cameras": (spec.cameras, embodiment.view_names),
        "image size": (spec.image_size, embodiment.image_size),
        "instruction tokens": (spec.token_length, embodiment.token_length),
    }
    for name, (network, robot) in pairs.items():
        if network != robot:
            raise UserError(
                f"The policy has {network} {name}, the embodiment {robot}: build both from one simulator.",
                code="policy-robot-mismatch",
            )
    if (states := len(embodiment.state_names)) > spec.state_dim:
        raise UserError(
            f"The policy has {spec.state_dim} state entries, the robot {states}.", code="policy-robot-mismatch"
        )
    if embodiment.executed > spec.horizon:
        raise UserError(
            f"policy.executed={embodiment.executed} exceeds the {spec.horizon} actions of a chunk.",
            code="executed-too-long",
        )
    if (robot_dim := len(embodiment.action_names)) > spec.action_dim:
        raise UserError(
            f"The policy has {spec.action_dim} action dimensions, the robot {robot_dim}.", code="policy-robot-mismatch"
        )
    if freeze_perception and not backbone.perception_parameters():
        raise UserError(
            "policy.freeze_perception=true, but this policy has no perception that can be frozen apart.",
            code="perception-missing",
        )
