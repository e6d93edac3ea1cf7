"""Intervals and remarks on whole training iterations."""

from embodied_rl.training.planner.allocation import Allocation
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Prediction, Workload
from embodied_rl.training.planner.search import Candidate
from tests.benchmarks.plan_validation import PIPELINED, SYNC, LiveRun, make_remarks

COSTS = Costs(step=LinearCost(0, 0.5), inference=LinearCost(0, 1.0), update=LinearCost())


def run(plan: Allocation, *times: float) -> LiveRun:
    return LiveRun(Candidate(plan, 0.0, Prediction(2.0, 1.0, 1.0, {}, 0.0, 1.0)), times)


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    """For 20 values the 6th to the 15th, for 10 the 2nd to the 9th; of four all there is."""
    for count, low, high in ((20, 6, 15), (10, 2, 9), (4, 1, 4)):
        assert run(SYNC, *map(float, range(1, count + 1))).interval == (low, high)


def test_the_choice_is_held_against_the_fastest() -> None:
    chosen = Allocation("colocated", 2)
    slow = [run(chosen, 2.0, 2.1, 2.2), run(SYNC, 3.0, 3.1, 3.2), run(PIPELINED, 1.0, 1.1, 1.2)]
    first, second = make_remarks(slow, COSTS, Workload(8, 4))
    assert "2.10 s [2.00, 2.20]" in first and "1.10 s [1.00, 1.20]" in first and "do not overlap" in first
    assert "2.82 times" in second and "1 + r = 1.50" in second
    assert "intervals overlap" in make_remarks([run(chosen, 1.15, 2.0), *slow[1:]], COSTS, Workload(8, 4))[0]
    assert run(chosen, 2.5).error == 0.25
