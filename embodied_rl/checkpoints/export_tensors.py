"""Conversion of a network's tensors to the names and dtypes of another project's checkpoint format."""

from collections.abc import Mapping

import torch
from torch import Tensor

from embodied_rl.actors.learning.checkpoint import separate_tensors
from embodied_rl.checkpoints.prefix_length import write_prefix_length
from embodied_rl.checkpoints.weight_names import PREFIX, CheckpointSource, as_foreign, strip_outermost, to_their_name
from embodied_rl.interfaces.policy import FlowBackbone


def name_tensors(network: FlowBackbone, form: str) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint in the format `form` ("lerobot" or "openpi"), by their names in that format.

    A network that was imported from this format keeps the original names and dtypes, and the carried tensors. Any other
    network gets new names, and zeros for the tensors that loaders require although no forward pass reads them.
    """
    source: CheckpointSource | None = network.source
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    if source is not None and source.format == form:
        found = {name: state[mine] if mine else source.carried[name] for name, mine in source.names.items()}
        return separate_tensors({name: value.to(source.dtypes[name]) for name, value in found.items()})
    cls = type(as_foreign(network))
    renamed = {to_their_name(cls, name): value for name, value in state.items()}
    renamed |= {copy: renamed[first] for copy, first in cls.CHECKPOINT_COPIES.items() if first in renamed}
    carried = {} if source is None else {strip_outermost(name): value for name, value in source.carried.items()}
    for name, shape in as_foreign(network).unread_shapes().items():
        renamed[name] = carried.get(name, torch.zeros(shape))
    dtypes = {} if source is None else {strip_outermost(name): dtype for name, dtype in source.dtypes.items()}
    plain = {name: value.to(dtypes.get(name, value.dtype)) for name, value in renamed.items()}
    if form == "openpi":  # safetensors keeps the first name of a weight that has two
        firsts = as_foreign(network).CHECKPOINT_COPIES.values()
        return separate_tensors({name: value for name, value in plain.items() if name not in firsts})
    return separate_tensors({PREFIX + name: value for name, value in plain.items()})


def make_header(network: FlowBackbone, tensors: Mapping[str, Tensor], form: str) -> dict[str, str]:
    """Return the safetensors header: the original one, or a new one with the second names of weights stored once.

    Both hold the number of committed actions that the network is trained to continue.
    """
    source: CheckpointSource | None = network.source
    if source is not None and source.format == form and source.header:
        return write_prefix_length(source.header, network.prefix_trained_to)
    copies = as_foreign(network).CHECKPOINT_COPIES.items()
    shared = {first: copy for copy, first in copies if copy in tensors and first not in tensors}
    return write_prefix_length({"format": "pt"} | shared, network.prefix_trained_to)
