"""An allocation: which devices or processes simulate, infer and learn, in how many slices, in which order."""

from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["colocated", "split", "hybrid"]
Order = Literal["exact", "ready"]


@dataclass(frozen=True)
class Allocation:
    """How the work of an iteration is laid out.

    *Colocated*: every rank simulates, infers and learns in turn. *Split*: simulators beside the ranks, which infer and
    learn. *Hybrid*: the same, but everything learns.

    On cores, `ranks` are processes, and each has `workers` simulator processes for each of its slices; hybrid does not
    exist, because cores belong to whoever has work. On accelerators, `ranks` infer and `workers` simulate in all, a
    simulating one serving every slice.

    Attributes:
        mode, ranks, workers: see above; `workers` is 0 where colocated.
        rollout_workers: processes or accelerators that collect beside the ranks, which then only learn; they infer, and
            have the simulators that ranks would have. 0 where ranks collect.
        slices: sets of environments of a rank; one is inferred while the others simulate.
        order: "exact" infers slices in turn; "ready" takes whichever simulators are done, a slice's worth at most.
    """

    mode: Mode
    ranks: int
    workers: int = 0
    slices: int = 1
    order: Order = "exact"
    rollout_workers: int = 0

    @property
    def collectors(self) -> int:
        """Who collects: rollout workers, or the ranks."""
        return self.rollout_workers or self.ranks

    @property
    def collecting(self) -> "Allocation":
        """The same with those who collect for ranks: what a rollout depends on."""
        return replace(self, ranks=self.collectors, rollout_workers=0)

    @property
    def processes(self) -> int:
        """Processes of an allocation on cores."""
        return (self.ranks if self.rollout_workers else 0) + self.collectors * (1 + self.slices * self.workers)

    @property
    def simplicity(self) -> tuple[bool, bool, int, int]:
        """For ties: fewer moving parts first."""
        return (self.order == "ready", self.mode != "colocated", self.slices, self.processes)

    def __str__(self) -> str:
        beside = f", {self.workers} simulating" if self.workers else ""
        order = f", {self.order} order" if self.workers and self.slices > 1 else ""
        also = f", {_count(self.rollout_workers, 'rollout worker')}" if self.rollout_workers else ""
        return f"{self.mode}, {_count(self.ranks, 'rank')}{also}{beside}, {_count(self.slices, 'slice')}{order}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
