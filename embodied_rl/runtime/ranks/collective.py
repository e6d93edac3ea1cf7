"""Collective operations of ranks: average gradients, sum, gather. A single rank needs no torch.distributed."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.runtime.ranks import serialisation

LOOPBACK = "127.0.0.1"
LOCAL = torch.device("cpu")
_torch: Any = distributed  # its type stubs lack TCPStore and all of ProcessGroupGloo


def choose_gpu(process: int) -> None:
    """Make "cuda" mean GPU number `process`, modulo their number, in this process; without a GPU, do nothing."""
    if torch.cuda.is_available():
        torch.cuda.set_device(process % torch.cuda.device_count())


class PeerLost(RunFailed):
    """A collective operation failed: another rank is gone, or did not take part within the deadline."""


class Ranks:
    """The collective operations of one rank. This class is for a single rank; `GlooRanks` is for one of several.

    All ranks call the same operations in the same order. An operation raises `PeerLost` if the other ranks do not take
    part within the deadline.
    """

    rank = 0
    size = 1
    stops: "StopRequests | None" = None
    """Stop requests to rank 0 from another process that receives the signals instead, if any."""

    def average_gradients(self, parameters: Iterable[nn.Parameter], weight: float = 1.0) -> None:
        """Replace gradients by their mean over ranks, weighted by `weight`, in one flat reduction.

        It replaces the reducer of torch's DistributedDataParallel. That reducer overlaps the transfer with the backward
        pass, but needs equally many passes through a module's `forward` on every rank, and weights ranks equally. Here
        ranks differ in the number of micro-batches and rows. On GPUs the reduction uses NCCL where each rank has its
        own GPU (`embodied_rl.actors.learning.sharded.connect_group`).

        If `weight` is the number of rows in a rank's mean loss, the result is the gradient of the mean over the rows of
        all ranks. A parameter that has no gradient on any rank keeps none.
        """

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks."""

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        """Return the values of all ranks, in the order of ranks, on every rank.

        Args:
            value: this rank's value, which `embodied_rl.runtime.ranks.serialisation` can encode.
            kinds: the dataclasses that occur in the values.
        """
        return [value]

    def scatter(self, values: Sequence[Any] | None, *kinds: type[Any]) -> Any:
        """Return this rank's item of rank 0's `values`, which are None on the other ranks. See `gather`."""
        assert values is not None, "rank 0 has them"
        return values[self.rank]

    def barrier(self) -> None:
        """Wait until all ranks have reached this call."""
        self.gather(None)

    def any_(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank, e.g. to agree to stop."""
        return any(self.gather(bool(flag)))


class StopRequests:
    """Stop requests that another process forwards to rank 0, and how rank 0 reacts to them."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._reaction = ""

    def requested(self) -> bool:
        """Return whether a stop was requested while requests set a flag."""
        return self._requested.is_set()

    def request(self) -> str:
        """Request a stop. Return the reaction: "flag" (read later), "raise" (caller raises `Stopped`), or "" (none)."""
        if self._reaction == "flag":
            self._requested.set()
        return self._reaction

    @contextmanager
    def listen(self, reaction: str) -> Iterator[None]:
        """React to stop requests with `reaction`, "flag" or "raise", in the context."""
        before, self._reaction = self._reaction, reaction
        try:
            yield
        finally:
            self._reaction = before


def make_store(size: int, timeout: float, port: int = 0, address: str = LOOPBACK) -> Any:
    """Return the store by which ranks find each other: host it on a free `.port`, or connect to one at `port`.

    Only this machine can reach a hosted store, unless `address` is another of its addresses. A store without an address
    would listen on every network.
    """
    common = {"timeout": timedelta(seconds=timeout), "wait_for_workers": False}
    if port:
        return _torch.TCPStore(address, port, size, is_master=False, **common)
    server = socket.create_server((address, 0))
    return _torch.TCPStore(*server.getsockname()[:2], size, is_master=True, master_listen_fd=server.detach(), **common)


class GlooRanks(Ranks):
    """One of several ranks, connected by default over this machine's loopback interface. It makes no global group.

    Args:
        rank, size: the number of this rank, and the number of ranks.
        store: from `make_store`.
        timeout: seconds after which an operation fails.
        address: address of this process at which the other ranks reach it.
    """

    def __init__(self, rank: int, size: int, store: Any, timeout: float, address: str = LOOPBACK):
        self.rank, self.size, self.timeout = rank, size, timeout
        self.store, self.address = store, address
        options = _torch.ProcessGroupGloo._Options()
        options._devices = [_torch.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=timeout)
        self._group = _torch.ProcessGroupGloo(store, rank, size, options)

    def average_gradients(self, parameters: Iterable[nn.Parameter], weight: float = 1.0) -> None:
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        weights = torch.tensor([weight])
        present = torch.tensor([parameter.grad is not None for parameter in learned], dtype=torch.float32)
        gradients = [weight * (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in learned]
        device = gradients[0].device if gradients and _torch.is_initialized() else LOCAL
        flat = torch.cat([*(gradient.to(device) for gradient in gradients), present.to(device), weights.to(device)])
        self._sum(flat)
        sizes = [parameter.numel() for parameter in learned]
        *sums, anywhere, total = flat.split([*sizes, len(learned), 1])
        for parameter, gradient, somewhere in zip(learned, sums, anywhere, strict=True):
            if somewhere:
                parameter.grad = (gradient / total.clamp(min=1e-12)).reshape(parameter.shape).to(parameter)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._sum(tensor)

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        data = _encode_tensor(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._gather(sizes, torch.tensor([len(data)]))
        longest = max(int(size) for size in sizes)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [_decode_tensor(part[: int(size)], kinds) for part, size in zip(parts, sizes, strict=True)]

    def scatter(self, values: Sequence[Any] | None, *kinds: type[Any]) -> Any:
        data = [_encode_tensor(value) for value in values or ()]
        sizes = self.gather([len(part) for part in data])[0]
        longest = torch.zeros(max(sizes), dtype=torch.uint8)
        padded = [torch.nn.functional.pad(part, (0, len(longest) - len(part))) for part in data]
        options = _torch.ScatterOptions()
        options.rootRank = 0
        self._wait(lambda: self._group.scatter([longest], [padded] if padded else [], options))
        return _decode_tensor(longest[: sizes[self.rank]], kinds)

    def leave(self) -> None:
        """Close the connections, so that ranks that wait for this one fail at once."""
        del self._group

    def _sum(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self._wait(lambda: _torch.all_reduce(tensor, async_op=True))
        else:
            self._wait(lambda: self._group.allreduce([tensor]))

    def _gather(self, outputs: list[Tensor], tensor: Tensor) -> None:
        self._wait(lambda: self._group.allgather([outputs], [tensor]))

    def _wait(self, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank} lost the others (deadline {self.timeout:g} s): {error}") from error


def _encode_tensor(value: Any) -> Tensor:
    """Return an encoded value as a uint8 tensor [bytes]."""
    return torch.frombuffer(bytearray(serialisation.encode(value)), dtype=torch.uint8)


def _decode_tensor(data: Tensor, kinds: Sequence[type[Any]]) -> Any:
    """Decode a value from a uint8 tensor [bytes] of an untrusted sender."""
    return serialisation.decode(data.numpy().data, kinds)
