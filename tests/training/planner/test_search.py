"""Choice of an allocation: the fastest one that fits, the simplest of equally fast ones."""

from dataclasses import replace

import pytest

from embodied_rl.actors.learning.update_memory import UpdateMemory
from embodied_rl.schema import Plan
from embodied_rl.training.planner.allocation import Allocation, Resources
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.plan_selection import to_plan
from embodied_rl.training.planner.policy_memory import PolicyMemory, check_host
from embodied_rl.training.planner.search import choose_allocation, list_allocations, predict_candidate, predict_memory
from tests.support.refusals import refuses

TWO_CORES = Resources(2)
POLICY = PolicyMemory(
    parameters=10**9,
    update=UpdateMemory(
        weights=4 * 10**9,
        gradients=4 * 10**9,
        moments=8 * 10**9,
        step=0,
        peaks=((1, 10**9), (2, 3 * 10**9)),
        recorded=0,
    ),
    acting=2 * 10**9,
    all_acting=9 * 10**9,
    envs=64,
)
"""16 GB are held; learning from a row takes 1 GB more, acting in one environment 2 GB."""


def test_symmetric_ranks_win_on_two_cores_where_everything_divides():
    costs = Costs(step=LinearCost(0.002, 0.001), inference=LinearCost(0.004, 0.0007), update=LinearCost(0.1, 0.001))
    best = choose_allocation(costs, TWO_CORES, Workload(96, 24)).best
    assert (best.allocation.mode, best.allocation.ranks) == ("colocated", 2)


def test_two_slices_win_where_inference_has_a_large_fixed_cost():
    """Two ranks would pay it twice at once; a policy with a simulator process pays it twice in turn."""
    costs = Costs(
        step=LinearCost(0, 0.01), inference=LinearCost(0.2, 0.0016), update=LinearCost(), policy_memory=LinearCost(6e9)
    )
    best = choose_allocation(costs, Resources(2, memory=8e9), Workload(64, 24)).best
    assert str(best.allocation).startswith("split, 1 rank, 1 simulating, 2 slices")


def test_a_resolved_plan_keeps_the_configured_deadlines():
    asked = Plan("auto", ranks=5, slices=7, workers=3, order="ready", start_timeout=900.0, call_timeout=45.0)
    chosen = to_plan(Allocation("split", ranks=1, workers=2, slices=2), asked)
    assert chosen == Plan("split", 1, 2, 2, "exact", start_timeout=900.0, call_timeout=45.0)
    assert to_plan(Allocation("colocated", ranks=2, workers=0, slices=1), asked).start_timeout == 900.0


def test_the_simplest_of_equally_fast_allocations_is_chosen():
    costs = Costs(step=LinearCost(0.1), inference=LinearCost(1e-6), update=LinearCost())
    assert choose_allocation(costs, Resources(1), Workload(64, 24)).best.allocation.mode == "colocated"


def test_all_others_are_listed_from_fast_to_slow():
    costs = Costs(step=LinearCost(0.03, 0.002), inference=LinearCost(0.05, 0.001), update=LinearCost(0.2, 0.0005))
    choice = choose_allocation(costs, Resources(4), Workload(64, 24))
    times = [item.prediction.seconds for item in choice.others]
    assert times == sorted(times)
    assert len(times) + 1 == len(list(list_allocations(Resources(4), Workload(64, 24))))


def test_above_sixteen_divisors_of_the_cores_and_powers_of_two_are_tried():
    ranks = {plan.ranks for plan in list_allocations(Resources(36), Workload(36 * 17 * 32, 24))}
    assert {16, 17, 18, 32, 36} & ranks == {16, 18, 32, 36}


def test_groups_stay_in_one_simulator():
    for plan in list_allocations(Resources(4), Workload(64, 24), group_size=8):
        assert 64 // (plan.ranks * max(1, plan.slices * plan.workers)) % 8 == 0


def test_ready_order_is_offered_only_where_it_may_be_used():
    for orders in (("exact",), ("exact", "ready")):
        assert {plan.order for plan in list_allocations(TWO_CORES, Workload(64, 24), orders=orders)} == set(orders)


@pytest.mark.parametrize("resources", [Resources(2, memory=3e9), Resources(16, devices=2, device_memory=2.2e9)])
def test_allocations_that_do_not_fit_in_memory_are_not_chosen(resources):
    costs = Costs(
        step=LinearCost(0.01), inference=LinearCost(0.01), update=LinearCost(0, 0.01),
        simulator_memory=LinearCost(5e8, 1e7), policy_memory=LinearCost(1.5e9),
    )  # fmt: skip
    choice = choose_allocation(costs, resources, Workload(32, 10))
    limit = resources.device_memory or resources.memory
    assert predict_memory(costs, choice.best.allocation, resources, Workload(32, 10)) <= limit
    refused = [item for item in choice.others if item.prediction is None]
    assert refused
    assert all("GB" in item.why_not for item in refused)


def test_too_little_memory_for_any_allocation_is_refused():
    costs = Costs(step=LinearCost(0.01), inference=LinearCost(0.01), update=LinearCost(), policy_memory=LinearCost(9e9))
    with refuses("plan-infeasible", "9.0 GB", "4.0 GB", "sim.num_envs"):
        choose_allocation(costs, Resources(2, memory=4e9), Workload(32, 10))


def test_environments_that_cannot_be_divided_are_refused():
    with refuses("plan-infeasible", 7):
        choose_allocation(
            Costs(LinearCost(1), LinearCost(1), LinearCost(1)),
            Resources(0, devices=3),
            Workload(7, 10),
            group_size=7 * 3,
        )


def test_the_published_allocations_of_eight_accelerators_are_ranked():
    """ManiSkill with a 7B policy: colocated beats the usual half-and-half; LIBERO on the host wants two slices."""
    gpus = Resources(64, devices=8)
    maniskill = Costs(
        step=LinearCost(0.15, 0.0004), render=LinearCost(0.02, 0.0015),
        inference=LinearCost(0.2, 0.011), update=LinearCost(0, 0.05),
        transfer=LinearCost(0.004), switch=10, synchronise=2, step_on="device",
    )  # fmt: skip
    assert str(choose_allocation(maniskill, gpus, Workload(256, 80)).best.allocation) == "colocated, 8 ranks, 1 slice"
    libero = Costs(
        step=LinearCost(0.02, 0.0125), inference=LinearCost(0.08, 0.008), update=LinearCost(0, 0.03),
        transfer=LinearCost(0.004), switch=5, jitter=0.3,
    )  # fmt: skip
    assert str(choose_allocation(libero, gpus, Workload(64, 200)).best.allocation) == "colocated, 8 ranks, 2 slices"


AHEAD = (Workload(64, 24, staleness=1), Workload(64, 24, segments=4))


@pytest.mark.parametrize("work", AHEAD, ids=["versions", "segments"])
def test_accelerators_that_collect_ahead_do_not_learn(work: Workload) -> None:
    plans = list(list_allocations(Resources(64, devices=8), work))
    assert {plan.mode for plan in plans} == {"colocated", "split"}
    assert {plan.ranks + plan.rollout_workers + plan.workers for plan in plans} == {8}
    assert all(plan.rollout_workers and work.envs % plan.ranks == 0 for plan in plans)
    parts = {plan.slices * (plan.workers or plan.rollout_workers) for plan in plans}
    assert not [count for count in parts if work.envs % count]


@pytest.mark.parametrize("resources", [Resources(12), Resources(64, devices=8)], ids=["cores", "accelerators"])
def test_ranks_that_learn_from_what_workers_store_have_equally_many_of_them(resources: Resources) -> None:
    plans = list(list_allocations(resources, AHEAD[0]))
    some = list(list_allocations(resources, AHEAD[0], whole_workers=True))
    assert some == [plan for plan in plans if plan.rollout_workers in range(plan.ranks, 99, plan.ranks)]
    assert len({plan.ranks for plan in some}) > 1 and len(some) < len(plans)


def test_half_of_the_accelerators_learn_if_learning_takes_half_of_the_time() -> None:
    """A decision takes an accelerator 0.01 s to make and 0.01 s to learn from: four of eight do either."""
    costs = Costs(
        step=LinearCost(0, 0.005), inference=LinearCost(0, 0.005), update=LinearCost(0, 0.01), step_on="device"
    )
    best = choose_allocation(costs, Resources(64, devices=8), AHEAD[0]).best
    assert (best.allocation.ranks, best.allocation.rollout_workers + best.allocation.workers) == (4, 4)
    assert best.prediction is not None and best.prediction.seconds == pytest.approx(64 * 24 * 0.01 / 4, rel=0.01)


def test_accelerators_that_only_infer_need_less_memory() -> None:
    """Learning takes 10 GB, inference 2 GB, a simulator 5 GB; an accelerator has 12 GB."""
    costs = Costs(
        step=LinearCost(0, 0.01), inference=LinearCost(0, 0.01), update=LinearCost(0, 0.001), step_on="device",
        simulator_memory=LinearCost(5e9), policy_memory=LinearCost(1e10), inference_memory=LinearCost(2e9),
    )  # fmt: skip
    plan, gpus = Allocation("colocated", 4, rollout_workers=4), Resources(64, devices=8, device_memory=12e9)
    assert predict_memory(costs, plan, gpus, AHEAD[0]) == 1e10
    assert predict_memory(replace(costs, inference_memory=None), plan, gpus, AHEAD[0]) == 1.5e10
    assert plan in [item.allocation for item in choose_allocation(costs, gpus, AHEAD[0]).others if item.prediction]


def test_collecting_while_learning_needs_two_accelerators() -> None:
    costs = Costs(step=LinearCost(0.01), inference=LinearCost(0.01), update=LinearCost(0.01))
    with refuses("plan-infeasible", "mode=sync"):
        choose_allocation(costs, Resources(8, devices=1), AHEAD[0])


def test_no_allocation_goes_below_the_counted_memory() -> None:
    """Costs that know of less do not hide it; on cores all ranks share the memory of the host."""
    costs, work = Costs(LinearCost(1), LinearCost(1), LinearCost(1), policy_memory=LinearCost(5e9)), Workload(64, 4)
    two = Allocation("colocated", 2)
    assert predict_candidate(costs, two, Resources(2, 2, device_memory=18e9), work, POLICY).memory == 18e9
    assert predict_candidate(costs, two, Resources(2, memory=40e9), work, POLICY).memory == 36e9
    for resources, least in ((Resources(8, 8, device_memory=17e9), 18.0), (Resources(2, memory=17e9), 18.0)):
        with refuses("plan-infeasible", least, 17.0, "counted"):
            choose_allocation(costs, resources, work, policy=POLICY)
    chosen = choose_allocation(costs, Resources(2, memory=20e9), work, policy=POLICY)
    assert chosen.best.allocation.ranks == 1
    assert {"counted" in each.why_not for each in chosen.others if each.allocation.ranks == 2} == {True}
    costs = replace(costs, policy_memory=LinearCost(19e9))
    assert predict_candidate(costs, two, Resources(2, 2), work, POLICY).memory == 19e9, "measured, and more"


def test_counted_memory_follows_who_acts_and_who_shares() -> None:
    alone, four = Allocation("colocated", 1), Allocation("colocated", 4)
    assert POLICY.least(alone) == POLICY.least(four) == 18e9
    assert POLICY.least(replace(four, rollout_workers=4)) == 17e9, "ranks do not act"
    assert replace(POLICY, sharded=True).least(four) == (4 + 1 + 2 + 2) * 1e9, "weights are whole"
    check_host(POLICY, Resources(2, memory=18e9))
    with refuses("plan-infeasible", "18 GB", "17.9 GB"):
        check_host(POLICY, Resources(2, memory=17.9e9))
