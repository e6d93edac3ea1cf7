"""Adapt a configuration to the processes that torchrun started. Imports nothing heavy."""

from dataclasses import replace
from typing import Any

from embodied_rl.config.schema import Plan, TrainConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace


def place_on_torchrun(command: str, config: Any) -> Any:
    """Return the configuration with torchrun's processes as ranks; unchanged if torchrun did not start this process.

    Raises:
        UserError: the command has no ranks, or the given plan.ranks differs from the number of processes.
    """
    place = TorchrunPlace.find()
    if place is None:
        return config
    if not isinstance(config, TrainConfig) or command != "train":
        if place.size == 1:
            return config
        raise UserError(f"torchrun starts ranks of `train`; `{command}` is one process: type it without torchrun.")
    if config.resume is not None:
        return config  # the stored run sets the number of ranks
    if any(override.lstrip("+").partition("=")[0] == "plan.ranks" for override in config.run.overrides):
        place.check(config.plan.ranks, ", or leave plan.ranks out")
    return replace(config, plan=_plan(config.plan, place.size))


def _plan(plan: Plan, ranks: int) -> Plan:
    """Return the plan with `ranks` ranks; `plan=auto` becomes colocated, because torchrun has started the ranks."""
    if plan.allocation == "auto":
        plan = replace(plan, allocation="colocated", slices=1)
    return replace(plan, ranks=ranks)
