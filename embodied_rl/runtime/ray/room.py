"""Texts about free cores and GPUs in a cluster, and about processes and plans that wait for them."""

from collections.abc import Sequence

from embodied_rl.runtime.processes.base import NodeShare
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import BundlePlace


def describe_share(share: NodeShare) -> str:
    """Return a share in words, e.g. "2 cores and 1 GPU"."""
    cores = f"{share.cpus:g} core{'' if share.cpus == 1 else 's'}"
    return cores if share.gpus == 0 else f"{cores} and {share.gpus:g} GPU{'' if share.gpus == 1 else 's'}"


def describe_free() -> str:
    """Return the free cores and GPUs of every node in words."""
    rows = [
        f"{node.address} {describe_share(node.free)} of {describe_share(NodeShare(node.cpus, node.gpus))}"
        for node in cluster.list_nodes()
    ]
    return f"Free are: {'; '.join(rows)}."


def explain_wait(share: NodeShare, where: BundlePlace | None) -> str:
    """Return why a process may not have started: there is no room, or there is room but it did not start."""
    if where is not None:
        whole = describe_share(where.bundles[where.bundle])
        waiting = f"it waits for {describe_share(share)} of bundle {where.bundle} ({whole}) of those reserved."
        return f"{waiting} {describe_free()}"
    if any(node.has_room(share) for node in cluster.list_nodes()):
        return "there is room for it, but it has not come up."
    return f"it waits for {describe_share(share)}, which no node has free. {describe_free()}"


def explain_refusal(bundles: Sequence[NodeShare], seconds: float) -> str:
    """Return why a reservation failed, with the bundles that were asked for and what is free."""
    asked: dict[str, int] = {}
    for share in bundles:
        asked[describe_share(share)] = asked.get(describe_share(share), 0) + 1
    each = ", ".join(f"{count} × {words}" for words, count in asked.items())
    return (
        f"The cluster had no room for this plan within {seconds:g} s. Asked for, each on one node: {each}. "
        f"{describe_free()} Start more nodes, end what runs there, or ask for less: plan.ranks, plan.workers, "
        "plan.rollout_workers."
    )
