"""The executor under a clock of the test's own: which action runs when, and which chunks are refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from embodied_rl.deployment.execution.executor import Executor
from embodied_rl.deployment.execution.hold import Hold, make_hold
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, Reason, RobotCommand, Why
from embodied_rl.deployment.execution.settings import STRATEGIES, Settings
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Source
from embodied_rl.testing.fakes import FakeSimulator

HORIZON = 8
WIDE = np.full(2, 1e6, np.float32)
STILL = Hold(np.array([-1, -1], np.float32), np.array([False, False]))


class Robot:
    """A control loop and its clock, of 1 Hz unless said; action [e, k] belongs to step k of epoch e."""

    def __init__(self, strategy: str = "naive", delay: int = 2, replan: int = 2, **others) -> None:
        made = Settings(HORIZON, -WIDE, WIDE, strategy, replan, delay, **others)  # type: ignore[arg-type]
        self.now, self.step = 0.0, 1 / made.control_hz
        self.executor = Executor(made, lambda: self.now, STILL)
        self.executor.begin()

    def answer(self, request: ChunkRequest, **changes) -> Chunk:
        steps = request.step + np.arange(HORIZON)
        actions = np.stack([np.full(HORIZON, request.epoch), steps], axis=1).astype(np.float32)
        return replace(Chunk(request.sequence, request.epoch, request.step, actions), **changes)

    def act(self, count: int = 1) -> list[RobotCommand]:
        made = []
        for _ in range(count):
            made.append(self.executor.act())
            self.now += self.step
        return made

    def start(self) -> ChunkRequest:
        """Get a plan of a whole chunk, after two steps of waiting; return the next request."""
        first = self.executor.request()
        assert first is not None
        self.act(2)
        assert self.executor.receive(self.answer(first)) is None
        following = self.executor.request()
        assert following is not None
        return following


def steps(commands: Sequence[RobotCommand]) -> list[int]:
    """The steps that actions belong to, by their content; -1 for holds."""
    assert all(each.action is not None for each in commands)
    return [int(each.action[1]) for each in commands if each.action is not None]


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


def test_a_late_answer_joins_where_the_robot_is_by_executed_steps() -> None:
    robot = Robot("prefix")
    request = robot.start()
    robot.act(5)
    assert robot.executor.receive(robot.answer(request)) is None
    assert steps(robot.act(3)) == [5, 6, 7] and robot.executor.counts["late"] == 1


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


def test_no_more_is_committed_than_the_policy_was_trained_on() -> None:
    assert Robot("prefix", longest_prefix=1).start().committed == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epoch": 0}, Reason.EPOCH),
        ({"sequence": 1}, Reason.SEQUENCE),
        ({"sequence": 3}, Reason.SEQUENCE),
        ({"step": 5}, Reason.STEP),
        ({"actions": np.zeros((HORIZON, 3), np.float32)}, Reason.SHAPE),
        ({"actions": np.zeros((HORIZON + 1, 2), np.float32)}, Reason.SHAPE),
        ({"actions": np.zeros(HORIZON, np.float32)}, Reason.SHAPE),
        ({"actions": np.full((HORIZON, 2), "left")}, Reason.SHAPE),
        ({"actions": np.full((HORIZON, 2), None)}, Reason.SHAPE),
        ({"actions": np.zeros((HORIZON - 1, 2), np.float32)}, Reason.SHORT),
        ({"actions": np.full((HORIZON, 2), np.nan, np.float32)}, Reason.NOT_FINITE),
        ({"actions": np.full((HORIZON, 2), np.inf, np.float32)}, Reason.NOT_FINITE),
        ({"actions": np.full((HORIZON, 2), 40, np.float32)}, Reason.JUMP),
    ],
)
def test_a_wrong_chunk_is_refused_whole_and_the_plan_goes_on(change: dict, reason: Reason) -> None:
    robot = Robot(jump=np.full(2, 30.0))
    request = robot.start()
    refusal = robot.executor.receive(robot.answer(request, **change))
    assert refusal is not None and refusal.reason == reason and refusal.message
    again = robot.executor.request()
    assert robot.executor.refused == {reason: 1} and steps(robot.act(2)) == [0, 1]
    if reason in (Reason.EPOCH, Reason.SEQUENCE):
        assert again is None, "the right answer may still come"
        assert robot.executor.receive(robot.answer(request)) is None
    else:
        assert again is not None and again.sequence == 3, "asked again, at once"


def test_a_stale_chunk_is_refused() -> None:
    robot = Robot()
    request = robot.start()
    robot.act(HORIZON - 1)
    robot.now += 1
    refusal = robot.executor.receive(robot.answer(request))
    assert refusal is not None and refusal.reason == Reason.STALE and "8.0 control steps" in refusal.message


def test_an_answer_after_it_was_given_up_is_out_of_sequence() -> None:
    robot = Robot(give_up=3)
    request = robot.start()
    robot.act(3)
    following = robot.executor.request()
    assert following is not None and robot.executor.counts["lost"] == 1
    refusal = robot.executor.receive(robot.answer(request))
    assert refusal is not None and refusal.reason == Reason.SEQUENCE
    assert robot.executor.receive(robot.answer(following)) is None


def test_a_duplicate_is_out_of_sequence() -> None:
    robot = Robot()
    request = robot.start()
    assert robot.executor.receive(robot.answer(request)) is None
    again = robot.executor.receive(robot.answer(request))
    assert again is not None and again.reason == Reason.SEQUENCE


def test_a_clock_that_ran_on_expires_the_plan() -> None:
    """A control loop that was stopped for a while does not go on with what it had planned before."""
    robot = Robot()
    robot.start()
    assert steps(robot.act(2)) == [0, 1]
    robot.now += HORIZON
    (command,) = robot.act()
    assert command.why == Why.EXHAUSTED and robot.executor.remaining == 0 and robot.executor.counts["expired"] == 1


def test_an_epoch_empties_the_plan_and_knows_the_command() -> None:
    robot = Robot(jump=np.full(2, 3.0))
    robot.start()
    robot.act(2)
    robot.executor.begin(np.array([50.0, 50.0]))
    request = robot.executor.request()
    assert request is not None and (request.epoch, request.step, request.sequence) == (2, 0, 3)
    assert robot.act()[0].why == Why.FIRST_CHUNK
    robot.executor.correct(np.array([50.0, 50.0]))
    refusal = robot.executor.receive(robot.answer(request))
    assert refusal is not None and refusal.reason == Reason.JUMP and "from 50 to 0" in refusal.message


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
    ("others", "said"),
    [
        ({"delay": 4, "replan": 5}, r"chunks of 9 actions, and this policy predicts 8. Take replan=4, a delay of at"),
        (
            {"delay": 5, "replan": 5},
            r"at most 4 \(a quicker .*\), strategy=stop \(the robot waits .*\), or .* policy.horizon=10",
        ),
        ({"delay": 3, "replan": 2}, r"replan=2: an inference takes delay=3 .* Take replan=3"),
        ({"strategy": "stop", "replan": 9}, r"replan=9 exceeds the 8 actions"),
        ({"strategy": "often"}, "is not one of prefix, naive"),
        ({"delay": -1}, "delay=-1 must be at least 0"),
        ({"control_hz": 0.0}, "control_hz=0.0"),
    ],
)
def test_settings_that_cannot_work_say_what_would(others: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Robot(**others)


def test_how_a_simulated_robot_holds_still() -> None:
    spec = FakeSimulator(1).spec
    arm = replace(spec, hold=(0.0, 1.0), kept_while_holding=("velocity_y",))
    hold = make_hold(arm)
    np.testing.assert_array_equal(hold.choose(None), [0, 1])
    np.testing.assert_array_equal(hold.choose(np.array([0.5, -0.5])), [0, -0.5])
    np.testing.assert_array_equal(make_hold(replace(spec, hold=None), (0.25, 0)).choose(np.ones(2)), [0.25, 0])
    with pytest.raises(UserError, match=r"does not say with which action .*hold=\[…\], 2 numbers for velocity_x"):
        make_hold(replace(spec, hold=None))
    for wrong in ((0.0,), (0.0, 3.0), (0.0, float("nan"))):
        with pytest.raises(UserError, match=r"2 numbers, for velocity_x, velocity_y, within"):
            make_hold(spec, wrong)


class Network:
    """Answers that take their time, and are lost, doubled, reordered or damaged, as hypothesis draws it."""

    def __init__(self, robot: Robot, data: st.DataObject) -> None:
        self.robot, self.data = robot, data
        self.under_way: list[tuple[float, Chunk]] = []

    def send(self, request: ChunkRequest) -> None:
        answer = self.robot.answer(request)
        fault = self.data.draw(st.sampled_from(["", "", "", "lost", "twice", "nan", "short", "step", "epoch"]))
        damaged: dict[str, dict[str, int | Array]] = {
            "nan": {"actions": answer.actions * np.nan},
            "short": {"actions": answer.actions[:-1]},
            "step": {"step": answer.step + 1},
            "epoch": {"epoch": answer.epoch + 1},
        }
        for _ in range({"lost": 0, "twice": 2}.get(fault, 1)):
            late = self.robot.now + self.data.draw(st.floats(0, 14)) * self.robot.step
            self.under_way.append((late, replace(answer, **damaged.get(fault, {}))))  # type: ignore[arg-type]

    def deliver(self) -> None:
        here = [each for each in self.under_way if each[0] <= self.robot.now]
        self.under_way = [each for each in self.under_way if each[0] > self.robot.now]
        for _, chunk in self.data.draw(st.permutations(here)):
            self.robot.executor.receive(chunk)


@budget(max_examples=150, deadline=None)
@given(data=st.data(), strategy=st.sampled_from(STRATEGIES))
def test_whatever_comes_each_action_is_of_its_own_step_and_never_older_than_its_budget(
    data: st.DataObject, strategy: str
) -> None:
    delay = data.draw(st.integers(0, 3))
    replan = data.draw(st.integers(max(delay, 1), HORIZON - delay))
    robot = Robot(strategy, delay, replan, control_hz=data.draw(st.sampled_from([1.0, 12.5, 50.0])))
    executor, network, asked = robot.executor, Network(robot, data), dict[int, float]()
    expected = 0
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.integers(0, 15)) == 0:
            executor.begin()
            expected = 0
        if (request := executor.request()) is not None:
            assert request.sequence == len(asked) + 1 and request.step == expected and request.epoch == executor.epoch
            wanted = [[request.epoch, request.step + place] for place in range(len(request.prefix))]
            np.testing.assert_array_equal(request.prefix, np.reshape(wanted, (-1, 2)))
            assert request.committed <= len(request.prefix)
            asked[request.sequence] = robot.now
            network.send(request)
        network.deliver()
        before = executor.remaining
        (command,) = robot.act()
        assert command.action is not None
        if command.why == Why.PLAN:
            np.testing.assert_allclose(command.action, [executor.epoch, expected], rtol=1e-6)
            age = robot.now - robot.step - asked[command.sequence]
            assert age < executor.settings.budget * robot.step
            expected += 1
        else:
            np.testing.assert_array_equal(command.action, STILL.action)
            assert before == 0 or executor.counts["expired"]
        robot.now += data.draw(st.sampled_from([0.0, 0.0, 0.0, 0.3, 9.0])) * robot.step
    assert executor.step == expected
    assert sum(executor.counts[why] for why in Why) == sum(executor.counts.values()) - sum(
        executor.counts[name] for name in ("asked", "accepted", "lost", "late", "expired")
    )
