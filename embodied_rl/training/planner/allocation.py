"""Define an allocation: which devices or processes simulate, infer and learn, in how many slices and which order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runtime.selection import count_cores

Mode = Literal["colocated", "split", "hybrid"]
Order = Literal["exact", "ready"]


@dataclass(frozen=True)
class Allocation:
    """The assignment of an iteration's work to processes or accelerators.

    *Colocated*: every rank simulates, infers and learns in turn. *Split*: simulators have their own processes or
    accelerators, and the ranks infer and learn. *Hybrid*: as split, but the simulating accelerators learn, too.

    On cores, `ranks` are processes, and each has `workers` simulator processes for each of its slices. Hybrid does not
    exist on cores, because any process with work can use any core. On accelerators, `ranks` is the total number that
    infer, and `workers` the total number that simulate; each simulating accelerator serves every slice.

    Attributes:
        mode, ranks, workers: see above; `workers` is 0 if colocated.
        rollout_workers: processes or accelerators that collect; the ranks then only learn. Rollout
            workers infer, and have the simulators that ranks would have. 0 if ranks collect.
        slices: sets of environments of a rank; one is inferred while the others simulate.
        order: "exact" infers slices in turn; "ready" infers finished simulators, at most a slice's number at a time.
    """

    mode: Mode
    ranks: int
    workers: int = 0
    slices: int = 1
    order: Order = "exact"
    rollout_workers: int = 0

    @property
    def collectors(self) -> int:
        """Return the number of collectors: the rollout workers, or the ranks if there are none."""
        return self.rollout_workers or self.ranks

    @property
    def collecting(self) -> "Allocation":
        """Return the allocation with the collectors as its ranks; a rollout depends on this part alone."""
        return replace(self, ranks=self.collectors, rollout_workers=0)

    @property
    def processes(self) -> int:
        """Return the number of processes of an allocation on cores."""
        return (self.ranks if self.rollout_workers else 0) + self.collectors * (1 + self.slices * self.workers)

    @property
    def simplicity(self) -> tuple[bool, bool, int, int]:
        """Return a sort key for ties: simpler allocations first."""
        return (self.order == "ready", self.mode != "colocated", self.slices, self.processes)

    def __str__(self) -> str:
        simulating = f", {self.workers} simulating" if self.workers else ""
        order = f", {self.order} order" if self.workers and self.slices > 1 else ""
        also = f", {_count(self.rollout_workers, 'rollout worker')}" if self.rollout_workers else ""
        return f"{self.mode}, {_count(self.ranks, 'rank')}{also}{simulating}, {_count(self.slices, 'slice')}{order}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_PART = re.compile(r"(\d+)x(core|gpu)s?(?::(\d+(?:\.\d+)?)GB)?")


@dataclass(frozen=True)
class Resources:
    """The resources that an iteration may use.

    Attributes:
        cores: cores of the host.
        devices: number of accelerators; 0 if the cores do everything.
        memory: bytes of the host; None means no limit.
        device_memory: bytes of one accelerator; None means no limit.
        nodes: cores of each machine of a cluster; empty for a single machine.
    """

    cores: int
    devices: int = 0
    memory: float | None = None
    device_memory: float | None = None
    nodes: tuple[int, ...] = ()


def find_own_resources() -> Resources:
    """Return the cores that this process may use, and the machine's memory if the system reports it."""
    found = provenance.describe_hardware()
    memory = found.get("memory_gib")
    return Resources(int(found["cores"]), memory=None if memory is None else float(memory) * 2**30)


def parse_resources(text: str) -> Resources:
    """Parse resources such as `8xgpu`, `8xgpu:80GB`, `2xcore:16GB` or `8xgpu+64xcore`. A GB is 10⁹ bytes.

    Raises:
        UserError: the text does not follow this format.
    """
    parts = [_PART.fullmatch(part) for part in text.split("+")]
    counts = {part[2]: (int(part[1]), float(part[3]) * 1e9 if part[3] else None) for part in parts if part}
    if None in parts or len(counts) < len(parts) or 0 in [count for count, _ in counts.values()]:
        raise UserError(
            f"resources={text}: write <count>x<gpu or core> and, if it counts, the memory of each gpu or of the host, "
            "such as resources=8xgpu, resources=8xgpu:80GB+64xcore, or resources=2xcore:16GB",
            code="resources-invalid",
        )
    devices, device_memory = counts.get("gpu", (0, None))
    cores, memory = counts.get("core", (max(1, devices), None))
    return Resources(cores, devices, memory, device_memory)


def make_bundles(plan: Allocation) -> list[int]:
    """Return the number of cores of each bundle of an allocation on cores."""
    return count_cores(plan.ranks, plan.rollout_workers, plan.slices * plan.workers)


def place_bundles(bundles: Sequence[int], nodes: Sequence[int]) -> list[int] | None:
    """Assign bundles to nodes, largest first, each to the first node with room; None if a bundle does not fit.

    Args:
        bundles: cores of each bundle.
        nodes: cores of each node.
    """
    free, found = list(nodes), [-1] * len(bundles)
    for number in sorted(range(len(bundles)), key=lambda number: -bundles[number]):
        room = next((node for node, cores in enumerate(free) if cores >= bundles[number]), None)
        if room is None:
            return None
        free[room] -= bundles[number]
        found[number] = room
    return found


def describe_placement(plan: Allocation, nodes: Sequence[int]) -> str:
    """Describe a placement for the user, with its name such as "colocated"; the plan must fit on the nodes."""
    placed = place_bundles(make_bundles(plan), nodes)
    assert placed is not None, "the plan does not fit on the nodes"
    names = [f"rank {number}" for number in range(plan.ranks)]
    names += [f"rollout worker {number}" for number in range(plan.rollout_workers)]
    on_nodes = [[name for name, at in zip(names, placed, strict=True) if at == node] for node in range(len(nodes))]
    rows = [f"  node {node} ({cores} cores): {', '.join(on_nodes[node]) or '–'}" for node, cores in enumerate(nodes)]
    learning, collecting = set(placed[: plan.ranks]), set(placed[plan.ranks :])
    kind = "hybrid" if collecting & learning else "disaggregated"
    if not plan.rollout_workers or collecting == learning:
        kind = "colocated"
    return "\n".join([f"Placement, one that fits, {kind}:", *rows])
