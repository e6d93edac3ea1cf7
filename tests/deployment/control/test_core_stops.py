"""The operator's switches, and a silent or faulty policy: the robot ramps to rest with a reason."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.execution.messages import ChunkRequest, Reason
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import HORIZON as H
from tests.support.control_loop import ControlLoop, rests, start
from tests.support.refusals import refuses


@pytest.mark.parametrize("mode", [Mode.RUN, Mode.TELEOP])
def test_the_dead_mans_switch_is_sticky(mode: Mode) -> None:
    loop = start(mode)
    loop.held = False
    loop.ask(None)
    loop.held = True
    loop.tick()
    assert loop.core.mode == Mode.HOLD and loop.last.why == "the dead man's switch is released"
    loop.held = False
    assert rests(loop)
    assert loop.ask(mode) == f"{mode} was refused: the dead man's switch is released"
    loop.held = True
    for _ in range(20):
        loop.tick(wanted=mode)  # the key stayed down: it does not count again
        assert loop.core.mode == Mode.HOLD
    loop.ask(None)
    assert loop.ask(mode) == "" and loop.core.mode == mode


def test_a_dead_mans_switch_that_falls_silent_is_released() -> None:
    loop = start()
    loop.ask(None)
    for _ in range(20):
        loop.now += 0.02
        loop.source_s += 0.02
        loop.observe()
        loop.ticks.append(loop.core.tick())
    assert loop.core.mode == Mode.HOLD and "is silent for 0.16 s, at most 0.15" in loop.core.status().why


def test_a_dead_mans_switch_of_the_future_is_not_held() -> None:
    loop = ControlLoop()
    assert "is silent for -5.00 s" in loop.core.operate(OperatorInput(wanted=Mode.RUN, deadman=loop.now + 5))


@pytest.mark.parametrize("mode", [Mode.RUN, Mode.TELEOP])
def test_the_emergency_stop_is_latched_and_leads_to_hold(mode: Mode) -> None:
    loop = start(mode)
    loop.operator = OperatorInput(estop=True)
    assert loop.tick().mode == Mode.ESTOP and loop.last.source == Source.HOLD
    assert rests(loop)
    assert "still pressed" in loop.ask(None, reset=True)
    assert loop.ask(None, reset=True, estop=False) == "" and loop.core.mode == Mode.ESTOP  # the reset stayed pressed
    loop.operator = OperatorInput()
    assert "the emergency stop is latched" in loop.ask(mode) and rests(loop)
    loop.ask(mode)
    status = loop.core.status()  # what one who comes late is told
    assert status.mode == Mode.ESTOP and status.latched_s is not None and "emergency stop" in status.why
    assert loop.ask(mode, reset=True) == "" and loop.core.mode == Mode.HOLD  # the key for the mode stayed down, too
    assert rests(loop) and loop.core.mode == Mode.HOLD
    assert loop.core.status().latched_s is None


def test_a_latched_stop_survives_the_life_cycle() -> None:
    loop = ControlLoop()
    loop.ask(Mode.ESTOP)
    loop.core.deactivate()
    with refuses("estop-latched"):
        loop.core.activate(loop.measured)
    assert loop.core.status().mode == Mode.ESTOP and loop.core.tick().mode == Mode.ESTOP
    loop.observe()
    loop.ask(None, reset=True)
    loop.core.activate(loop.measured)
    assert loop.core.state == State.ACTIVE and loop.core.mode == Mode.HOLD


def test_a_stop_and_a_reset_at_once_are_a_stop() -> None:
    loop = start()
    loop.ask(Mode.ESTOP, reset=True)
    assert loop.core.mode == Mode.ESTOP
    loop.ask(None)
    loop.ask(Mode.RUN, reset=True)
    assert loop.core.mode == Mode.HOLD


def test_a_policy_that_falls_silent_is_named_and_its_old_plan_never_comes_back() -> None:
    loop = start()
    kept: list[ChunkRequest] = []
    loop.answer = lambda request: kept.append(request)
    loop.pass_s(0.05 * H)
    loop.pass_s(1.0)
    silent_s = loop.now - kept[0].time
    assert f"plan exhausted; the policy has not answered for {silent_s:.2f} s" in loop.last.why and rests(loop)
    old = [loop.core.receive(loop.make_chunk(each)) for each in kept[:-1]]
    assert old and all(each is not None and each.reason == Reason.SEQUENCE for each in old)
    assert loop.tick().source == Source.HOLD and (loop.last.step, loop.last.sequence) == (-1, -1)
    assert [each.ended.step for each in loop.ticks if each.ended is not None][-1] == -1
    loop.answer = loop.make_chunk
    loop.pass_s(2.0)
    assert loop.last.source == Source.POLICY


def test_a_plan_is_dropped_when_its_policy_is_silent_for_long_enough() -> None:
    slow, fast = start(), start(silence_s=0.3)
    for loop in (slow, fast):
        loop.answer = lambda request: None
    while fast.tick().source == Source.POLICY:
        pass
    assert 0.3 < fast.now - fast.requests[0].time <= 0.3 + 1 / fast.settings.control_hz + 1e-9
    slow.pass_s(0.6)
    fast.pass_s(0.2)
    assert slow.last.source == Source.POLICY and fast.last.source == Source.HOLD
    assert fast.core.status().counts["silent"] == 1 and "has not answered for" in fast.last.why


def test_a_policy_that_answers_nonsense_ends_in_a_hold() -> None:
    loop = start()
    loop.answer = lambda request: replace(loop.make_chunk(request, 0.01), actions=np.full((H, 3), np.nan))
    loop.pass_s(2.5)
    assert rests(loop) and loop.core.status().refused["not finite"] >= 1
    assert "the policy's chunk was refused, not finite; none was accepted for" in loop.last.why
    assert np.isfinite(loop.commands).all()


def test_a_new_version_of_the_policy_begins_with_its_chunk() -> None:
    loop = start()
    versions = iter(range(100))
    loop.answer = lambda request: replace(loop.make_chunk(request), policy_version=next(versions))
    loop.pass_s(3.0)
    acted = [each for each in loop.ticks if each.source in (Source.POLICY, Source.SAFETY)]
    pairs = {(each.sequence, each.policy_version) for each in acted}
    assert len(pairs) == len({sequence for sequence, _ in pairs}) > 5
    ended = [each.ended for each in acted if each.ended is not None]
    assert all((each.sequence, each.policy_version) in pairs for each in ended)


def test_a_refusal_that_is_over_is_not_repeated_in_the_status() -> None:
    loop = ControlLoop()
    loop.published.remove("front")
    loop.pass_s(0.4)
    loop.ask(Mode.RUN)
    loop.ask(None)
    assert loop.core.status().said.startswith("run was refused: front")
    loop.published.add("front")
    loop.pass_s(0.6)
    assert loop.core.status().said == ""
    loop.published.remove("front")
    loop.pass_s(0.4)
    assert loop.core.status().said == "", "nobody has asked again"
    loop.ask(None, teleop=np.zeros(7), teleop_s=loop.now)
    assert "a human's command" in loop.core.status().said
    loop.ask(None)
    assert loop.core.status().said == ""
    loop.ask(None, estop=True)
    loop.ask(None, estop=True, reset=True)
    assert "still pressed" in loop.core.status().said
    loop.ask(None)
    loop.ask(None, reset=True)
    assert loop.core.mode == Mode.HOLD and loop.core.status().said == ""


def test_a_takeover_that_is_refused_ends_the_policy() -> None:
    loop = start()
    silent, loop.published = loop.published, {"front"}
    loop.pass_s(0.3)
    assert loop.core.mode == Mode.RUN and "joints" in loop.core.status().blocked
    loop.published = silent
    for _ in range(100):  # the human goes on touching the device, and what was stale is fresh again
        loop.tick(wanted=Mode.TELEOP)
    assert loop.core.mode == Mode.HOLD and "takeover" in loop.core.status().why
    assert rests(loop)
    assert loop.ask(None) == loop.ask(Mode.TELEOP) == "" and loop.core.mode == Mode.TELEOP


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
