"""Define an allocation: which devices or processes simulate, infer and learn, in how many slices and which order."""

from dataclasses import dataclass, replace
from typing import Literal

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
