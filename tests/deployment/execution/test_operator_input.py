"""A joystick or a twist becomes what the operator wants, and nothing that the operator did not do moves the robot."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.deployment.execution.limits import EntryLimits
from embodied_rl.deployment.execution.operator_device import AxisUse, ButtonUse, OperatorDevice, check_device
from embodied_rl.deployment.execution.operator_input import OperatorInputParser, enter_dead_zone, leave_dead_zone
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from tests.support.refusals import refuses

JOY, TWIST = "sensor_msgs/msg/Joy", "geometry_msgs/msg/Twist"
ENTRIES = (
    EntryLimits("x", "displacement", -1, 1, 0.4, 10, 600),
    EntryLimits("elbow", "position", -2, 2, 1, 5, 50),
    EntryLimits("grip", "position", -1, 1, 5, 50, 500),
)
DEADMAN, ESTOP = 2, 7
DEVICE = OperatorDevice(
    axes=(AxisUse("x", "1", -0.2), AxisUse("elbow", "0", 0.5)),
    places=(ButtonUse("grip", 0, -1), ButtonUse("grip", 1, 1)),
    deadman=DEADMAN, success=3, failure=4, abort=5, go_back=6, estop=ESTOP, reset=8,
)  # fmt: skip
COMMANDED = np.array([0.0, 0.3, 1.0])


class Person:
    """Somebody with a joystick of 2 axes and 9 buttons, who lets go of it first."""

    def __init__(self, device: OperatorDevice = DEVICE) -> None:
        self.desk, self.now = OperatorInputParser(device, ENTRIES), 0.0
        self.move()

    def move(self, *axes: float, press: tuple[int, ...] = (), passes: float = 0.1) -> None:
        self.now += passes
        deflected = [*axes, 0.0, 0.0][:2]
        self.desk.receive_joy(deflected, [int(button in press) for button in range(9)], self.now)

    def read(self, mode: Mode = Mode.RUN) -> OperatorInput:
        return self.desk.read(self.now, mode, COMMANDED)

    def teleop(self, mode: Mode = Mode.TELEOP) -> list[float]:
        found = self.read(mode).teleop
        assert found is not None
        return [float(value) for value in found]


def test_an_operator_who_was_never_heard_wants_nothing() -> None:
    assert OperatorInputParser(DEVICE, ENTRIES).read(0.0, Mode.RUN, COMMANDED) == OperatorInput()


def test_an_axis_gives_a_speed_and_a_position_starts_at_the_last_command() -> None:
    person = Person()
    person.read(Mode.RUN)
    person.move(1.0, 3.0)  # beyond 1 counts as 1
    assert person.read(Mode.RUN).wanted == Mode.TELEOP
    x, elbow, grip = person.teleop()
    assert x == pytest.approx(-0.2) and elbow == pytest.approx(0.3) and math.isnan(grip)
    person.move(1.0, 1.0)
    assert person.teleop()[1] == pytest.approx(0.3 + 0.5 * 0.1)
    person.move(1.0, 1.0, passes=5.0)
    assert person.teleop()[1] == pytest.approx(0.35 + 0.5 * DEVICE.timeout_s), "a pause is not driven through"


def test_a_target_stays_in_its_box_and_is_forgotten_when_the_axis_rests() -> None:
    person = Person()
    for _ in range(200):
        person.move(1.0)
        target = person.teleop()[1]
    assert target == ENTRIES[1].high
    person.move(0.0)
    assert math.isnan(person.teleop()[1])
    person.move(-1.0)
    person.teleop()
    person.move(-1.0)
    assert person.teleop()[1] < COMMANDED[1], "it starts again at the last command"


def test_a_button_sends_the_gripper_to_its_place_while_it_is_pressed() -> None:
    person = Person()
    person.move(press=(0,))
    assert person.read().wanted == Mode.TELEOP and person.teleop()[2] == -1
    person.move(press=(1,))
    assert person.teleop()[2] == 1
    person.move()
    assert math.isnan(person.teleop()[2])


@pytest.mark.parametrize("button", [0, 9])
def test_two_buttons_may_send_the_gripper_to_one_place(button: int) -> None:
    person = Person(replace(DEVICE, places=(ButtonUse("grip", 0, -1), ButtonUse("grip", 9, -1))))
    person.desk.receive_joy([0.0, 0.0], [0] * 10, person.now)
    person.desk.receive_joy([0.0, 0.0], [int(each == button) for each in range(10)], person.now)
    assert person.read().wanted == Mode.TELEOP and person.teleop()[2] == -1


def test_the_policy_goes_on_a_while_after_the_device_was_let_go() -> None:
    person = Person()
    person.move(1.0)
    assert person.read(Mode.RUN).wanted == Mode.TELEOP
    person.move(0.0)
    assert person.read(Mode.TELEOP).wanted is None
    person.move(1.0)
    person.move(0.0, passes=DEVICE.sticky_s - 0.01)
    assert person.read(Mode.TELEOP).wanted is None, "it was touched again in between"
    person.move(0.0, passes=0.02)
    assert person.read(Mode.TELEOP).wanted == Mode.RUN
    assert person.read(Mode.RUN).wanted is None


@pytest.mark.parametrize(
    ("before", "after"),
    [(Mode.RUN, Mode.RUN), (Mode.HOLD, Mode.HOLD), (Mode.REPLAY, Mode.HOLD), (Mode.RETURN, Mode.HOLD)],
)
def test_a_takeover_interrupts_every_mode_and_only_a_policy_goes_on_after_it(before: Mode, after: Mode) -> None:
    person = Person()
    person.move(1.0)
    assert person.read(before).wanted == Mode.TELEOP
    person.move(0.0)
    person.move(0.0, passes=1.0)
    assert person.read(Mode.TELEOP).wanted == after


def test_a_release_whose_mode_is_refused_ends_in_hold_and_not_in_teleoperation() -> None:
    person = Person()
    person.move(1.0)
    assert person.read(Mode.RUN).wanted == Mode.TELEOP
    person.move(0.0)
    person.move(0.0, passes=1.0)
    assert person.read(Mode.TELEOP).wanted == Mode.RUN
    assert person.read(Mode.TELEOP).wanted == Mode.HOLD, "the policy was refused, such as for a stale camera"
    assert person.read(Mode.HOLD).wanted is None
    assert person.read(Mode.TELEOP).wanted is None, "teleoperation that was asked for otherwise"


@pytest.mark.parametrize("deflected", [0.0, 1.0])
@pytest.mark.parametrize(("button", "asked", "follows"), [(3, None, Mode.HOLD), (6, Mode.RETURN, Mode.RETURN)])
def test_a_label_or_a_requested_mode_ends_a_takeover_at_once(
    button: int, asked: Mode | None, follows: Mode, deflected: float
) -> None:
    person = Person()
    person.move(1.0)
    assert person.read(Mode.RUN).wanted == Mode.TELEOP
    person.move(deflected, press=(button,))
    assert person.read(Mode.TELEOP).wanted == asked
    assert person.read(Mode.TELEOP).wanted is None, "what was interrupted is not asked for"
    assert person.read(follows).wanted is None, "the touch is over"


def test_an_emergency_stop_is_not_left_by_touching_the_stick() -> None:
    person = Person()
    person.move(1.0)
    assert person.read(Mode.ESTOP).wanted is None


@pytest.mark.parametrize("device", [True, False], ids=["button", "topic"])
def test_an_emergency_stop_that_was_released_before_anybody_looked_counts_once(device: bool) -> None:
    person = Person()
    assert not person.read().estop
    if device:
        person.move(press=(7,))
        person.move()
    else:
        person.desk.receive_estop(True)
        person.desk.receive_estop(False)
    assert person.read().estop
    assert not person.read().estop
    person.desk.receive_estop(True)
    assert person.read().estop and person.read().estop, "as long as it is pressed"
    assert not Person(replace(DEVICE, estop=None)).read().estop


def test_hold_wins_over_what_else_was_asked_for_before_anybody_looked() -> None:
    person = Person(replace(DEVICE, go_back=None, run=6, hold=4, failure=None))
    person.move(press=(6,))
    person.move(press=(4,))
    assert person.read(Mode.HOLD).wanted == Mode.HOLD


def test_with_a_takeover_button_a_touch_alone_does_not_take_over() -> None:
    person = Person(replace(DEVICE, takeover=8, reset=None))
    person.move(1.0)
    assert person.read(Mode.RUN).wanted is None
    person.move(1.0, press=(8,))
    assert person.read(Mode.RUN).wanted == Mode.TELEOP


def test_a_device_that_falls_silent_moves_nothing_and_does_not_give_back() -> None:
    person = Person()
    person.move(1.0, press=(2,))
    person.read(Mode.RUN)
    person.now += 10
    silent = person.read(Mode.TELEOP)
    assert silent.teleop is None and silent.wanted is None
    assert silent.deadman == pytest.approx(0.2), "whoever reads it sees how old it is"


def test_a_stick_or_button_that_is_held_at_the_start_does_nothing_until_it_was_let_go() -> None:
    desk = OperatorInputParser(DEVICE, ENTRIES)
    for now in (0.0, 0.1, 0.2):
        desk.receive_joy([1.0, 1.0], [1] * 9, now)
        found = desk.read(now, Mode.RUN, COMMANDED)
        assert found.wanted is None and found.label == "" and found.deadman is None and not found.reset
        assert found.teleop is not None and found.teleop[0] == 0 and np.isnan(found.teleop[1:]).all()
        assert found.estop, "a stop counts however it came to be pressed"
        assert desk.read(now, Mode.RUN, COMMANDED).estop, "as long as it is pressed"


def test_labels_are_said_once_and_the_dead_mans_switch_as_long_as_it_is_held() -> None:
    person = Person()
    for button, label in ((3, "success"), (4, "failure"), (5, "abort")):
        person.move(press=(button, 2))
        first, second = person.read(), person.read()
        assert (first.label, second.label) == (label, "") and second.deadman == person.now
        person.move(press=(button,))
        assert person.read().label == "" and person.read().deadman is None
        person.move()
    person.desk.receive_label("failure")
    assert [person.read().label, person.read().label] == ["failure", ""]
    person.desk.receive_label("perhaps")
    assert person.read().label == ""


def test_the_topic_of_the_dead_mans_switch_counts_as_its_button_does() -> None:
    person = Person()
    person.desk.receive_deadman(True, 3.0)
    assert person.read().deadman == 3.0
    person.desk.receive_deadman(False, 4.0)
    assert person.read().deadman is None


def test_buttons_ask_for_modes_and_for_the_end_of_a_stop() -> None:
    person = Person()
    person.move(press=(6,))
    assert [person.read(Mode.HOLD).wanted, person.read(Mode.HOLD).wanted] == [Mode.RETURN, None]
    person.move(press=(7,))
    assert person.read().estop
    person.move(press=(8,))
    assert person.read().reset and not person.read().estop and not person.read().reset


@pytest.mark.parametrize("axes", [[], [0.5], [math.nan, 0.5], [math.inf, 0.5]])
def test_an_invalid_message_moves_nothing(axes: list[float]) -> None:
    person = Person()
    person.desk.receive_joy(axes, [1] * 9, person.now)
    found = person.read()
    assert found.wanted is None and found.deadman is None and found.label == ""


@pytest.mark.parametrize("axes", [[], [math.nan, 0.5]])
@pytest.mark.parametrize("buttons", [9, 8], ids=["all buttons", "too few buttons"])
def test_an_invalid_message_can_still_stop_the_robot(axes: list[float], buttons: int) -> None:
    person = Person()
    person.move(press=(DEADMAN,))
    assert person.read().deadman is not None and not person.read().estop
    person.desk.receive_joy(axes, [int(button == ESTOP) for button in range(buttons)], person.now)
    found = person.read()
    assert found.estop and found.deadman is None


def test_a_late_message_lets_go_of_no_switch_that_is_held() -> None:
    person = Person()
    person.move(press=(DEADMAN,))
    person.desk.receive_old_buttons([int(button == DEADMAN) for button in range(9)])
    assert person.read().deadman is not None


@given(st.floats(-1, 1), st.floats(0, 0.9))
def test_the_dead_zone_is_continuous_and_invertible(value: float, dead_zone: float) -> None:
    use = AxisUse("x", "0", 1, dead_zone)
    counted = leave_dead_zone(use, value)
    assert abs(counted) <= 1 and (counted == 0) == (abs(value) <= dead_zone) and counted * value >= 0
    assert leave_dead_zone(use, enter_dead_zone(use, counted)) == pytest.approx(counted, abs=1e-9)
    assert leave_dead_zone(use, math.copysign(1, value)) == pytest.approx(math.copysign(1, value))


@pytest.mark.parametrize("dead_zone", [0.01, 0.0])
def test_a_twist_is_taken_in_its_own_unit(dead_zone: float) -> None:
    device = OperatorDevice(axes=(AxisUse("x", "linear.y", 1, dead_zone),))
    desk = OperatorInputParser(device, ENTRIES)
    desk.receive_twist([0, 0, 0], [0, 0, 0], 0.0)
    desk.receive_twist([9, 2.5, 9], [9, 9, 9], 0.1)
    found = desk.read(0.1, Mode.TELEOP, COMMANDED).teleop
    assert found is not None and found[0] == pytest.approx(2.5 - dead_zone)
    assert desk.read(0.1, Mode.RUN, COMMANDED).wanted == Mode.TELEOP


@pytest.mark.parametrize(
    ("device", "kind", "code", "data"),
    [
        (OperatorDevice(axes=(AxisUse("wrist", "0", 1),)), JOY, "entry-unknown", "'wrist'"),
        (OperatorDevice(axes=(AxisUse("x", "linear.x", 1),)), JOY, "operator-axis-unknown", "'linear.x'"),
        (OperatorDevice(axes=(AxisUse("x", "0", 1),)), TWIST, "operator-axis-unknown", "'0'"),
        (OperatorDevice(axes=(AxisUse("x", "0", 0),)), JOY, "value-out-of-range", "scale=0"),
        (OperatorDevice(axes=(AxisUse("x", "0", math.nan),)), JOY, "value-out-of-range", "scale=nan"),
        (OperatorDevice(axes=(AxisUse("x", "0", 1, 1.0),)), JOY, "value-out-of-range", "dead_zone=1.0"),
        (OperatorDevice(axes=(AxisUse("x", "0", 1, -0.1),)), JOY, "value-out-of-range", "dead_zone=-0.1"),
        (OperatorDevice(axes=(AxisUse("x", "linear.x", 1, math.inf),)), TWIST, "value-out-of-range", "dead_zone=inf"),
        (OperatorDevice(axes=(AxisUse("x", "-1", 1),)), JOY, "operator-axis-unknown", "'-1'"),
        (OperatorDevice(axes=(AxisUse("x", "256", 1),)), JOY, "operator-axis-unknown", "'256'"),
        (OperatorDevice(axes=(AxisUse("x", "0", 1), AxisUse("elbow", "0", 1))), JOY, "operator-axis-twice", "axes"),
        (OperatorDevice(places=(ButtonUse("x", 0, 0),)), JOY, "operator-button-needs-position", "'x' is a disp"),
        (OperatorDevice(places=(ButtonUse("grip", 0, 3),)), JOY, "value-out-of-range", "value=3 of 'grip'"),
        (OperatorDevice(deadman=1, success=1), JOY, "operator-button-twice", "button 1"),
        (OperatorDevice(places=(ButtonUse("wrist", 0, 0),)), JOY, "entry-unknown", "'wrist'"),
        (OperatorDevice(deadman=-1), JOY, "operator-button-unknown", "deadman=-1"),
        (OperatorDevice(deadman=256), JOY, "operator-button-unknown", "deadman=256"),
        (OperatorDevice(deadman=1), TWIST, "operator-button-unknown", "deadman"),
        (OperatorDevice(sticky_s=0), JOY, "value-out-of-range", "sticky_s=0"),
        (OperatorDevice(timeout_s=10.1), JOY, "value-out-of-range", "timeout_s=10.1"),
    ],
)
def test_a_device_that_does_not_fit_the_robot_is_refused(
    device: OperatorDevice, kind: str, code: str, data: str
) -> None:
    with refuses(code, "operator.device", data):
        check_device(device, ENTRIES, kind, "operator.device")


def test_a_device_that_fits_is_accepted() -> None:
    check_device(DEVICE, ENTRIES, JOY, "operator.device")
    ends = replace(DEVICE, axes=(AxisUse("x", "255", 1, 0.0),), hold=255, run=9, sticky_s=10, timeout_s=1e-3)
    check_device(ends, ENTRIES, JOY, "operator.device")
    check_device(OperatorDevice(axes=(AxisUse("x", "angular.z", 1, 5.0),)), ENTRIES, TWIST, "operator.device")


def test_a_place_is_stored_once_for_each_press() -> None:
    person = Person(replace(DEVICE, reset=None, store=8))
    assert not person.read().store
    for _ in range(3):
        person.move(press=(8,))
    assert person.read().store and not person.read().store
    person.move()
    person.move(press=(8,))
    assert person.read().store
    assert person.desk.presses == {"store": 2}
