"""Answers that are late, lost, doubled or damaged: which chunks the executor refuses, and what runs instead."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, Reason, Why
from embodied_rl.deployment.execution.settings import STRATEGIES
from embodied_rl.interfaces.sim import Array
from tests.support.executing import HORIZON, STILL, Robot, steps


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
        ({"actions": np.array([[0, 0]] * 5 + [[0, np.nan]] + [[0, 0]] * 2, np.float32)}, Reason.NOT_FINITE),
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


@pytest.mark.parametrize(("others", "executed"), [({}, HORIZON - 1), ({"open_loop": 20, "give_up": 20}, HORIZON)])
def test_a_chunk_that_is_too_old_or_has_no_action_left_is_refused(others: dict, executed: int) -> None:
    robot = Robot(control_hz=2.0, **others)
    request = robot.start()
    robot.act(executed)
    robot.now += (HORIZON - executed) * robot.step
    refusal = robot.executor.receive(robot.answer(request))
    assert refusal is not None and refusal.reason == Reason.STALE and "8.0 control steps" in refusal.message


def test_an_answer_after_it_was_given_up_is_out_of_sequence() -> None:
    robot = Robot(delay=1, replan=5, give_up=2)
    first = robot.executor.request()
    assert first is not None
    robot.act()
    assert robot.executor.receive(robot.answer(first)) is None
    robot.act(4)
    request = robot.executor.request()
    robot.act()
    assert request is not None and robot.executor.request() is None and robot.executor.counts["lost"] == 0
    robot.act()
    following = robot.executor.request()
    assert following is not None and robot.executor.counts["lost"] == 1, "asked again at once"
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
    robot.now = float(HORIZON)  # after the observation
    (command,) = robot.act()
    assert command.why == Why.EXHAUSTED and robot.executor.remaining == 0 and robot.executor.counts["expired"] == 1


def test_an_epoch_starts_with_an_empty_plan_at_the_last_command() -> None:
    robot = Robot(jump=np.full(2, 3.0))
    robot.start()
    robot.act(2)
    robot.executor.begin(np.array([50.0, 50.0]))
    request = robot.executor.request()
    assert request is not None and (request.epoch, request.step, request.sequence) == (2, 0, 3)
    refusal = robot.executor.receive(robot.answer(request))
    assert refusal is not None and refusal.reason == Reason.JUMP and "from 50 to 0" in refusal.message
    again = robot.executor.request()
    assert again is not None and robot.act()[0].why == Why.FIRST_CHUNK
    robot.executor.correct(np.array([40.0, 40.0]))
    refusal = robot.executor.receive(robot.answer(again))
    assert refusal is not None and "from 40 to 0" in refusal.message
    robot.executor.begin()
    free = robot.executor.request()
    assert free is not None and robot.executor.receive(robot.answer(free)) is None, "no command is known"


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


@pytest.mark.thorough
@budget(max_examples=150, deadline=None)
@given(data=st.data(), strategy=st.sampled_from(STRATEGIES))
def test_with_any_input_each_action_is_of_its_own_step_and_within_its_budget(
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
