"""The planner's choice against every allocation there is, counted out here once more, over drawn costs and memory."""

import random
from collections.abc import Iterator

import pytest

from embodied_rl.training.planner.allocation import Allocation, Resources
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.search import choose_allocation, predict_candidate
from tests.support.refusals import refuses

pytestmark = pytest.mark.thorough
MACHINES = (
    Resources(2, memory=12e9),
    Resources(4, memory=16e9),
    Resources(6, memory=24e9),
    Resources(8, 3, device_memory=13e9),
    Resources(16, 6, device_memory=13e9),
)
DRAWS = 4


def drawn(draw: random.Random, devices: bool) -> Costs:
    """Stages of any proportion, up to 60 % of them fixed; a policy that may be too large to have everywhere."""

    def line(scale: float) -> LinearCost:
        seconds, fixed = scale * 10 ** draw.uniform(-1, 1), draw.uniform(0, 0.6)
        return LinearCost(seconds * fixed, seconds * (1 - fixed) / 64)

    return Costs(
        step=line(0.5),
        inference=line(0.5),
        render=line(0.1),
        update=LinearCost(0, 10 ** draw.uniform(-3, -2)),
        transfer=LinearCost(0.001),
        jitter=draw.choice([0, 0, 0.3, 0.6]),
        switch=draw.choice([0.0, 1.0]) * devices,
        synchronise=draw.choice([0.0, 0.5]) * devices,
        step_on=draw.choice(["core", "device"]) if devices else "core",
        simulator_memory=LinearCost(2e8, 1e7),
        policy_memory=LinearCost(draw.choice([1e9, 4e9, 10e9]), 1e5),
    )


def every(machine: Resources, envs: int) -> Iterator[Allocation]:
    """All numbers of ranks, workers and slices, up to twice what the planner looks at."""
    units = machine.devices or machine.cores
    for ranks in range(1, units + 1):
        most = units - ranks if machine.devices else 2 * units
        for slices in range(1, 9):
            for workers in range(most + 1):
                for mode in ("split", "hybrid") if workers and machine.devices else ("split",):
                    plan = Allocation(mode if workers else "colocated", ranks, workers, slices)
                    simulators = (workers or ranks) if machine.devices else ranks * max(1, workers)
                    if envs % (slices * simulators) == 0:
                        yield plan


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_nothing_is_faster_by_more_than_three_percent(machine: Resources) -> None:
    draw, compared = random.Random(1), 0
    for _ in range(DRAWS):
        costs, work = drawn(draw, bool(machine.devices)), Workload(draw.choice([48, 60, 64, 72, 96, 128]), 24)
        found = [predict_candidate(costs, plan, machine, work).prediction for plan in every(machine, work.envs)]
        times = [prediction.seconds for prediction in found if prediction is not None]
        if not times:
            with refuses("plan-infeasible", "sim.num_envs"):
                choose_allocation(costs, machine, work)
            continue
        best = choose_allocation(costs, machine, work).best
        assert best.prediction is not None and min(times) >= 0.97 * best.prediction.seconds, str(best.allocation)
        compared += 1
    assert compared > DRAWS / 2
