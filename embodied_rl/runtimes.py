"""The runtime that a configuration names."""

from collections.abc import Callable
from typing import TypeVar

from embodied_rl.runtime import ranks
from embodied_rl.runtime.base import Runtime, Share
from embodied_rl.runtime.collective import Ranks
from embodied_rl.runtime.this_machine import ThisMachine
from embodied_rl.schema import TrainConfig

Job = TypeVar("Job")


def of(config: TrainConfig) -> Runtime:
    """Where the processes of a run live.

    Raises:
        ValueError: Ray is not installed, or there is no such cluster.
    """
    if config.runtime == "local":
        return ThisMachine()
    from embodied_rl.runtime.ray import RayRuntime  # takes a second to import, and is an extra

    return RayRuntime(config.cluster)


def launch(config: TrainConfig, function: Callable[[Job, Ranks], None], job: Job, timeout: float) -> None:
    """Run `function(job, ranks)` on every rank of a run; see `embodied_rl.runtime.ranks.launch`."""
    if config.runtime == "local":
        return ranks.launch(function, job, config.plan.ranks, timeout=timeout)
    from embodied_rl.runtime.ray import RayRuntime

    share = Share(gpus=float(config.policy.device != "cpu"))
    return RayRuntime(config.cluster).launch(function, job, config.plan.ranks, timeout=timeout, share=share)
