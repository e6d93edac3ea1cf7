"""Place the processes of an allocation on the nodes of a cluster, in bundles that each lie on one node."""

from collections.abc import Sequence

from embodied_rl.runtime.bundles import count_cores
from embodied_rl.training.planner.allocation import Allocation


def make_bundles(plan: Allocation) -> list[int]:
    """Return the number of cores of each bundle of an allocation on cores."""
    return count_cores(plan.ranks, plan.rollout_workers, plan.slices * plan.workers)


def place_bundles(bundles: Sequence[int], nodes: Sequence[int]) -> list[int] | None:
    """Assign bundles to nodes, largest first, each to the first node with room; None if a bundle does not fit.

    Args:
        bundles: cores of each bundle.
        nodes: cores of each node.
    """
    free, found = list(nodes), [-1] * len(bundles)
    for number in sorted(range(len(bundles)), key=lambda number: -bundles[number]):
        room = next((node for node, cores in enumerate(free) if cores >= bundles[number]), None)
        if room is None:
            return None
        free[room] -= bundles[number]
        found[number] = room
    return found


def describe_placement(plan: Allocation, nodes: Sequence[int]) -> str:
    """Describe a placement for the user, with its name such as "colocated"; the plan must fit on the nodes."""
    placed = place_bundles(make_bundles(plan), nodes)
    assert placed is not None, "the plan does not fit on the nodes"
    names = [f"rank {number}" for number in range(plan.ranks)]
    names += [f"rollout worker {number}" for number in range(plan.rollout_workers)]
    on_nodes = [[name for name, at in zip(names, placed, strict=True) if at == node] for node in range(len(nodes))]
    rows = [f"  node {node} ({cores} cores): {', '.join(on_nodes[node]) or '–'}" for node, cores in enumerate(nodes)]
    learning, collecting = set(placed[: plan.ranks]), set(placed[plan.ranks :])
    kind = "hybrid" if collecting & learning else "disaggregated"
    if not plan.rollout_workers or collecting == learning:
        kind = "colocated"
    return "\n".join([f"Placement, one that fits, {kind}:", *rows])
