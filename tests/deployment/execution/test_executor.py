"""The executor under a clock of the test's own: which action runs when."""

import math
from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.execution.executor import Executor, Latency, make_hold
from embodied_rl.deployment.execution.messages import Chunk, Why
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.interfaces.sim import Source
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.executing import HORIZON, STILL, WIDE, Robot, steps
from tests.support.refusals import refuses


def test_the_first_chunk_is_waited_for_and_runs_from_its_beginning() -> None:
    robot = Robot()
    request = robot.executor.request()
    assert request is not None and (request.step, request.committed, len(request.prefix)) == (0, 0, 0)
    held = robot.act(2)
    assert [each.why for each in held] == [Why.FIRST_CHUNK] * 2 and held[0].source == Source.HOLD
    assert robot.executor.receive(robot.answer(request)) is None
    done = robot.act(3)
    assert steps(held + done) == [-1, -1, 0, 1, 2] and [each.joins for each in done] == [True, False, False]
    assert {each.source for each in done} == {Source.POLICY} and {each.sequence for each in done} == {1}


def test_one_request_at_a_time_every_s_steps() -> None:
    robot = Robot(delay=1, replan=3)
    request = robot.executor.request()
    assert request is not None and robot.executor.request() is None
    robot.act()
    robot.executor.receive(robot.answer(request))
    asked = []
    for _ in range(8):
        if (request := robot.executor.request()) is not None:
            asked.append(robot.now)
            robot.executor.receive(robot.answer(request))
        robot.act()
    assert asked == [3, 6]


def test_a_plan_that_would_not_outlast_the_slowest_answers_asks_earlier() -> None:
    """Answers take 1 step as expected, then 5: with 5 actions left it is time, although s = 7 steps have not passed."""
    robot = Robot(delay=1, replan=7, open_loop=20)
    for wait in (1, 5):
        while (request := robot.executor.request()) is None:
            robot.act()
        robot.act(wait)
        assert robot.executor.receive(robot.answer(request)) is None
    assert robot.executor.remaining == 6 and robot.executor.request() is None
    robot.act()
    assert robot.executor.remaining == 5 and robot.executor.request() is not None


def test_what_is_executed_during_inference_is_committed_and_shown() -> None:
    robot = Robot("prefix")
    request = robot.start()
    assert request.committed == 2
    np.testing.assert_array_equal(request.prefix, [[1, 0], [1, 1]])
    robot.act()  # the answer comes a step early: the committed actions run all the same
    changed = robot.answer(request)
    changed.actions[:, 0] = 7
    assert robot.executor.receive(changed) is None
    done = robot.act(3)
    assert steps(done) == [1, 2, 3] and [int(each.action[0]) for each in done] == [1, 7, 7]  # type: ignore[index]
    assert robot.executor.counts["late"] == 0


def test_a_late_answer_joins_where_the_robot_is_by_executed_steps() -> None:
    robot = Robot("prefix")
    request = robot.start()
    robot.act(5)
    assert robot.executor.receive(robot.answer(request)) is None
    assert steps(robot.act(3)) == [5, 6, 7]
    expected = {"asked": 2, "accepted": 2, "late": 1, Why.FIRST_CHUNK: 2, Why.PLAN: 8}
    assert robot.executor.counts == expected


def test_steps_of_standing_still_do_not_count() -> None:
    """The plan ends after 8 actions, the answer comes 2 steps later and goes on with the action after the last one."""
    robot = Robot(give_up=20, open_loop=20)
    request = robot.start()
    robot.act(4)
    robot.executor.receive(robot.answer(request))
    late = robot.executor.request()
    assert late is not None and late.step == 4
    done = robot.act(6)
    assert [each.why for each in done] == [Why.PLAN] * 4 + [Why.EXHAUSTED] * 2
    assert robot.executor.receive(robot.answer(late)) is None
    assert steps(robot.act(2)) == [8, 9]


def test_naive_takes_the_newest_chunk_whole_when_it_comes() -> None:
    robot = Robot("naive")
    request = robot.start()
    assert request.committed == 0 and len(request.prefix) == 0
    robot.act(1)
    changed = robot.answer(request)
    changed.actions[:, 0] = 7
    robot.executor.receive(changed)
    assert [float(each.action[0]) for each in robot.act(2)] == [7, 7]  # type: ignore[index]
    assert robot.executor.counts["late"] == 0, "nothing was committed"


def test_blend_mixes_both_plans_over_three_steps() -> None:
    robot = Robot("blend")
    request = robot.start()
    robot.act(2)
    changed = robot.answer(request)
    changed.actions[:, 0] = 5
    robot.executor.receive(changed)
    mixed = [float(each.action[0]) for each in robot.act(4)]  # type: ignore[index]
    np.testing.assert_allclose(mixed, [1 + 4 * share for share in (0.25, 0.5, 0.75, 1)])


def test_stop_executes_s_actions_and_stands_still_until_the_answer() -> None:
    robot = Robot("stop", delay=2, replan=3)
    request = robot.executor.request()
    assert request is not None
    robot.act(2)
    robot.executor.receive(robot.answer(request))
    assert robot.executor.request() is None, "it moves"
    assert steps(robot.act(3)) == [0, 1, 2]
    request = robot.executor.request()
    assert request is not None and request.step == 3
    assert [each.why for each in robot.act(2)] == [Why.PAUSE] * 2
    robot.executor.receive(robot.answer(request))
    assert steps(robot.act(2)) == [3, 4]


def test_guided_is_shown_what_the_next_chunk_overlaps() -> None:
    request = Robot("guided").start()
    assert request.committed == 2 and len(request.prefix) == HORIZON - 2


@pytest.mark.parametrize("most", [0, 1])
def test_no_more_is_committed_than_the_policy_was_trained_on(most: int) -> None:
    request = Robot("prefix", longest_prefix=most).start()
    assert request.committed == len(request.prefix) == most


def test_actions_are_clipped_before_they_are_committed() -> None:
    executor = Executor(Settings(4, -np.ones(1), np.ones(1), "prefix", 1, 1), lambda: 0.0)
    executor.begin()
    request = executor.request()
    assert request is not None
    executor.receive(Chunk(1, 1, 0, np.full((4, 1), 9.0)))
    np.testing.assert_array_equal(executor.act().action, [1])
    request = executor.request()
    assert request is not None
    np.testing.assert_array_equal(request.prefix, [[1]])


def test_a_robot_without_a_way_to_hold_still_is_told_that_there_is_no_action() -> None:
    executor = Executor(Settings(4, -WIDE, WIDE, "naive", 1, 1), lambda: 0.0)
    assert executor.request() is None, "no epoch has begun"
    executor.begin()
    command = executor.act()
    assert command.action is None and command.why == Why.FIRST_CHUNK


@pytest.mark.parametrize("seconds", [0.02, 0.05])
def test_the_committed_prefix_follows_the_measured_delay(seconds: float) -> None:
    """At 50 Hz; the first answer, for which the policy warmed up, does not count."""
    now, executor = [0.0], None
    executor = Executor(Settings(20, -WIDE, WIDE, "prefix", 1, 1, control_hz=50.0), lambda: now[0], STILL)
    executor.begin()
    committed = []
    for count in range(4):
        while (request := executor.request()) is None:
            executor.act()
        committed.append(request.committed)
        now[0] += 0.2 if count == 0 else seconds
        assert executor.receive(Chunk(request.sequence, 1, request.step, np.zeros((20, 2)))) is None
        executor.act()
    assert committed == [0, 1, round(50 * seconds + 0.49), round(50 * seconds + 0.49)]


@pytest.mark.parametrize(
    ("others", "code", "data"),
    [
        ({"delay": 4, "replan": 5}, "horizon-too-short", (9, 8, "replan=4", "strategy=stop")),
        ({"delay": 5, "replan": 5}, "horizon-too-short", (10, 8, 4, "policy.horizon=10")),
        ({"delay": 3, "replan": 2}, "replan-out-of-range", ("replan=2", "delay=3", "replan=3")),
        ({"strategy": "stop", "replan": 9}, "replan-out-of-range", ("replan=9", 8)),
        ({"strategy": "often"}, "strategy-unknown", ("often", "prefix, naive")),
        ({"delay": -1}, "value-out-of-range", ("delay=-1", 0)),
        ({"delay": 0, "replan": 0}, "value-out-of-range", ("replan=0", 1)),
        ({"blend": 0}, "value-out-of-range", ("blend=0", 1)),
        ({"quantile": 0.0}, "value-out-of-range", ("quantile=0.0",)),
        ({"quantile": 1.1}, "value-out-of-range", ("quantile=1.1",)),
        ({"control_hz": math.inf}, "value-out-of-range", ("control_hz=inf",)),
        ({"control_hz": 0.0}, "value-out-of-range", ("control_hz=0.0",)),
    ],
)
def test_invalid_settings_are_refused(others: dict, code: str, data: tuple) -> None:
    with refuses(code, *data):
        Robot(**others)


@pytest.mark.parametrize(
    ("strategy", "replan", "delay", "others", "wait", "budget"),
    [
        ("naive", 2, 2, {}, 8, 8),
        ("naive", 3, 3, {}, 12, 8),
        ("naive", 2, 2, {"give_up": 5, "open_loop": 6}, 5, 6),
        ("stop", 8, 3, {}, 12, 20),
        ("prefix", 8, 0, {"blend": 1, "quantile": 1.0}, 8, 8),
    ],
)
def test_how_long_an_answer_is_waited_for_and_an_action_is_used(
    strategy: str, replan: int, delay: int, others: dict, wait: int, budget: int
) -> None:
    made = Robot(strategy, delay, replan, **others).executor.settings
    assert (made.longest_wait, made.budget) == (wait, budget)


def test_a_delay_counts_in_whole_steps_but_for_the_rounding_of_a_clock() -> None:
    counted = [Latency(seconds).count_steps(0.95, 2.0) for seconds in (0.0, 0.4, 0.5, 0.5 + 2e-4, 0.503)]
    assert counted == [0, 1, 1, 1, 2]


def test_how_a_simulated_robot_holds_still() -> None:
    spec = FakeSimulator(1).spec
    arm = replace(spec, hold=(0.0, 1.0), kept_while_holding=("velocity_y",))
    hold = make_hold(arm)
    np.testing.assert_array_equal(hold.choose(None), [0, 1])
    np.testing.assert_array_equal(hold.choose(np.array([0.5, -0.5])), [0, -0.5])
    np.testing.assert_array_equal(make_hold(replace(spec, hold=None), (0.25, 0)).choose(np.ones(2)), [0.25, 0])
    assert make_hold(spec, tuple(spec.action_low)).action.tolist() == list(spec.action_low)
    with refuses("hold-missing", 2, "velocity_x"):
        make_hold(replace(spec, hold=None))
    for wrong in ((0.0,), (0.0, 3.0), (0.0, float("nan"))):
        with refuses("hold-invalid", 2, "velocity_x, velocity_y", list(wrong)):
            make_hold(spec, wrong)


@pytest.mark.parametrize(("first", "refused"), [(2.5, False), (-0.5, False), (3.0, False), (-1.5, True)])
def test_the_jump_of_a_chunk_is_measured_from_the_last_committed_action(first: float, refused: bool) -> None:
    robot = Robot("prefix", jump=np.array([100.0, 2.0], np.float32))
    request = robot.start()
    robot.act()
    answer = robot.answer(request)
    answer.actions[request.committed :, 1] = first  # the robot is at 0, and will be at 1 when the chunk begins
    refusal = robot.executor.receive(answer)
    assert (refusal is not None) == refused
