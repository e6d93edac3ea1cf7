"""Bundles lie on nodes that have room for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.training.planner.allocation import (
    Allocation,
    Resources,
    describe_placement,
    make_bundles,
    place_bundles,
)
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.search import choose_allocation
from tests.support.refusals import refuses

small = st.lists(st.integers(1, 8), min_size=1, max_size=8)


@given(small, small)
def test_no_node_holds_more_than_it_has(wanted: list[int], nodes: list[int]) -> None:
    placed = place_bundles(wanted, nodes)
    if placed is None:
        return
    used = [sum(size for size, at in zip(wanted, placed, strict=True) if at == node) for node in range(len(nodes))]
    assert all(taken <= cores for taken, cores in zip(used, nodes, strict=True))


@pytest.mark.thorough
@given(small)
def test_bundles_that_fit_exactly_are_placed(wanted: list[int]) -> None:
    assert place_bundles(wanted, [sum(wanted)]) == [0] * len(wanted)
    assert place_bundles(wanted, [sum(wanted) - 1]) is None
    assert place_bundles(wanted, wanted) is not None


def test_a_bundle_holds_a_collector_with_its_simulators() -> None:
    assert make_bundles(Allocation("colocated", 3)) == [1, 1, 1]
    assert make_bundles(Allocation("split", 2, workers=3, slices=2)) == [7, 7]
    assert make_bundles(Allocation("split", 2, workers=3, slices=1, rollout_workers=2)) == [1, 1, 4, 4]


@pytest.mark.parametrize(
    ("plan", "nodes", "word"),
    [
        (Allocation("colocated", 1, rollout_workers=1), [2], "colocated"),
        (Allocation("colocated", 1, rollout_workers=1), [1, 1], "disaggregated"),
        (Allocation("colocated", 1, rollout_workers=3), [2, 2], "hybrid"),
        (Allocation("colocated", 2), [1, 1], "colocated"),
    ],
)
def test_a_placement_has_a_name(plan: Allocation, nodes: list[int], word: str) -> None:
    said = describe_placement(plan, nodes)
    assert f"that fits, {word}:" in said
    assert said.count("rank ") == plan.ranks and said.count("rollout worker ") == plan.rollout_workers


def test_plans_that_no_node_holds_are_not_chosen() -> None:
    """With slow simulators, four beside one rank are best on one machine of five cores; nodes of two hold two each."""
    costs, work = Costs(LinearCost(0.0, 0.1), LinearCost(0.01, 0.0), LinearCost(0.0, 0.0)), Workload(16, 10)
    whole = choose_allocation(costs, Resources(5), work)
    apart = choose_allocation(costs, Resources(5, nodes=(2, 2, 1)), work)
    assert max(make_bundles(whole.best.allocation)) > 2 >= max(make_bundles(apart.best.allocation))
    refused = [item for item in apart.others if item.prediction is None]
    assert any("belong on one node" in item.why_not for item in refused)
    with refuses("plan-infeasible", "node"):
        choose_allocation(costs, Resources(1, nodes=(0,)), work)
