"""Measurement of live tensor memory, and of the number of rows that memory allows. Sizes are in bytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

FEW = 8
"""Rows of the second measurement of `find_affordable_rows`."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are created while it is entered, on any device, including fake tensors.

    It does not see the temporary memory of a running kernel, nor the rounding of an allocator.

    Attributes:
        now: bytes of these tensors that are alive. peak: maximum of `now`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known.setdefault(tensor.untyped_storage(), None)  # existed before, or is already counted
        result = func(*args, **kwargs or {})
        for tensor in _tensors(result):
            self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known[storage] = _Counted(self, storage.nbytes())
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)


class _Counted:
    """Subtracts the bytes of a storage from `LiveBytes.now` when the storage is freed."""

    def __init__(self, live: LiveBytes, size: int) -> None:
        self._live, self._size = live, size

    def __del__(self) -> None:
        self._live.now -= self._size


def measure_peak(work: Callable[[], object]) -> int:
    """Return the peak bytes of tensors that `work` created and that were alive at once."""
    with LiveBytes() as live:
        work()
    return live.peak


def find_affordable_rows(work: Callable[[int], object], most: int, budget: float) -> int:
    """Return how many rows, 1 to `most`, may be processed at once so that `work(rows)` stays within `budget` bytes.

    It measures one row and a few rows; the difference gives the bytes of each further row.
    """
    few = min(most, FEW)
    if few < 2:
        return max(most, 1)
    one, some = measure_peak(partial(work, 1)), measure_peak(partial(work, few))
    row = max((some - one) / (few - 1), 1.0)
    return int(min(most, max(1, 1 + (budget - one) // row)))


def find_free_bytes(device: torch.device, sharing: int = 1) -> float:
    """Return the bytes each of `sharing` processes may take on a device: its part of four fifths of the free memory."""
    unused = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return 0.8 * unused / sharing


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
