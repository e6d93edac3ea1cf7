"""What the processes of a run take of a cluster's nodes, in bundles that each lie on one node."""

from embodied_rl.config.schema import Plan
from embodied_rl.processes.base import NodeShare


def make_bundles(plan: Plan, device: str) -> list[NodeShare]:
    """What each rank, then each rollout worker, takes of its node, with the simulators and policies that it starts."""
    policy = int(plan.policy == "process")
    apart = policy if plan.allocation == "colocated" else plan.simulators + policy
    gpus = count_gpus(device) * (1 + policy)
    return [NodeShare(cores, gpus) for cores in count_cores(plan.ranks, plan.rollout_workers or 0, apart)]


def count_gpus(device: str) -> float:
    """GPUs of a process whose network lives there."""
    return 0.0 if device == "cpu" else 1.0


def count_cores(ranks: int, rollout_workers: int, apart: int) -> list[int]:
    """Cores of each bundle: of ranks, then of rollout workers; who collects starts `apart` processes of its own."""
    if rollout_workers:
        return [1] * ranks + [1 + apart] * rollout_workers
    return [1 + apart] * ranks
