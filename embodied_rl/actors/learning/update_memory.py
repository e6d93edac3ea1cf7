"""Memory of an update, counted from shapes: networks have no weights, and nothing is computed.

All sizes are in bytes; a row is one decision of a micro-batch.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from embodied_rl.actors.learning.memory_budget import LiveBytes
from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.policy import Actor, Trace

FLOAT32 = torch.float32.itemsize
ROWS = (1, 64, 2048)
"""Micro-batches that are counted. A peak is the largest of several lines, so it lies below the chords between these."""
MOST = 10**6
"""Upper bound of the rows of a micro-batch."""
MARKED = 1_000_003
"""Rows of the pass that is counted: a prime beyond any other size, so that it divides exactly what has rows."""


@dataclass(frozen=True)
class HeldMemory:
    """The permanent memory of a learning policy on its device.

    Attributes:
        weights: of the whole network. gradients: of the trainable part. moments: Adam's two moments of it, float32.
        step: temporary memory of Adam's step, when activations are freed: one more copy of the trainable part.
    """

    weights: int
    gradients: int
    moments: int
    step: int

    @property
    def held(self) -> int:
        """Return the bytes that are held all the time."""
        return self.weights + self.gradients + self.moments


@dataclass(frozen=True)
class UpdateMemory(HeldMemory):
    """The memory of a policy's update on the device where it learns, with gradients accumulated over micro-batches.

    Attributes:
        peaks: (rows, bytes) of micro-batches, ascending: activations kept for the backward pass, their gradients, and
            copies of weights in another precision.
        recorded: bytes of one row of the trace.
        operations: floating-point operations of one row's evaluation and gradients; see `ShapeMode`.
    """

    peaks: tuple[tuple[int, int], ...]
    recorded: int
    operations: float = 0.0

    @property
    def row_bytes(self) -> float:
        """Return the bytes that each further row of a large micro-batch adds, its trace included."""
        return _slope(*self.peaks[-2:]) + self.recorded

    def peak(self, rows: int) -> float:
        """Interpolate the peak of a micro-batch between counted ones (an upper bound), or extrapolate the last two."""
        pairs = list(pairwise(self.peaks))
        low, high = next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])
        return low[1] + (rows - low[0]) * _slope(low, high)

    def needed(self, rows: int) -> float:
        """Return the peak memory of an update in micro-batches of `rows` rows."""
        return self.held + max(self.step, self.peak(rows) + rows * self.recorded)

    def most_rows(self, memory: float) -> int:
        """Return the rows of the largest micro-batch that fits into `memory`; 0 if none fits."""
        return max(0, bisect_right(range(MOST), memory, key=self.needed) - 1)


def count_update(actor: Actor, autocast: bool = False) -> UpdateMemory:
    """Count the memory of an update of an actor on the meta device; it serves further counts only afterwards.

    Args:
        actor: its `keep` decides which recorded data the update starts from.
        autocast: multiply in bfloat16, by `torch.autocast`.
    """
    with ShapeMode():
        actor = actor.to_empty(device="cpu")
        learning = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        for parameter in learning:
            parameter.grad = torch.zeros_like(parameter)
        spec = actor.trace_spec()
        trace = make_blank_trace(spec, MARKED)
    peaks, operations = count_work(partial(evaluate_and_differentiate, actor, trace, autocast), ROWS)
    return UpdateMemory(**asdict(count_held(actor)), peaks=peaks, recorded=count_row_bytes(spec), operations=operations)


def count_acting(actor: Actor, rows: int) -> int:
    """Count the temporary memory of deciding for `rows` observations; the actor must be on the meta device.

    It is that of an evaluation without gradients, which encodes the same images and denoises the same chunks. The actor
    serves further counts only afterwards.
    """
    with ShapeMode(), torch.no_grad():
        actor = actor.to_empty(device="cpu")
        actor.keep = "images"
        spec = actor.trace_spec()
        trace = make_blank_trace(spec, MARKED)
    with torch.no_grad():
        ((_, peak),), _ = count_work(partial(actor.evaluate, trace), (rows,))
    return peak + rows * count_row_bytes(spec)


def count_work(work: Callable[[], object], rows: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], float]:
    """Count what `work` on `MARKED` rows would take with each of other numbers of rows.

    Returns:
        Pairs of rows and peak bytes, and the floating-point operations of a row.
    """
    counts = np.asarray(rows)

    def convert(size: int) -> np.ndarray:
        return counts * (size // MARKED) if size % MARKED == 0 else np.full_like(counts, size)

    with LiveBytes(convert) as live, ShapeMode() as shapes:
        work()
    return tuple(zip(rows, live.peak.tolist(), strict=True)), shapes.operations / MARKED


def count_held(module: nn.Module) -> HeldMemory:
    """Count the permanent memory of a module with Adam on its trainable parameters; also on the meta device."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in learning)
    return HeldMemory(
        weights=sum(parameter.nbytes for parameter in module.parameters()),
        gradients=sum(parameter.nbytes for parameter in learning),
        moments=2 * FLOAT32 * count,
        step=FLOAT32 * count,
    )


def evaluate_and_differentiate(actor: Actor, trace: Trace, autocast: bool = False) -> None:
    """Run the expensive part of an update: evaluate decisions and backpropagate."""
    with torch.autocast(actor.device.type, torch.bfloat16, enabled=autocast):
        found = actor.evaluate(trace)
        loss = found.log_prob.sum() + found.value.sum()
    loss.backward()


def make_blank_trace(spec: TensorSpec, rows: int) -> Trace:
    """Build a trace of zeros."""
    return {name: torch.zeros(rows, *shape, dtype=dtype) for name, (shape, dtype) in spec.items()}


def count_row_bytes(spec: TensorSpec) -> int:
    """Count the bytes of one row of a trace."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in spec.values())


def _slope(low: tuple[int, int], high: tuple[int, int]) -> float:
    return (high[1] - low[1]) / (high[0] - low[0])
