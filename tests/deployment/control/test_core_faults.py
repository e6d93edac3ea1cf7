"""Faults of topics, clock, loop and robot: the robot ramps to rest, with a reason, and resumes."""

import numpy as np
import pytest

from embodied_rl.deployment.control.settings import StreamRule
from embodied_rl.deployment.execution.tick import Mode, MotionStep, State, StreamReading
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import ARM, TOOL, ControlLoop, rests, start
from tests.support.core_fuzzing import LimitCheck
from tests.support.refusals import refuses


def lie(loop: ControlLoop, name: str, fault: str) -> None:
    """Give a topic a fault from now on."""
    honest = type(loop).observe.__get__(loop)
    frozen = loop.streams[name]

    def observe() -> None:
        loop.published.discard(name)
        loop.count += 1
        now, stamp = loop.now, int(loop.source_s * 1e9)
        said = {
            "frozen": StreamReading(stamp, now, frozen.digest),
            "standing stamp": StreamReading(frozen.source_ns, now, str(now).encode()),
            "stamp back": StreamReading(stamp - 50 * 10**9, now, str(now).encode()),
            "stamp ahead": StreamReading(stamp + 50 * 10**9, now, str(now).encode()),
            "NaN": StreamReading(stamp, now, str(now).encode(), finite=False),
            "twice": StreamReading(frozen.source_ns, now, frozen.digest),
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
    assert loop.ask(Mode.HOLD) == loop.ask(Mode.TELEOP) == ""
    loop.published.remove("joints")
    loop.pass_s(0.2)
    assert loop.last.why.startswith("joints: no message for") and rests(loop) and loop.core.status().blocked
    loop.ask(Mode.HOLD)
    assert loop.core.status().blocked == "" and loop.ask(Mode.TELEOP).startswith("teleop was refused: joints")


def test_a_stale_topic_prevents_modes_and_activation() -> None:
    loop = ControlLoop()
    loop.published.remove("front")
    loop.pass_s(0.4)
    assert "run was refused: front: no message for" in loop.ask(Mode.RUN)
    loop.core.deactivate()
    with refuses("stream-stale", "front"):
        loop.core.activate(loop.measured)
    loop.published.add("front")
    loop.observe()
    with refuses("entry-not-measured"):
        loop.core.activate(np.array([np.nan, 0.0]))
    loop.core.activate(loop.measured)
    loop.core.deactivate()
    loop.core.forget_streams()
    with refuses("stream-stale", "joints", "front"):
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


def test_a_robot_that_was_moved_by_hand_while_it_was_inactive_runs_again() -> None:
    loop = start(tracking_error=(0.05, 0.05, np.inf))
    loop.core.deactivate(at_once=True)
    loop.place = loop.place + 0.3
    loop.observe()
    loop.core.activate(loop.measured)
    assert loop.start().source == Source.POLICY


class Still:
    """Replay without motion."""

    mode, words = Mode.REPLAY, "stand"

    def begin(self, measured: np.ndarray, commanded: np.ndarray, now_s: float) -> str:
        return ""

    def step(self, measured: np.ndarray, now_s: float) -> MotionStep:
        return MotionStep(np.zeros(2))


def pause(loop: ControlLoop, seconds: float, pushed: float = 0.0) -> int:
    """Pause the control loop while the robot moves by `pushed`; return the number of ticks before."""
    loop.now += seconds
    loop.source_s += seconds
    loop.place = loop.place + pushed
    return len(loop.ticks)


@pytest.mark.parametrize("limits", [ARM, TOOL], ids=["joints", "tool"])
@pytest.mark.parametrize("mode", [Mode.RUN, Mode.TELEOP])
def test_after_a_pause_that_stopped_the_robot_commands_begin_again_at_rest_where_it_is(mode: Mode, limits) -> None:
    loop = start(mode, limits, lost_s=0.3, tracking_error=(0.04,) * len(limits.entries))
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
    assert [each.restarted for each in made].count(True) == 1 and made[0].restarted
    check = LimitCheck(limits, loop.settings.period_s)
    check.begin(place)
    commands = [each.command for each in made if each.command is not None]
    assert not [broken for command in commands if (broken := check.find_broken(command))]
    if mode == Mode.TELEOP and limits == ARM:  # a cubic from rest to the human's 0.1 in 0.5 s
        steepest = 6 * np.abs(place - 0.1).max() / 0.5**2 * loop.settings.period_s**2
        assert np.abs(np.diff([place, place, *commands], n=2, axis=0)).max() <= steepest + 1e-9
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


@pytest.mark.parametrize(("paused", "why"), [(False, "front: no message"), (True, "no command was given")])
def test_a_replay_is_given_up_when_the_robot_had_to_wait(paused: bool, why: str) -> None:
    loop = ControlLoop(lost_s=0.3)
    loop.core.plan(Still())
    loop.start(Mode.REPLAY)
    if paused:
        pause(loop, 2.0)
    else:
        loop.published.remove("front")
    loop.pass_s(1.0)
    assert loop.core.mode == Mode.HOLD and f"the replay was given up: {why}" in loop.core.status().why
