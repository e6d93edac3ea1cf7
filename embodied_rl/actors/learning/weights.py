"""Transfer of weights from the learner to a policy worker: versioned, with a checksum, only tensors that change."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from embodied_rl.actors.learning import sharded
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class Weights:
    """A version of a network's weights, as plain arrays.

    Attributes:
        version: of the weights, counted in updates.
        tensors: by name, each as bytes of the tensor's own dtype: uint8 [bytes].
        checksum: SHA-256 of names and bytes.
    """

    version: int
    tensors: dict[str, np.ndarray]
    checksum: str


class WeightsDamaged(UserError):  # noqa: N818
    """Weights were damaged in transfer, or belong to another network."""


def publish_weights(network: nn.Module, version: int, everything: bool = False) -> Weights:
    """Copy the trainable parameters and all buffers; with `everything`, the frozen parameters, too."""
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    state = {name: tensor for name, tensor in gather_whole(network).items() if everything or name not in frozen}
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in state.items():  # a copy, because torch could not free memory that NumPy shares
        copy = torch.empty(tensor.nbytes, dtype=torch.uint8)
        tensors[name] = copy.copy_(tensor.detach().contiguous().flatten().view(torch.uint8)).numpy()
    return Weights(version, tensors, _checksum(tensors))


@torch.no_grad()
def load_weights(network: nn.Module, weights: Weights) -> None:
    """Copy weights into a network.

    Raises:
        WeightsDamaged: the checksum is wrong, or the network has no tensor of that name or size.
    """
    if _checksum(weights.tensors) != weights.checksum:
        raise WeightsDamaged(
            f"weights of version {weights.version} were damaged in transfer: the checksum is wrong.",
            code="weights-damaged",
        )
    state = gather_whole(network)
    for name, data in weights.tensors.items():
        if name not in state or state[name].nbytes != data.nbytes:
            raise WeightsDamaged(
                f"weights of version {weights.version} are of another network: '{name}'.", code="weights-other-network"
            )
        tensor = torch.from_numpy(data).view(state[name].dtype) if data.nbytes else torch.empty(0)
        state[name].copy_(tensor.reshape(state[name].shape))
    load_full_weights(network)


def gather_whole(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the network's tensors, not copies, by their names in its state, also if it is sharded and gathered.

    No rank waits for another one. A caller that writes into the tensors calls `load_full_weights` afterwards.
    """
    if sharded.find_sharding(network) is None:
        return network.state_dict()
    tensors = dict(network.named_parameters(remove_duplicate=False))
    tensors |= dict(network.named_buffers(remove_duplicate=False))
    modules = network.named_modules(remove_duplicate=False)
    passing = {f"{name}.{own}".lstrip(".") for name, module in modules for own in module._non_persistent_buffers_set}
    return {name: tensor.detach() for name, tensor in tensors.items() if name not in passing}


def load_full_weights(network: nn.Module) -> None:
    """Copy the whole tensors into every rank's shards, after they were written to."""
    if (sharding := sharded.find_sharding(network)) is not None:
        sharding.load_full_weights()


def _checksum(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()
