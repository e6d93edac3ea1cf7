"""Measurement of live tensor memory, and of the number of rows that memory allows. Sizes are in bytes."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SHARE = 0.8
"""Part of the free memory that is used: allocators lose some to fragments."""
FEW = 8
"""Rows of the second measurement of `find_affordable_rows`."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are created while it is entered, on any device, the meta device included.

    It does not see the temporary memory of a running kernel, nor the rounding of an allocator.

    Attributes:
        now: bytes of these tensors that are alive. peak: maximum of `now`. Arrays where `convert` returns arrays.
    """

    def __init__(self, convert: Callable[[int], Any] = int) -> None:
        """Start to count; `convert` maps the bytes of a storage to what is counted of it."""
        super().__init__()
        self.now: Any = 0
        self.peak: Any = 0
        self._convert, self._known = convert, WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known.setdefault(tensor.untyped_storage(), None)  # existed before, or is already counted
        result = func(*args, **kwargs or {})
        for storage in (tensor.untyped_storage() for tensor in _tensors(result)):
            if storage not in self._known:
                size = self._convert(storage.nbytes())
                self._known[storage] = _Counted(self, size)
                self.now = self.now + size
                self.peak = np.maximum(self.peak, self.now)
        return result


class _Counted:
    """Subtracts the bytes of a storage from `LiveBytes.now` when the storage is freed."""

    def __init__(self, live: LiveBytes, size: Any) -> None:
        self._live, self._size = live, size

    def __del__(self) -> None:
        self._live.now = self._live.now - self._size


def measure_peak(work: Callable[[], object]) -> int:
    """Return the peak bytes of tensors that `work` created and that were alive at once."""
    with LiveBytes() as live:
        work()
    return int(live.peak)


def find_affordable_rows(work: Callable[[int], object], most: int, budget: float) -> int:
    """Return the number of rows, 1 to `most`, for which `work(rows)` stays within `budget` bytes.

    It measures one row and a few rows; the difference gives the bytes of each further row.
    """
    few = min(most, FEW)
    if few < 2:
        return max(most, 1)
    one, some = measure_peak(partial(work, 1)), measure_peak(partial(work, few))
    row = max((some - one) / (few - 1), 1.0)
    return int(min(most, max(1, 1 + (budget - one) // row)))


def find_free_bytes(device: torch.device, sharing: int = 1) -> float:
    """Return the bytes each of `sharing` processes may take on a device: its part of four fifths of the free memory.

    On a GPU without a number, as many processes share it as `runtime.ranks.collective.choose_gpu` gives to one.
    """
    if device.type != "cuda":
        return SHARE * psutil.virtual_memory().available / sharing
    gpus = torch.cuda.device_count() if device.index is None else 1
    return SHARE * torch.cuda.mem_get_info(device)[0] / math.ceil(sharing / gpus)


def find_machine_bytes(limit: Path = CGROUP_LIMIT) -> int:
    """Return the memory of this machine in bytes, or the limit of its control group (cgroup v2) if lower."""
    total = psutil.virtual_memory().total
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
    return total if text == "max" else min(total, int(text))


def format_bytes(size: float) -> str:
    """Format a number of bytes with three digits and a decimal unit, such as 12.5 GB."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = next((power for power in range(len(units)) if size < 999.5 * 1000**power), len(units) - 1)
    size, unit = size / 1000**power, units[power]
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of an operation's arguments or results: torch's own function for any tree takes longer."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for each in tree for tensor in _tensors(each)]
