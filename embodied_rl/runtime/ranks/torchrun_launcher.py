"""The rank of a process that torchrun started, and the entry point by which it runs. Imports torch only there."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from embodied_rl.interfaces.errors import UserError

FAILED = 1
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class TorchrunPlace:
    """Rank of a process among those that torchrun started.

    Attributes:
        rank: among all processes. size: number of processes. local_rank: among the processes of this node.
    """

    rank: int
    size: int
    local_rank: int

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "TorchrunPlace | None":
        """Return the rank of this process, or None if torchrun did not start it."""
        if not all(environment.get(name) for name in _VARIABLES):
            return None
        return cls(*(int(environment[name]) for name in _VARIABLES[:3]))

    def check(self, ranks: int, remedy: str) -> None:
        """Check that torchrun started one process for each rank; raise `UserError` otherwise."""
        if ranks != self.size:
            raise UserError(
                f"torchrun started {self.size} processes, which are the ranks, but plan.ranks={ranks}: start {ranks} "
                f"(--nproc-per-node times --nnodes){remedy}.",
                code="ranks-mismatch",
            )


def launch(run: Callable[[], int], dispatch: Callable[[], int]) -> int | None:
    """Run the command line as a process of torchrun, and return its exit code; None if torchrun did not start it.

    Args:
        run: runs the command line and prints its errors. dispatch: the same, raising them.
    """
    place = TorchrunPlace.find()
    if place is None:
        return None
    from embodied_rl.runtime.ranks import torchrun  # imports torch

    return torchrun.run_process(place, run, dispatch)
