"""What torchrun tells a process about itself, and what follows for a configuration. Imports nothing heavy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_rl.schema import Plan, TrainConfig

FAILED = 1
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """Which of torchrun's processes this is.

    Attributes:
        rank: among all. size: how many there are. local_rank: among those of this node.
    """

    rank: int
    size: int
    local_rank: int

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Place | None":
        """That of this process; None where torchrun did not start it."""
        if not all(environment.get(name) for name in _VARIABLES):
            return None
        return cls(*(int(environment[name]) for name in _VARIABLES[:3]))

    def check(self, ranks: int, remedy: str) -> None:
        """Everybody has a part.

        Raises:
            ValueError: there are more or fewer processes than ranks.
        """
        if ranks != self.size:
            raise ValueError(
                f"torchrun started {self.size} processes, which are the ranks, but plan.ranks={ranks}: start {ranks} "
                f"(--nproc-per-node times --nnodes){remedy}."
            )


def placed(command: str, config: Any) -> Any:
    """A configuration with torchrun's processes as its ranks; as it is where torchrun has no part in it.

    Raises:
        ValueError: a command that has no ranks, or plan.ranks was given and differs.
    """
    place = Place.here()
    if place is None:
        return config
    if not isinstance(config, TrainConfig) or command != "train":
        if place.size == 1:
            return config
        raise ValueError(f"torchrun starts ranks of `train`; `{command}` is one process: type it without torchrun.")
    if config.resume is not None:
        return config  # its run says how many ranks it has
    if any(override.lstrip("+").partition("=")[0] == "plan.ranks" for override in config.run.overrides):
        place.check(config.plan.ranks, ", or leave plan.ranks out")
    return replace(config, plan=_plan(config.plan, place.size))


def _plan(plan: Plan, ranks: int) -> Plan:
    """`plan=auto` chooses how many processes to start; here they are started, and each simulates, infers and learns."""
    if plan.allocation == "auto":
        plan = replace(plan, allocation="colocated", slices=1)
    return replace(plan, ranks=ranks)
