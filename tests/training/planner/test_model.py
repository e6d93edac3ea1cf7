"""The event model against closed forms: rounds of one worker a stage, the gain of slicing, jitter, shared resources."""

import statistics
from dataclasses import replace
from math import prod

import pytest

from embodied_rl.training.planner.allocation import Allocation, Resources
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import (
    DRAWS,
    EventClock,
    SimulatedJob,
    Workload,
    predict_iteration,
    predict_rollout,
)

NOTHING = LinearCost()


def split(slices, workers=1, ranks=1, order="exact"):
    return Allocation("split", ranks, workers, slices, order)


def seconds(costs, plan, envs=64, decisions=60, cores=64, seed=0):
    return predict_rollout(costs, plan, Resources(cores), Workload(envs, decisions), seed).seconds


def test_without_slices_the_stages_follow_each_other():
    costs = Costs(
        step=LinearCost(0.02, 0.001), render=LinearCost(0.01, 0.0005), inference=LinearCost(0.03, 0.002), update=NOTHING
    )
    costs = Costs(costs.step, costs.inference, NOTHING, costs.render, transfer=LinearCost(0.004, 0.0001))
    expected = 60 * (0.02 + 0.064 + 0.01 + 0.032 + 0.03 + 0.128 + 0.004 + 0.0064)
    assert seconds(costs, split(1)) == pytest.approx(expected)


@pytest.mark.parametrize("slices", [2, 4, 8])
@pytest.mark.parametrize(
    ("simulate", "infer"), [((0.0, 1.0), (0.0, 1.0)), ((0.3, 0.7), (0.15, 0.35)), ((0.1, 0.2), (0.3, 0.7))]
)
def test_slices_gain_as_in_the_closed_form(slices, simulate, infer):
    """(1 + r) / (1 + (k - 1) f) on two devices, f of the larger stage; filling and draining add less than a round."""
    costs = Costs(
        step=LinearCost(simulate[0], simulate[1] / 64), inference=LinearCost(infer[0], infer[1] / 64), update=NOTHING
    )
    devices, work = Resources(1, devices=2), Workload(64, 500)
    costs = replace(costs, step_on="device")
    alone, sliced = (predict_rollout(costs, split(count), devices, work).seconds for count in (1, slices))
    ratio, fixed = costs.ratio(64), costs.fixed_share(64)
    assert alone / sliced == pytest.approx((1 + ratio) / (1 + (slices - 1) * fixed), rel=0.01)


def test_two_slices_are_a_loss_where_the_fixed_share_exceeds_the_ratio():
    costs = Costs(step=LinearCost(0.1, 0.1 / 64), inference=LinearCost(0.6, 0.4 / 64), update=NOTHING)
    assert costs.fixed_share(64) > costs.ratio(64)
    assert seconds(costs, split(2)) > seconds(costs, split(1))


def test_processes_on_one_core_do_not_overlap():
    costs = Costs(step=LinearCost(0, 0.01), inference=LinearCost(0, 0.01), update=NOTHING)
    assert seconds(costs, split(2), cores=1) == pytest.approx(seconds(costs, split(1), cores=1), rel=0.02)
    assert seconds(costs, split(2), cores=2) == pytest.approx(seconds(costs, split(1), cores=2) / 2, rel=0.02)


def test_more_simulators_divide_their_stage_until_the_cores_end():
    costs = Costs(step=LinearCost(0, 0.01), inference=NOTHING, update=NOTHING)
    alone = seconds(costs, split(1, workers=1))
    assert seconds(costs, split(1, workers=4)) == pytest.approx(alone / 4)
    assert seconds(costs, split(1, workers=4), cores=2) == pytest.approx(alone / 2)


def test_ranks_divide_the_environments_and_the_cores():
    costs = Costs(step=LinearCost(0, 0.01), inference=LinearCost(0, 0.005), update=LinearCost(0.1, 0.001))
    one = predict_iteration(costs, Allocation("colocated", 1), Resources(4), Workload(64, 10))
    four = predict_iteration(costs, Allocation("colocated", 4), Resources(4), Workload(64, 10))
    assert four.rollout == pytest.approx(one.rollout / 4)
    assert (one.update, four.update) == (pytest.approx(0.1 + 0.64), pytest.approx(0.1 + 0.16))
    assert four.decisions_per_second == pytest.approx(640 / (four.rollout + four.update))
    assert four.collected_per_second == pytest.approx(640 / four.rollout)
    assert four.bubble == pytest.approx(0)


def test_the_slowest_simulator_of_a_slice_sets_the_pace_and_ready_order_does_not_wait_for_it():
    """With no inference, exact order with one slice waits for the maximum of w draws every round."""
    costs = Costs(step=LinearCost(1.0), inference=LinearCost(1e-9), update=NOTHING, jitter=0.6)
    waiting = statistics.mean(seconds(costs, split(1, workers=16), seed=seed) / 60 for seed in range(5))
    assert 2.3 < waiting < 3.1  # expected maximum of 16 log-normal factors of σ = 0.6 and mean 1: about 2.7
    free = statistics.mean(seconds(costs, split(2, workers=8, order="ready"), seed=seed) / 60 for seed in range(5))
    assert 1.0 < free < 1.35  # the slowest of 16 sums of 60 draws: 1 + 1.8 · 0.66 / √60


@pytest.mark.thorough
def test_ready_order_is_never_slower_than_exact_order():
    for sigma in (0.0, 0.3, 0.6):
        costs = Costs(step=LinearCost(0.15), inference=LinearCost(0.08, 0.008), update=NOTHING, jitter=sigma)
        times = {
            order: statistics.median(seconds(costs, split(2, 8, order=order), seed=seed) for seed in range(5))
            for order in ("exact", "ready")
        }
        assert times["ready"] <= times["exact"] * 1.001, sigma


def test_every_simulator_has_all_its_decisions_in_ready_order():
    costs = Costs(step=LinearCost(0.1), inference=LinearCost(0.01), update=NOTHING, jitter=1.0)
    found = predict_rollout(costs, split(2, 4, order="ready"), Resources(16), Workload(64, 30), 3)
    assert found.seconds >= 30 * 0.1 * 0.3
    assert found.busy["simulation"] * found.seconds == pytest.approx(8 * 30 * 0.1, rel=0.25)


def test_pictures_share_the_accelerator_of_the_policy_where_colocated():
    """The step runs on the host, so that it alone overlaps with the two others."""
    costs = Costs(step=LinearCost(0, 0.02), render=LinearCost(0, 0.01), inference=LinearCost(0, 0.01), update=NOTHING)
    plan, gpu = Allocation("colocated", 1, 0, 2), Resources(16, devices=1)
    found = predict_rollout(costs, plan, gpu, Workload(32, 200)).seconds
    assert found == pytest.approx(200 * 32 * 0.02, rel=0.02)  # device and host are busy alike
    on_device = Costs(costs.step, costs.inference, NOTHING, costs.render, step_on="device")
    assert predict_rollout(on_device, plan, gpu, Workload(32, 200)).seconds == pytest.approx(200 * 32 * 0.04, rel=0.02)


@pytest.mark.parametrize(("mode", "learning"), [("colocated", 8), ("split", 5), ("hybrid", 8)])
def test_the_update_is_divided_among_learners(mode, learning):
    costs = Costs(
        step=LinearCost(0.1), inference=LinearCost(0.1), update=LinearCost(0, 0.05), switch=3.0, synchronise=2.0
    )
    workers = 0 if mode == "colocated" else 3
    plan = Allocation(mode, 8 - workers, workers, 1)
    found = predict_iteration(costs, plan, Resources(64, devices=8), Workload(240, 10))
    assert found.update == pytest.approx(2400 * 0.05 / learning)
    extra = {"colocated": 3.0, "split": 2.0, "hybrid": 5.0}[mode]
    assert found.seconds == pytest.approx(found.rollout + found.update + extra)


def test_long_rollouts_are_predicted_from_their_rate():
    costs = Costs(step=LinearCost(0.1, 0.01), inference=LinearCost(0.2, 0.005), update=NOTHING)
    predicted = predict_iteration(costs, split(2), Resources(8), Workload(64, 1000)).rollout
    assert predicted == pytest.approx(seconds(costs, split(2), decisions=1000), rel=0.03)


def test_jitter_takes_the_median_of_draws():
    costs = Costs(step=LinearCost(0.1), inference=LinearCost(0.1), update=NOTHING, jitter=0.6)
    draws = sorted(seconds(costs, split(2, 4), decisions=20, seed=seed) for seed in range(DRAWS))
    assert predict_iteration(costs, split(2, 4), Resources(64), Workload(64, 20)).rollout == draws[DRAWS // 2]


def test_jobs_wait_for_everything_they_need_and_do_not_hold_up_others():
    clock, ends = EventClock({"a": 1, "b": 2}), {}

    def job(name, *needs):
        clock.submit(SimulatedJob(name, needs, 1.0, lambda: ends.setdefault(name, clock.now)))

    job("first", "a")
    job("both", "a", "b")
    job("other", "b")
    job("another", "b")
    clock.run()
    assert ends == {"first": 1.0, "other": 1.0, "another": 1.0, "both": 2.0}
    assert clock.load("a") == pytest.approx(1.0)
    assert clock.load("b") == pytest.approx(0.75)
    assert prod(clock.busy.values()) == 1.0


@pytest.mark.parametrize(("staleness", "cores", "seconds"), [(0, 2, 3 + 2), (1, 2, 3), (1, 1, 3 + 2)])
def test_collecting_ahead_hides_the_shorter_of_rollout_and_update(staleness: int, cores: int, seconds: float) -> None:
    """A rollout worker: ten decisions of 0.1 + 0.2 s each, and an update of two seconds; one core hides nothing."""
    costs = Costs(LinearCost(0.1), LinearCost(0.2), LinearCost(2.0), synchronise=0.5)
    plan = Allocation("colocated", 1, rollout_workers=1)
    found = predict_iteration(costs, plan, Resources(cores), Workload(8, 10, staleness))
    assert found.seconds == pytest.approx(seconds + 0.5)


@pytest.mark.parametrize("early", [1.0, 0.5])
@pytest.mark.parametrize(("learn", "segments"), [(2.0, 2), (2.0, 5), (9.0, 5)])
def test_segments_are_learned_from_while_the_next_are_collected(learn: float, segments: int, early: float) -> None:
    """Against a diary: segments come every 3 / S seconds; each is learned from when it and the learner are there."""
    costs = Costs(LinearCost(0.1), LinearCost(0.2), LinearCost(learn), synchronise=0.5)
    plan, work = Allocation("colocated", 1, rollout_workers=1), Workload(8, 10, segments=segments, early=early)
    done = 0.0
    for number in range(1, segments + 1):
        done = max(done, number * 3 / segments) + learn * early / segments
    done += learn * (1 - early)
    assert predict_iteration(costs, plan, Resources(cores=2), work).seconds == pytest.approx(done + 0.5)
    assert predict_iteration(costs, plan, Resources(cores=1), work).seconds == pytest.approx(3 + learn + 0.5)


GPUS = Resources(1, devices=8)


@pytest.mark.parametrize(("learn", "seconds"), [(0.01, 6.0), (0.05, 10.0)])
@pytest.mark.parametrize("mode", ["colocated", "split"])
def test_accelerators_that_collect_ahead_hide_the_shorter_of_rollout_and_update(
    mode: str, learn: float, seconds: float
) -> None:
    """Ten decisions of 0.2 + 0.4 s; two accelerators learn from 400, and swap no memory."""
    costs = Costs(LinearCost(0.2), LinearCost(0.4), LinearCost(0, learn), switch=7.0, synchronise=0.5, step_on="device")
    workers = 2 if mode == "split" else 0
    plan = Allocation(mode, 2, workers, rollout_workers=6 - workers)
    found = predict_iteration(costs, plan, GPUS, Workload(40, 10, staleness=1))
    assert (found.rollout, found.update) == (pytest.approx(6.0), pytest.approx(200 * learn))
    assert found.seconds == pytest.approx(seconds + 0.5)
    in_turn = predict_iteration(costs, plan, GPUS, Workload(40, 10))
    assert in_turn.seconds == pytest.approx(6.0 + 200 * learn + 0.5)


def test_accelerators_learn_from_segments_while_others_collect() -> None:
    """Against a diary: five segments of 1.2 s, each learned from for 2 s."""
    costs = Costs(LinearCost(0.2), LinearCost(0.4), LinearCost(0, 0.05), synchronise=0.5, step_on="device")
    plan = Allocation("split", 2, 3, rollout_workers=3)
    found = predict_iteration(costs, plan, GPUS, Workload(40, 10, segments=5))
    assert found.seconds == pytest.approx(1.2 + 5 * 2 + 0.5)


def test_a_rollout_depends_only_on_its_collectors() -> None:
    """Two slices between four that infer and two that simulate; whoever learns does not matter."""
    costs = Costs(
        LinearCost(0.1, 0.002),
        LinearCost(0.1, 0.004),
        LinearCost(0, 0.001),
        transfer=LinearCost(0.01),
        step_on="device",
    )
    work = Workload(64, 20)
    alone = predict_rollout(costs, Allocation("split", 4, 2, 2), replace(GPUS, devices=6), work).seconds
    assert predict_rollout(costs, Allocation("split", 2, 2, 2, rollout_workers=4), GPUS, work).seconds == pytest.approx(
        alone
    )
