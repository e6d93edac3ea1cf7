"""Descriptions of free cores and GPUs in a cluster, and of processes that wait for them."""

from collections import Counter
from collections.abc import Sequence

from embodied_rl.runtime.processes.base import NodeShare
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import BundlePlace


def describe_share(share: NodeShare) -> str:
    """Return a description of a share, e.g. "2 cores and 1 GPU"."""
    cores = f"{share.cpus:g} core{'' if share.cpus == 1 else 's'}"
    return cores if share.gpus == 0 else f"{cores} and {share.gpus:g} GPU{'' if share.gpus == 1 else 's'}"


def describe_free() -> str:
    """Return a description of the free cores and GPUs of every node."""
    rows = [
        f"{node.address} {describe_share(node.free)} of {describe_share(NodeShare(node.cpus, node.gpus))}"
        for node in cluster.list_nodes()
    ]
    return f"Free: {'; '.join(rows)}."


def explain_wait(share: NodeShare, where: BundlePlace | None) -> str:
    """Return why a process may not have started: too few free resources, or a slow start."""
    if where is not None:
        whole = describe_share(where.bundles[where.bundle])
        waiting = f"it waits for {describe_share(share)} of bundle {where.bundle} ({whole}) of those reserved."
        return f"{waiting} {describe_free()}"
    if any(node.can_host(share) for node in cluster.list_nodes()):
        return "there are free resources for it, but it has not started."
    return f"it waits for {describe_share(share)}, which are free on no node. {describe_free()}"


def explain_refusal(bundles: Sequence[NodeShare], seconds: float) -> str:
    """Return why a reservation failed, with the requested bundles and the free resources."""
    requested = Counter(map(describe_share, bundles))
    each = ", ".join(f"{count} × {share}" for share, count in requested.items())
    return (
        f"The cluster had too few free resources within {seconds:g} s. Requested, each on one node: {each}. "
        f"{describe_free()} Start more nodes, end other processes there, or request less: plan.ranks, plan.workers, "
        "plan.rollout_workers."
    )
