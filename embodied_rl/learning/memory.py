"""Bytes that an update takes, counted from shapes: networks are laid out without weights, and nothing is computed.

All sizes are in bytes; a row is a decision of a micro-batch.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.policy import TensorSpec, Trace

FLOAT32 = torch.float32.itemsize
ROWS = (1, 64, 2048)
"""Micro-batches that are counted. A peak is the largest of several lines, so it lies below the chords between these."""
FEW = 8
"""Rows of the second measurement of `affordable`."""
MOST = 10**6
"""Rows that nobody asks for."""


@dataclass(frozen=True)
class UpdateMemory:
    """What an update of a policy takes where it learns, with gradients that add up over micro-batches.

    Attributes:
        weights: of the whole network. gradients: of what learns. moments: Adam's two of these, float32.
        step: what Adam's step makes for a moment while no activations are there: one more copy of what learns.
        peaks: (rows, bytes) of micro-batches, ascending: activations that wait for the backward pass, what is made of
            them, and copies of weights in another precision.
        recorded: of a row of the trace.
    """

    weights: int
    gradients: int
    moments: int
    step: int
    peaks: tuple[tuple[int, int], ...]
    recorded: int

    @property
    def held(self) -> int:
        """What is there all the time."""
        return self.weights + self.gradients + self.moments

    @property
    def row(self) -> float:
        """What each further row of a large micro-batch adds, its trace included."""
        return _slope(*self.peaks[-2:]) + self.recorded

    def peak(self, rows: int) -> float:
        """Of a micro-batch: between the counted ones on the safe side, beyond them as between the last two."""
        pairs = list(pairwise(self.peaks))
        low, high = next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])
        return low[1] + (rows - low[0]) * _slope(low, high)

    def needed(self, rows: int) -> float:
        """The most of an update in micro-batches of so many rows."""
        return self.held + max(self.step, self.peak(rows) + rows * self.recorded)

    def most_rows(self, memory: float) -> int:
        """The largest micro-batch that fits; 0 for none."""
        return max(0, bisect_right(range(MOST), memory, key=self.needed) - 1)


class LiveBytes(TorchDispatchMode):
    """Watches tensors that are made while it is entered, on any device, fake ones too.

    What a kernel needs for itself while it runs is not seen, nor what an allocator rounds up.

    Attributes:
        now: bytes of those that are alive. peak: the most there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known.setdefault(tensor.untyped_storage(), None)  # was there before, or has been counted
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
    """Goes when the storage goes that it is the entry of."""

    def __init__(self, live: LiveBytes, size: int) -> None:
        self._live, self._size = live, size

    def __del__(self) -> None:
        self._live.now -= self._size


def peak(work: Callable[[], object]) -> int:
    """The most bytes of tensors that `work` made and that were alive at once."""
    with LiveBytes() as live:
        work()
    return live.peak


def affordable(work: Callable[[int], object], most: int, budget: float) -> int:
    """How many rows may be worked on at once: 1 to `most`, so that what `work(rows)` takes stays within `budget` bytes.

    Measured at one row and at a few: what a row adds is the difference.
    """
    few = min(most, FEW)
    if few < 2:
        return max(most, 1)
    one, some = peak(partial(work, 1)), peak(partial(work, few))
    row = max((some - one) / (few - 1), 1.0)
    return int(min(most, max(1, 1 + (budget - one) // row)))


def free(device: torch.device, sharing: int = 1) -> float:
    """Bytes that one of `sharing` processes may take on a device: four fifths of what nobody uses now."""
    unused = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return 0.8 * unused / sharing


def without_memory() -> FakeTensorMode:
    """Tensors made in this context have shapes and no values; modules laid out on the meta device come along."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def of_update(actor: FlowActor, autocast: bool = False) -> UpdateMemory:
    """What an update of an actor takes that was laid out on the meta device; afterwards it is of no other use.

    Args:
        actor: what it keeps of an observation is what the update starts from.
        autocast: multiply in bfloat16, by `torch.autocast`.
    """
    with without_memory():
        actor = actor.to_empty(device="cpu")
        learning = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        for parameter in learning:
            parameter.grad = torch.zeros_like(parameter)
        spec = actor.trace_spec()
        peaks = tuple((rows, peak(partial(learn, actor, blank(spec, rows), autocast))) for rows in ROWS)
    count = sum(parameter.numel() for parameter in learning)
    return UpdateMemory(
        weights=sum(parameter.nbytes for parameter in actor.parameters()),
        gradients=sum(parameter.nbytes for parameter in learning),
        moments=2 * FLOAT32 * count,
        step=FLOAT32 * count,
        peaks=peaks,
        recorded=row_bytes(spec),
    )


def learn(actor: FlowActor, trace: Trace, autocast: bool = False) -> None:
    """The heavy part of an update: decisions evaluated, and gradients of what they gave."""
    with torch.autocast(actor.device.type, torch.bfloat16, enabled=autocast):
        found = actor.evaluate(trace)
        loss = found.log_prob.sum() + found.value.sum()
    loss.backward()


def blank(spec: TensorSpec, rows: int) -> Trace:
    """A trace of zeros."""
    return {name: torch.zeros(rows, *shape, dtype=dtype) for name, (shape, dtype) in spec.items()}


def row_bytes(spec: TensorSpec) -> int:
    """Of one row of a trace."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in spec.values())


def _slope(low: tuple[int, int], high: tuple[int, int]) -> float:
    return (high[1] - low[1]) / (high[0] - low[0])


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
