"""The form in which traces keep an observation: its images, or the output of a frozen part of the network."""

from dataclasses import replace
from typing import Literal

import torch

from embodied_rl.interfaces.policy import FlowBackbone, PolicyInput, TensorSpec, Trace

Keep = Literal["images", "features", "prefix"]
IMAGE, FEATURES, PREFIX = "input/image/", "input/features/", "input/prefix/"
TOKENS, STATE = "input/tokens", "input/state"


def keep_inputs(network: FlowBackbone, inputs: PolicyInput, keep: Keep) -> PolicyInput:
    """Return the inputs in the form that a trace keeps."""
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
    """Return the entries of a trace whose names begin with `start`, by the rest of their names."""
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
