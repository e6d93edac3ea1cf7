"""Search for the best allocation: predict every feasible one, and choose the simplest among the fastest."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from embodied_rl.interfaces.errors import UserError
from embodied_rl.training.planner.allocation import Allocation, Order, Resources, make_bundles, place_bundles
from embodied_rl.training.planner.costs import Costs
from embodied_rl.training.planner.model import Prediction, Workload, count_learners, predict_iteration
from embodied_rl.training.planner.policy_memory import ADVICE, PolicyMemory

SLICES = (1, 2, 3, 4)
FEW = 16
TIE = 0.02
"""Allocations that are slower by no more than this are as good: the costs are not known better."""


COUNTED, FEWER = " at least, counted from shapes,", "Use fewer environments (sim.num_envs)."


@dataclass(frozen=True)
class Candidate:
    """An allocation, the bytes it needs, and its prediction; or the reason `why_not` it cannot be used."""

    allocation: Allocation
    memory: float
    prediction: Prediction | None
    why_not: str = ""


@dataclass(frozen=True)
class Choice:
    """The chosen allocation, and all others: first the feasible ones from fast to slow, then the infeasible ones."""

    best: Candidate
    others: tuple[Candidate, ...]


def choose_allocation(
    costs: Costs,
    resources: Resources,
    workload: Workload,
    *,
    group_size: int = 1,
    orders: Iterable[Order] = ("exact",),
    whole_workers: bool = False,
    policy: PolicyMemory | None = None,
) -> Choice:
    """Predict every allocation of `resources`, and choose the simplest of those within `TIE` of the fastest.

    Args:
        costs: costs of the stages.
        resources: cores, accelerators, memory.
        workload: N environments, T decisions.
        group_size: environments that must stay in one simulator.
        orders: allowed slice orders; with "ready", results are not bitwise reproducible.
        whole_workers: whether each rank learns from what its own rollout workers store, as from replay.
        policy: counted memory, which no allocation goes below; None if it is not known.

    Raises:
        UserError: no allocation is feasible; the message names the reason.
    """
    plans = list_allocations(resources, workload, group_size, tuple(orders), whole_workers)
    found = [predict_candidate(costs, plan, resources, workload, policy) for plan in plans]
    feasible = sorted((item for item in found if item.prediction), key=_seconds)
    if not feasible:
        least = min(found, key=lambda item: item.memory, default=None)
        if workload.ahead and resources.devices == 1:
            why = "to collect while learning takes two accelerators at least; resources has one. Try mode=sync."
        elif least is None:
            why = f"{workload.envs} environments cannot be shared equally in any way; try a multiple of 8"
        elif "node" in least.why_not:
            why = f"nothing fits; {least.allocation} {least.why_not}. Start nodes with more cores."
        else:
            problem = f"{least.allocation} {least.why_not}"
            counted = COUNTED in least.why_not
            why = f"nothing fits in memory; {problem}. {ADVICE if counted else FEWER}"
        raise UserError(f"plan: {why}", code="plan-infeasible")
    good = [item for item in feasible if _seconds(item) <= _seconds(feasible[0]) * (1 + TIE)]
    best = min(good, key=lambda item: item.allocation.simplicity)
    others = [item for item in feasible if item is not best] + [item for item in found if not item.prediction]
    return Choice(best, tuple(others))


def list_allocations(
    resources: Resources,
    workload: Workload,
    group_size: int = 1,
    orders: tuple[Order, ...] = ("exact",),
    whole_workers: bool = False,
) -> Iterator[Allocation]:
    """Yield every allocation of the resources that divides the environments into equal parts of whole groups.

    With `whole_workers` there are as many rollout workers as ranks, or a multiple.
    """
    if resources.devices:
        plans = _ahead_on_devices(resources.devices) if workload.ahead else _on_devices(resources.devices)
    else:
        plans = _ahead_on_cores(resources.cores) if workload.ahead else _on_cores(resources.cores)
    for plan in plans:
        if workload.envs % plan.ranks or (whole_workers and plan.rollout_workers % plan.ranks):
            continue
        parts = plan.collectors * plan.slices * max(1, plan.workers)
        if resources.devices:
            parts = plan.slices * (plan.workers or plan.collectors)
        if workload.envs % parts or workload.envs // parts % group_size:
            continue
        for order in orders if plan.workers and plan.slices > 1 else ("exact",):
            yield replace(plan, order=order)


def predict_candidate(
    costs: Costs, plan: Allocation, resources: Resources, workload: Workload, policy: PolicyMemory | None = None
) -> Candidate:
    """Predict an allocation; if it does not fit in memory or on the nodes, return the reason instead.

    It needs what the costs say, or what is counted of `policy`, if that is more.
    """
    needed = predict_memory(costs, plan, resources, workload)
    counted = 0 if policy is None else policy.least(plan) * (1 if resources.devices else plan.ranks)
    source, needed = COUNTED if counted > needed else "", max(needed, counted)
    if resources.nodes and place_bundles(make_bundles(plan), resources.nodes) is None:
        return Candidate(
            plan, needed, None, f"has {max(make_bundles(plan))} processes that belong on one node, of too few"
        )
    limit = resources.device_memory if resources.devices else resources.memory
    if limit is None or needed <= limit:
        return Candidate(plan, needed, predict_iteration(costs, plan, resources, workload))
    where = "each accelerator" if resources.devices else "the host"
    return Candidate(plan, needed, None, f"needs {needed / 1e9:.1f} GB{source} of the {limit / 1e9:.1f} GB of {where}")


def predict_memory(costs: Costs, plan: Allocation, resources: Resources, workload: Workload) -> float:
    """Return the bytes needed: on cores by all processes together, on accelerators by the fullest accelerator."""
    if not resources.devices:
        simulators = plan.collectors * max(1, plan.slices * plan.workers)
        simulator = costs.simulator_memory(workload.envs / simulators)
        policies = plan.ranks * costs.policy_memory(workload.rows / plan.ranks)
        if plan.rollout_workers:
            collector = costs.of_collectors.policy_memory(workload.rows / plan.rollout_workers)
            policies += plan.rollout_workers * collector
        return simulators * simulator + policies
    policy = costs.policy_memory(workload.rows / count_learners(plan))
    if plan.rollout_workers:
        return max(policy, predict_memory(costs.of_collectors, plan.collecting, resources, workload))
    if plan.mode == "colocated":
        return costs.simulator_memory(workload.envs / plan.ranks) + policy
    simulator = costs.simulator_memory(workload.envs / plan.workers)
    return max(policy, simulator if plan.mode == "split" else simulator + policy)


def _on_cores(cores: int) -> Iterator[Allocation]:
    for ranks in _counts(cores):
        yield Allocation("colocated", ranks)
        for workers in _counts(cores // ranks):
            for slices in SLICES:
                yield Allocation("split", ranks, workers, slices)


def _ahead_on_cores(cores: int) -> Iterator[Allocation]:
    """Yield the allocations in which some cores learn while others collect; a single core does both in turn."""
    for ranks in _counts(max(1, cores - 1)):
        for plan in _on_cores(max(1, cores - ranks)):
            yield replace(plan, ranks=ranks, rollout_workers=plan.ranks)


def _on_devices(devices: int) -> Iterator[Allocation]:
    for slices in SLICES:
        for ranks in _counts(devices):
            yield Allocation("colocated", ranks, 0, slices)
        for simulating in range(1, devices):
            yield Allocation("split", devices - simulating, simulating, slices)
            yield Allocation("hybrid", devices - simulating, simulating, slices)


def _ahead_on_devices(devices: int) -> Iterator[Allocation]:
    """Yield allocations with learning accelerators; the others all simulate and infer in turn, or split the two."""
    for ranks in range(1, devices):
        others = devices - ranks
        for slices in SLICES:
            yield Allocation("colocated", ranks, 0, slices, rollout_workers=others)
            for simulating in range(1, others):
                yield Allocation("split", ranks, simulating, slices, rollout_workers=others - simulating)


def _counts(most: int) -> list[int]:
    """Return the counts to try: all up to `FEW`, and above it, up to `most`, its divisors and powers of two."""
    powers = {2**power for power in range(most.bit_length())}
    return [count for count in range(1, most + 1) if count <= FEW or most % count == 0 or count in powers]


def _seconds(item: Candidate) -> float:
    return item.prediction.seconds if item.prediction else float("inf")
