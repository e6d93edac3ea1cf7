"""What follows for a configuration where torchrun started this process. Imports nothing heavy."""

from dataclasses import replace
from typing import Any

from embodied_rl.config.schema import Plan, TrainConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.ranks.torchrun_place import TorchrunPlace


def place_on_torchrun(command: str, config: Any) -> Any:
    """A configuration with torchrun's processes as its ranks; as it is where torchrun has no part in it.

    Raises:
        UserError: a command that has no ranks, or plan.ranks was given and differs.
    """
    place = TorchrunPlace.find()
    if place is None:
        return config
    if not isinstance(config, TrainConfig) or command != "train":
        if place.size == 1:
            return config
        raise UserError(f"torchrun starts ranks of `train`; `{command}` is one process: type it without torchrun.")
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
