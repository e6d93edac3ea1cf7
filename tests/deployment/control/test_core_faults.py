"""Faults of topics, clock, loop, policy and operator: the robot ramps to rest, says why, and when it goes on."""

import numpy as np
import pytest

from embodied_rl.deployment.control.limit_check import LimitCheck
from embodied_rl.deployment.control.settings import StreamRule
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, Reason
from embodied_rl.deployment.execution.motion import MotionStep
from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State, Stream
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import ARM, TOOL, ControlLoop
from tests.support.control_loop import HORIZON as H


def rests(loop: ControlLoop) -> bool:
    """Whether the robot comes to rest in the ramp's time, and stays there."""
    ramp = measure_longest_ramp(loop.settings.limits, loop.settings.period_s)
    loop.pass_s(ramp + 0.04)
    before = len(loop.ticks)
    loop.pass_s(0.2)
    position = np.array([entry.kind == "position" for entry in loop.settings.limits.entries])
    rates = np.where(position, np.diff(loop.commands[before - 1 :], axis=0), loop.commands[before:])
    return bool((rates == 0).all()) and {each.source for each in loop.ticks[before:]} == {Source.HOLD}


def start(mode: Mode = Mode.RUN, limits=TOOL, **changes) -> ControlLoop:
    """A loop that moves."""
    loop = ControlLoop(limits, **changes)
    loop.answer = lambda request: loop.make_chunk(request, 0.01)
    loop.human = np.array([0.1] * len(limits.entries))
    loop.start(mode)
    assert np.abs(np.diff(loop.commands[-3:], axis=0)).any() or np.abs(loop.commands[-1][:2]).any()
    return loop


def lie(loop: ControlLoop, name: str, fault: str) -> None:
    """Let a topic lie from now on, in one way."""
    honest = type(loop).observe.__get__(loop)
    frozen = loop.streams[name]

    def observe() -> None:
        loop.published.discard(name)
        loop.count += 1
        now, stamp = loop.now, int(loop.source_s * 1e9)
        said = {
            "frozen": Stream(stamp, now, frozen.digest),
            "standing stamp": Stream(frozen.source_ns, now, str(now).encode()),
            "stamp back": Stream(stamp - 50 * 10**9, now, str(now).encode()),
            "stamp ahead": Stream(stamp + 50 * 10**9, now, str(now).encode()),
            "NaN": Stream(stamp, now, str(now).encode(), finite=False),
            "twice": Stream(frozen.source_ns, now, frozen.digest),
        }
        loop.streams |= {name: said[fault]} if fault in said else {}
        honest()

    loop.observe = observe


SAID = {
    "silent": "no message for",
    "frozen": "the same content for",
    "standing stamp": "its stamp stands still",
    "NaN": "it holds NaN",
    "twice": "it came twice",
}


@pytest.mark.parametrize("fault", SAID)
@pytest.mark.parametrize("name", ["joints", "front"])
def test_a_stale_topic_stops_the_policy_until_it_was_fresh_for_a_while(name: str, fault: str) -> None:
    streams = (StreamRule("joints", 0.1, measures=True), StreamRule("front", 0.2))
    loop = start(streams=streams)
    epoch = loop.core.status().epoch
    lie(loop, name, fault)
    loop.tick(4)
    assert loop.last.source == Source.POLICY
    loop.pass_s(0.3)
    assert loop.last.source == Source.HOLD and loop.last.why.startswith(f"{name}: {SAID[fault]}")
    asked = loop.core.status().counts["asked"]
    assert rests(loop) and loop.core.mode == Mode.RUN and loop.core.status().blocked
    assert loop.core.status().counts["asked"] == asked and loop.core.status().epoch == epoch + 1
    del loop.observe
    loop.published.add(name)
    loop.tick(5)
    assert "well for less than 0.5 s" in loop.last.why and rests(loop)
    loop.pass_s(0.5)
    assert loop.last.source == Source.POLICY and not loop.core.status().blocked


@pytest.mark.parametrize("fault", ["stamp back", "stamp ahead"])
def test_a_topic_whose_clock_was_set_stops_the_policy_and_is_believed_later(fault: str) -> None:
    loop = start()
    lie(loop, "front", fault)
    loop.pass_s(0.4)
    assert (
        loop.last.source == Source.HOLD and f"its stamp {'went back' if 'back' in fault else 'is in'}" in loop.last.why
    )
    loop.pass_s(2.0)
    assert loop.last.source == Source.POLICY and loop.core.status().streams["front"]["clock was set"] == 1


def test_measured_entries_that_are_nan_are_refused_and_the_last_ones_kept() -> None:
    loop = start()
    loop.place = np.array([0.1, np.nan, 0.0])
    loop.follows = False
    loop.tick(4)
    assert loop.last.source == Source.POLICY
    loop.pass_s(0.3)
    assert "joints: it holds NaN" in loop.last.why and rests(loop) and np.isfinite(loop.commands).all()
    assert loop.core.status().streams["joints"]["not_finite"] > 10


def test_a_human_may_drive_a_robot_whose_camera_died_and_not_one_whose_joints_did() -> None:
    loop = start(Mode.TELEOP)
    loop.published.remove("front")
    loop.pass_s(0.4)
    assert loop.last.source == Source.HUMAN
    assert "front: no message for" in loop.ask(Mode.RUN) and loop.core.mode == Mode.TELEOP
    loop.published.remove("joints")
    loop.pass_s(0.2)
    assert loop.last.why.startswith("joints: no message for") and rests(loop)


def test_a_mode_cannot_begin_and_a_robot_not_be_activated_while_a_topic_is_stale() -> None:
    loop = ControlLoop()
    loop.published.remove("front")
    loop.pass_s(0.4)
    assert "run was refused: front: no message for" in loop.ask(Mode.RUN)
    loop.core.deactivate()
    with pytest.raises(UserError, match="activate was refused: front: no message for"):
        loop.core.activate(loop.measured)
    loop.published.add("front")
    loop.observe()
    with pytest.raises(UserError, match="an entry that must be measured is NaN"):
        loop.core.activate(np.array([np.nan, 0.0]))
    loop.core.activate(loop.measured)
    loop.core.deactivate()
    loop.core.forget_streams()
    with pytest.raises(UserError, match="joints: no message has come; front: no message has come"):
        loop.core.activate(loop.measured)


@pytest.mark.parametrize(("jump", "words"), [(-30.0, "the clock went back by"), (30.0, "the loop was late: 30.020 s")])
def test_a_jump_of_the_clock_stops_the_robot(jump: float, words: str) -> None:
    loop = start()
    loop.now += jump
    loop.tick()
    assert words in loop.last.why and loop.last.source == Source.HOLD
    assert rests(loop) and loop.core.mode in (Mode.RUN, Mode.HOLD)
    counts = loop.core.status().counts
    assert counts["overruns"] + counts["clock jumps"] == 1
    loop.pass_s(1.5)
    assert loop.last.source == Source.POLICY  # times of the other clock are forgotten


def test_a_clock_that_stands_still_stops_the_robot() -> None:
    loop = start()
    still = loop.now
    for _ in range(4):
        loop.now = still - loop.settings.period_s
        loop.tick()
    assert "the clock stands still" in loop.last.why and loop.last.source == Source.HOLD


def test_a_robot_that_does_not_follow_trips_to_hold_and_runs_again_only_when_asked() -> None:
    loop = start(limits=ARM, tracking_error=(0.05, 0.05))
    loop.follows = False
    loop.pass_s(1.0)
    assert loop.core.mode == Mode.HOLD and "from its command, at most 0.05" in loop.core.status().why
    assert rests(loop)
    loop.place = loop.commands[-1]
    loop.follows = True
    loop.tick()
    assert "well for less than" in loop.ask(Mode.RUN) and loop.core.mode == Mode.HOLD
    loop.ask(None)
    loop.pass_s(0.6)
    assert loop.core.mode == Mode.HOLD and loop.ask(Mode.RUN) == "" and loop.core.mode == Mode.RUN


@pytest.mark.parametrize("mode", [Mode.RUN, Mode.TELEOP])
def test_the_dead_mans_switch_is_sticky(mode: Mode) -> None:
    loop = start(mode)
    loop.held = False
    loop.tick()
    assert loop.core.mode == Mode.HOLD and loop.last.why == "the dead man's switch is released"
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
    held = loop.now
    for _ in range(20):
        loop.now += 0.02
        loop.source_s += 0.02
        loop.observe()
        loop.core.operate(OperatorInput(deadman=held))
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
    with pytest.raises(UserError, match="activate was refused: the emergency stop is latched"):
        loop.core.activate(loop.measured)
    loop.core.clean_up()
    assert loop.core.status().mode == Mode.ESTOP and loop.core.tick().mode == Mode.ESTOP
    loop.core.configure(loop.settings)
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
    assert "plan exhausted; the policy has not answered for 1." in loop.last.why and rests(loop)
    old = [loop.core.receive(loop.make_chunk(each)) for each in kept[:-1]]
    assert old and all(each is not None and each.reason == Reason.SEQUENCE for each in old)
    assert loop.tick().source == Source.HOLD
    loop.answer = loop.make_chunk
    loop.pass_s(2.0)
    assert loop.last.source == Source.POLICY


def test_a_plan_is_dropped_when_its_policy_is_silent_for_long_enough() -> None:
    slow, fast = start(), start(silence_s=0.3)
    for loop in (slow, fast):
        loop.answer = lambda request: None
        loop.pass_s(0.6)
    assert slow.last.source == Source.POLICY and fast.last.source == Source.HOLD
    assert fast.core.status().counts["silent"] == 1 and "has not answered for" in fast.last.why


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        (Reason.NOT_FINITE, lambda c: Chunk(c.sequence, c.epoch, c.step, c.actions * np.nan)),
        (Reason.SHAPE, lambda c: Chunk(c.sequence, c.epoch, c.step, c.actions[:, :1])),
        (Reason.SHORT, lambda c: Chunk(c.sequence, c.epoch, c.step, c.actions[:3])),
        (Reason.SEQUENCE, lambda c: Chunk(c.sequence + 1, c.epoch, c.step, c.actions)),
        (Reason.EPOCH, lambda c: Chunk(c.sequence, c.epoch - 1, c.step, c.actions)),
        (Reason.STEP, lambda c: Chunk(c.sequence, c.epoch, c.step + 1, c.actions)),
    ],
)
def test_a_policy_that_answers_nonsense_ends_in_a_hold(reason: Reason, spoil) -> None:
    loop = start()
    loop.answer = lambda request: spoil(loop.make_chunk(request, 0.01))
    loop.pass_s(2.5)
    assert rests(loop) and loop.core.status().refused[str(reason)] >= 1
    assert f"the policy's chunk was refused, {reason}; none was accepted for" in loop.last.why
    assert np.isfinite(loop.commands).all()


def test_a_new_version_of_the_policy_begins_with_its_chunk() -> None:
    loop = start()
    versions = iter(range(100))
    loop.answer = lambda request: Chunk(**{**vars(loop.make_chunk(request)), "policy_version": next(versions)})
    loop.pass_s(3.0)
    acted = [each for each in loop.ticks if each.source in (Source.POLICY, Source.SAFETY)]
    pairs = {(each.sequence, each.policy_version) for each in acted}
    assert len(pairs) == len({sequence for sequence, _ in pairs}) > 5
    ended = [each.ended for each in acted if each.ended is not None]
    assert all((each.sequence, each.policy_version) in pairs for each in ended)


class Still:
    """A replay that stands still."""

    mode, words = Mode.REPLAY, "stand"

    def begin(self, measured: np.ndarray, commanded: np.ndarray, now_s: float) -> str:
        return ""

    def step(self, measured: np.ndarray, now_s: float) -> MotionStep:
        return MotionStep(np.zeros(2))


def test_a_replay_is_given_up_when_the_robot_had_to_wait() -> None:
    loop = ControlLoop()

    loop.core.plan(Still())
    loop.start(Mode.REPLAY)
    loop.published.remove("front")
    loop.pass_s(0.4)
    assert loop.core.mode == Mode.HOLD and "the replay was given up: front: no message" in loop.core.status().why


def pause(loop: ControlLoop, seconds: float, pushed: float = 0.0) -> int:
    """Let the control loop stand still, while the robot comes to rest elsewhere; return how many ticks there were."""
    loop.now += seconds
    loop.source_s += seconds
    loop.place = loop.place + pushed
    return len(loop.ticks)


@pytest.mark.parametrize("limits", [ARM, TOOL], ids=["joints", "tool"])
@pytest.mark.parametrize("mode", [Mode.RUN, Mode.TELEOP])
def test_after_a_pause_that_stopped_the_robot_commands_begin_again_at_rest_where_it_is(mode: Mode, limits) -> None:
    loop = start(mode, limits, lost_s=0.3)
    held, before = loop.last.command, pause(loop, 2.0, pushed=0.05)
    assert held is not None
    loop.pass_s(0.5)
    assert {each.command is None for each in loop.ticks[before:]} == {True}, "it waits until all was well for a while"
    assert "no command was given for 2.020 s, and after 0.3 s the robot stops by itself" in loop.last.why
    assert "no command was given for 2.020 s" in loop.core.status().blocked
    loop.pass_s(0.5)
    made = [each for each in loop.ticks[before:] if each.command is not None]
    position = np.array([entry.kind == "position" for entry in limits.entries])
    place = np.where(loop.settings.measured, np.where(position, held + 0.05, 0.0), held)
    assert made[0].command == pytest.approx(place, abs=1e-12) and made[0].source == Source.HOLD
    assert [each.anew for each in made].count(True) == 1 and made[0].anew
    check = LimitCheck(limits, loop.settings.period_s)
    check.begin(place)
    commands = [each.command for each in made if each.command is not None]
    assert not [broken for command in commands if (broken := check.find_broken(command))]
    ended = [each.ended for each in made if each.ended is not None]
    assert "no command was given for 2.020 s" in ended[0].why
    assert loop.core.status().counts["losses"] == 1 and loop.core.mode == mode
    loop.pass_s(0.5)
    assert loop.last.source == (Source.POLICY if mode == Mode.RUN else Source.HUMAN)


def test_after_a_pause_in_which_the_robot_went_on_it_ramps_to_rest_from_its_speed() -> None:
    loop = start(lost_s=1.0)
    check = LimitCheck(TOOL, loop.settings.period_s)
    check.begin(np.zeros(3))
    pause(loop, 0.5)
    loop.tick()
    assert "the loop was late: 0.520 s" in loop.last.why and loop.last.command is not None and rests(loop)
    assert not [broken for command in loop.commands if (broken := check.find_broken(command))]
    assert loop.core.status().counts.get("losses", 0) == 0


def test_a_robot_that_was_moved_out_of_its_box_meanwhile_is_not_commanded() -> None:
    loop = start(limits=ARM, lost_s=0.3)
    before = pause(loop, 2.0, pushed=3.0)
    loop.pass_s(1.0)
    assert {each.command is None for each in loop.ticks[before:]} == {True}
    assert "shoulder is at 3." in loop.last.why and "outside its limits -2 to 2" in loop.core.status().blocked
    loop.place = np.array([0.5, 0.5])
    loop.pass_s(0.1)
    assert loop.last.command == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_robot_that_stopped_by_itself_is_left_at_once(ticks: int) -> None:
    loop = start(lost_s=0.3)
    pause(loop, 2.0)
    loop.tick(ticks)
    loop.core.deactivate()
    assert loop.core.state == State.INACTIVE


def test_an_emergency_stop_holds_over_such_a_pause() -> None:
    loop = start(lost_s=0.3)
    loop.ask(Mode.ESTOP)
    before = pause(loop, 2.0)
    loop.pass_s(1.0)
    made = [each for each in loop.ticks[before:] if each.command is not None]
    assert made and {each.mode for each in loop.ticks[before:]} == {Mode.ESTOP} and rests(loop)


def test_a_replay_is_given_up_after_such_a_pause() -> None:
    loop = ControlLoop(lost_s=0.3)
    loop.core.plan(Still())
    loop.start(Mode.REPLAY)
    pause(loop, 2.0)
    loop.pass_s(1.0)
    assert loop.core.mode == Mode.HOLD and "the replay was given up: no command was given" in loop.core.status().why


def test_a_robot_that_would_stop_between_two_commands_is_refused() -> None:
    with pytest.raises(UserError, match=r"lost_s=0\.01: the robot would stop between two commands"):
        ControlLoop(lost_s=0.01)
