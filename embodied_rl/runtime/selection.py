"""Selection of the runtime of a configuration, the cores and GPUs of its processes, and launch of its ranks."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.processes.handle import NodeShare, Runtime
from embodied_rl.runtime.processes.local import LocalRuntime
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.torchrun import choose_launcher
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.schema import TrainConfig

if TYPE_CHECKING:
    from embodied_rl.runtime.ray.runtime import RayRuntime
from embodied_rl.schema import Plan

Job = TypeVar("Job")


def make_bundles(plan: Plan, device: str) -> list[NodeShare]:
    """Return the share of each rank, then of each rollout worker, including its simulators and policy process."""
    policy = int(plan.policy == "process")
    apart = policy if plan.allocation == "colocated" else plan.simulators + policy
    gpus = count_gpus(device) * (1 + policy)
    return [NodeShare(cores, gpus) for cores in count_cores(plan.ranks, plan.rollout_workers or 0, apart)]


def count_gpus(device: str) -> float:
    """Return the number of GPUs of a process with a network on `device`; none for "auto", which a run resolves."""
    return 0.0 if device in ("cpu", "auto") else 1.0


def count_cores(ranks: int, rollout_workers: int, apart: int) -> list[int]:
    """Return the cores of each bundle, ranks first, then rollout workers; each collector starts `apart` processes."""
    if rollout_workers:
        return [1] * ranks + [1 + apart] * rollout_workers
    return [1 + apart] * ranks


def select_runtime(config: TrainConfig) -> Runtime:
    """Return the runtime that starts the processes of a run.

    Raises:
        Unavailable: Ray is not installed. NoCluster: no cluster answers at the address.
    """
    return LocalRuntime() if config.runtime == "local" else _cluster(config)


def launch_ranks(config: TrainConfig, function: Callable[[Job, Ranks], None], job: Job, timeout: float) -> None:
    """Run `function(job, ranks)` on every rank of a run; see `embodied_rl.runtime.ranks.launch.launch_ranks`.

    Raises:
        InsufficientResources: the cluster has too few free resources for the plan.
    """
    if config.runtime == "local":
        return choose_launcher()(function, job, config.plan.ranks, timeout=timeout)
    with _cluster(config) as runtime:
        runtime.reserve(make_bundles(config.plan, config.policy.device))
        share = NodeShare(gpus=count_gpus(config.policy.device))
        return runtime.launch(function, job, config.plan.ranks, timeout=timeout, share=share)


def check_runtime(config: TrainConfig) -> None:
    """Check that the processes of a run can start, as far as this machine can determine.

    Raises:
        Unavailable: Ray is not installed. UserError: torchrun started this process, but Ray is to start the ranks.
    """
    if config.runtime == "local":
        return
    if find_spec("ray") is None:
        raise Unavailable("runtime=ray needs Ray, which is not installed here: pip install 'embodied-rl[ray]'")
    if TorchrunPlace.find() is not None:
        message = "runtime=ray starts plan.ranks ranks itself. Run it without torchrun."
        raise UserError(message, code="torchrun-not-supported")


def list_nodes(config: TrainConfig) -> tuple[int, ...]:
    """Return the cores of each node of a run's cluster, or an empty tuple if there is no cluster yet.

    Raises:
        NoCluster: no cluster answers at the address.
    """
    if config.runtime == "local":
        return ()
    from embodied_rl.runtime.ray import cluster

    with _cluster(config) as runtime:
        nodes = [] if runtime.connection.started else cluster.list_nodes()
        return tuple(int(node.cpus) for node in nodes if node.cpus >= 1)


def _cluster(config: TrainConfig) -> "RayRuntime":
    from embodied_rl.runtime.ray.runtime import RayRuntime  # optional, and takes a second to import

    cpus = sum(share.cpus for share in make_bundles(config.plan, config.policy.device))
    return RayRuntime(config.cluster, cpus=cpus)
