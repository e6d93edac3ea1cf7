"""What a cluster has free, in words: who waits for what, and where there is how much."""

from collections.abc import Sequence

from embodied_rl.processes.base import Share
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import Where


def in_words(share: Share) -> str:
    """ "2 cores and 1 GPU"."""
    cores = f"{share.cpus:g} core{'' if share.cpus == 1 else 's'}"
    return cores if share.gpus == 0 else f"{cores} and {share.gpus:g} GPU{'' if share.gpus == 1 else 's'}"


def free_in_words() -> str:
    """What every node has free."""
    rows = [
        f"{node.address} {in_words(node.free)} of {in_words(Share(node.cpus, node.gpus))}" for node in cluster.nodes()
    ]
    return f"Free are: {'; '.join(rows)}."


def waits_for(share: Share, where: Where | None) -> str:
    """Why a process may not have started: no room, or room and nobody there."""
    if where is not None:
        whole = in_words(where.bundles[where.bundle])
        return f"it waits for {in_words(share)} of bundle {where.bundle} ({whole}) of those reserved. {free_in_words()}"
    if any(node.has_room(share) for node in cluster.nodes()):
        return "there is room for it, but it has not come up."
    return f"it waits for {in_words(share)}, which no node has free. {free_in_words()}"


def none_for(bundles: Sequence[Share], seconds: float) -> str:
    """Why a reservation came to nothing."""
    asked: dict[str, int] = {}
    for share in bundles:
        asked[in_words(share)] = asked.get(in_words(share), 0) + 1
    each = ", ".join(f"{count} × {words}" for words, count in asked.items())
    return (
        f"The cluster had no room for this plan within {seconds:g} s. Asked for, each on one node: {each}. "
        f"{free_in_words()} Start more nodes, end what runs there, or ask for less: plan.ranks, plan.workers, "
        "plan.rollout_workers."
    )
