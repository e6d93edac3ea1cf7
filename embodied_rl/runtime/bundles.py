"""The cores and GPUs that a run reserves in a cluster, in bundles that each lie on one node."""

from embodied_rl.runtime.processes.base import NodeShare
from embodied_rl.schema import Plan


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
