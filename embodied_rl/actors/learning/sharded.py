"""Sharding of weights, gradients and moments of a learner over ranks with PyTorch's FSDP2 (`fully_shard`).

FSDP2 gathers weights in the forward pass of a module; here `gather` does so once for all following passes. The number
of policy calls and of micro-batches differs between ranks, so that a collective operation inside of them would wait for
ever. Policies also call parts of their blocks, which FSDP2's hooks do not see. `reduce` then gives every rank the mean
gradient of its shard, an optimiser steps on the shards, and weights are gathered again. A rank always holds its shard
of the weights and of Adam's moments; it holds whole weights while the policy acts or learns, and whole gradients while
it learns.

The blocks of a network are gathered and reduced one by one, so that buffers are those of one block.
Parameters outside of the network (a critic's, a noise head's) stay whole, and their gradients are averaged as usual.
"""

import os
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.collective import GlooRanks, PeerLost, Ranks
from embodied_rl.runtime.ranks.torchrun_store import INTERFACE, find_interface

if TYPE_CHECKING:
    from embodied_rl.actors.learning.optimiser import Optimiser

_torch: Any = distributed  # its type stubs lack stores


def list_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the members of a network's lists of modules, of the outermost lists only."""
    found: list[nn.Module] = []
    for module in network.children():
        members = list(module) if isinstance(module, nn.ModuleList) else None
        found += list_blocks(module) if members is None else [member for member in members if [*member.parameters()]]
    return found


def shard_network(network: nn.Module, learner: str, ranks: Ranks) -> "Sharding | None":
    """Shard a network if `plan.learner` is sharded and there are several ranks; else return None.

    Raises:
        UserError: ranks share a GPU, which PyTorch's communication between GPUs does not support.
    """
    if not isinstance(ranks, GlooRanks):
        return None
    device = next(network.parameters()).device
    alone = device.type == "cpu"
    if not alone:  # whether every rank computes on its own accelerator
        index = torch.cuda.current_device() if device.index is None else device.index
        taken = ranks.gather((platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES"), index))
        alone = len(set(taken)) == len(taken)
    if learner == "sharded" and not alone:
        raise UserError(
            "plan.learner=sharded needs a GPU for each rank: start them with torchrun --nproc-per-node <GPUs>",
            code="sharded-needs-gpus",
        )
    if alone and (learner == "sharded" or device.type != "cpu"):
        connect_group(ranks, device)
    return Sharding(network, ranks) if learner == "sharded" else None


def find_sharding(module: nn.Module) -> "Sharding | None":
    """Return the sharding of a module or of a part of it; None if it is whole."""
    found = (getattr(part, "sharding", None) for part in module.modules())
    return next((sharding for sharding in found if isinstance(sharding, Sharding)), None)


class Sharding:
    """A network that is sharded over ranks. All ranks create it, and call its methods, together.

    The network is changed in place; all ranks hold the same weights. They are gathered after construction. `optimisers`
    are those of its shards; each adds itself.
    """

    def __init__(self, network: nn.Module, ranks: GlooRanks) -> None:
        self.network, self.optimisers, self._ranks = network, list["Optimiser"](), ranks
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # it gathers nothing there
        mesh = init_device_mesh(next(network.parameters()).device.type, (ranks.size,))
        for module in (*list_blocks(network), network):
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
        network.settle = MethodType(_settle, network)  # type: ignore[assignment]
        register_fsdp_forward_method(network, "settle")
        self._root: Any = network
        self._units: list[Any] = [module for module in network.modules() if isinstance(module, FSDPModule)]
        with torch.no_grad(), self._detect_lost_peer():
            self._root.settle()  # FSDP finds the outermost module by this call
        self._set_automatic(False)
        self.release()
        shards = list(network.parameters())
        self.gather()
        self._pairs = list(zip(network.parameters(), shards, strict=True))
        self._shards = {id(whole): shard for whole, shard in self._pairs}
        network.sharding = self  # type: ignore[assignment]  where `find_sharding` finds it

    def gather(self) -> None:
        """Gather the whole weights on every rank."""
        with self._detect_lost_peer():
            for unit in self._units:
                unit.unshard()

    def release(self) -> None:
        """Keep only shards; call `gather` before acting or learning."""
        for unit in self._units:
            unit.reshard()

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the shard that an optimiser holds for a whole parameter; other parameters unchanged."""
        return self._shards.get(id(parameter), parameter)

    def part(self, whole: Tensor, shard: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor, in the form of `shard`."""
        made = torch.zeros_like(shard)
        local = made.to_local()  # type: ignore[attr-defined]
        first = self.first_row(len(whole))
        local.copy_(whole[first : first + len(local)])
        return made

    def first_row(self, count: int) -> int:
        """Return the first row that this rank holds of a tensor with `count` rows."""
        each = -(-count // self._ranks.size)  # rows of a rank, divided as by `torch.chunk`
        return min(count, each * self._ranks.rank)

    @torch.no_grad()
    def load_full_weights(self) -> None:
        """Copy the whole weights into the shards, after they were written to."""
        for whole, shard in self._pairs:
            shard.copy_(self.part(whole, shard))

    def drop_gradients(self) -> None:
        """Drop the gradients that this rank has accumulated."""
        for whole, _ in self._pairs:
            whole.grad = None

    def scale_gradients(self, share: float) -> None:
        """Multiply the gradients that this rank has accumulated by `share`."""
        for whole, _ in self._pairs:
            if whole.grad is not None:
                whole.grad.mul_(share)

    def reduce(self, weight: float) -> None:
        """Reduce the accumulated gradients to their mean over ranks, weighted by `weight`, as gradients of the shards.

        If `weight` is the number of rows of a rank's mean loss, this is the gradient of the mean
        over the rows of all ranks. Weights are released; a parameter without a gradient on any rank gets zeros.
        """
        total = torch.tensor(float(weight), dtype=torch.float64)
        self._ranks.sum_([total])
        self.scale_gradients(
            weight * self._ranks.size / max(float(total), 1e-12)
        )  # FSDP takes the plain mean over ranks
        with self._detect_lost_peer():
            self._set_automatic(True)
            self._root.settle().backward()
            self._set_automatic(False)
        self.release()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Compute the norm of gradients over all shards of all ranks."""
        with self._detect_lost_peer():
            return nn.utils.get_total_norm(gradients).full_tensor()  # type: ignore[attr-defined]

    def _set_automatic(self, wanted: bool) -> None:
        """Let a backward pass reduce gradients and release weights, or disable both."""
        self._root.set_requires_gradient_sync(wanted)
        self._root.set_reshard_after_backward(wanted)

    @contextmanager
    def _detect_lost_peer(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise PeerLost(f"rank {self._ranks.rank} lost the others: {error}") from error


def _settle(network: nn.Module) -> Tensor:
    """Return a zero that depends on every trainable parameter: its gradient reaches all of them on every rank."""
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.stack([parameter.flatten()[:1].sum() * 0 for parameter in learned]).sum()


def leave_group() -> None:
    """End the process group, if there is one."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def connect_group(ranks: GlooRanks, device: torch.device) -> None:
    """Create PyTorch's process group of all ranks, on the network interface on which they met."""
    if distributed.is_initialized():
        return
    before = os.environ.get(INTERFACE)
    os.environ[INTERFACE] = before or find_interface(ranks.address)
    try:
        store = _torch.PrefixStore("sharded", ranks.store)
        backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
        seconds = timedelta(seconds=ranks.timeout)
        distributed.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=seconds)
    finally:
        if before is None:
            del os.environ[INTERFACE]
