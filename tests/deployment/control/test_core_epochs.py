"""When the core asks the policy, and where control steps begin after an activation."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.execution.messages import Reason
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import start


@pytest.mark.parametrize("stale", [False, True])
def test_the_policy_is_not_asked_with_an_observation_that_has_just_become_stale(stale: bool) -> None:
    loop = start(policy={"replan": 1})
    while loop.last.ended is None:
        loop.tick()
    loop.now += 0.25 if stale else 0.02
    assert (loop.core.request() is None) == stale


def test_the_policy_is_not_asked_while_the_robot_holds_because_of_a_stale_topic() -> None:
    loop = start()
    loop.answer = lambda request: None
    loop.published.discard("front")
    loop.pass_s(0.5)
    asked = len(loop.requests)
    loop.pass_s(2.0)
    assert len(loop.requests) == asked and loop.core.status().blocked
    loop.published.add("front")
    loop.pass_s(2.0)
    assert len(loop.requests) > asked


def test_an_answer_is_as_old_as_it_is_when_it_comes() -> None:
    loop = start(policy={"replan": 1})
    loop.answer = lambda request: None
    loop.tick(5)
    (request,) = loop.requests
    loop.now += 10.0
    refusal = loop.core.receive(loop.make_chunk(request))
    assert refusal is not None and refusal.reason == Reason.STALE


def test_a_humans_command_without_a_time_is_not_followed() -> None:
    loop = start(Mode.TELEOP)
    loop.human = None
    loop.operator = replace(loop.operator, teleop=np.array([0.1, 0.1, 1.0]), teleop_s=None)
    assert loop.tick().source == Source.HOLD and loop.last.why.startswith("no command of the human")


def test_an_activation_begins_a_control_step() -> None:
    loop = start()
    while loop.last.ended is None:
        loop.tick()
    loop.tick(2)
    loop.core.deactivate(at_once=True)
    loop.core.activate(loop.measured)
    before = len(loop.ticks)
    loop.tick(5)
    assert [each.begins for each in loop.ticks[before:]] == [True, False, False, False, False]
    assert [each.ended is not None for each in loop.ticks[before:]] == [False] * 4 + [True]
