"""When what an operator says counts: from when it was said, and not from when it came."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.execution.operator_device import AxisUse, OperatorDevice
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from tests.support.transports import START_NS

JOY, TWIST, BOOL = "sensor_msgs/msg/Joy", "geometry_msgs/msg/Twist", "std_msgs/msg/Bool"
DEVICE = OperatorDevice(
    axes=(AxisUse("move_x", "0", 0.38),), deadman=0, run=1, estop=2, reset=3, timeout_s=0.25, sticky_s=0.5
)
STICK = OperatorTopics(teleop="/teleop", teleop_type=JOY, deadman_timeout_s=0.15, device=DEVICE)
SWITCH = OperatorTopics(deadman="/deadman", deadman_timeout_s=0.15)
MOUSE = OperatorTopics(
    teleop="/teleop", teleop_type=TWIST, device=OperatorDevice(axes=(AxisUse("move_x", "linear.x", 1.0),))
)


class Desk:
    """An operator's topics over a network: what is published waits until `hear`."""

    def __init__(self, topics: OperatorTopics, *, timed: bool = True, use_sim_time: bool = False) -> None:
        self.now_s = 100.0
        bus = Bus(lambda: START_NS + round(self.now_s * 1e9))
        self.node, self._human = InProcessTransport(bus, "policy_bridge"), InProcessTransport(bus, "human")
        robot = replace(load_robot("tabletop"), operator=topics, use_sim_time=use_sim_time)
        self.listener = OperatorListener(self.node, robot, lambda: self.now_s, timed=timed)
        kinds = {"/deadman": (BOOL, "deadman"), "/teleop": (topics.teleop_type, "sensor_data")}
        self._publishers = {name: self._human.create_publisher(name, *kind) for name, kind in kinds.items()}

    def say(self, topic: str, *, stamp_s: float | None = None, **values: Any) -> None:
        """Publish, 50 ms after the message before, with a header's stamp where one is given."""
        self.now_s += 0.05
        publisher = self._publishers[topic]
        if stamp_s is not None:
            sec, nanosec = divmod(round(stamp_s * 1e9), 10**9)
            values |= {"header": {"stamp": {"sec": sec, "nanosec": nanosec}, "frame_id": ""}}
        publisher.publish(self._human.messages.make(publisher.type_name, **values))

    def move(self, *down: int, axis: float = 0.0, stamp_s: float | None = None) -> None:
        """Publish what a joystick is like."""
        buttons = np.array([each in down for each in range(4)], np.int32)
        self.say("/teleop", stamp_s=stamp_s, axes=np.array([axis], np.float32), buttons=buttons)

    def hear(self) -> OperatorInput:
        self.node.spin_once()
        return self.listener.read(Mode.HOLD, np.zeros(4))

    def talk(self, count: int = 5) -> OperatorInput:
        """Say for a while what changes nothing, and hear it at once."""
        for _ in range(count):
            if self.listener._topics.deadman == "/deadman":
                self.say("/deadman", data=True)
            elif self.listener._topics.teleop_type == TWIST:
                self.say("/teleop")
            else:
                self.move()
            said = self.hear()
        return said


def test_a_switch_that_is_said_to_be_held_after_a_pause_of_the_network_is_as_old_as_its_words() -> None:
    desk = Desk(SWITCH)
    assert desk.talk().deadman == pytest.approx(desk.now_s, abs=1e-5)
    desk.say("/deadman", data=True)
    said_s = desk.now_s
    desk.now_s += 2.0
    assert desk.hear().deadman == pytest.approx(said_s, abs=0.01)
    desk.say("/deadman", data=True)
    assert desk.hear().deadman == pytest.approx(desk.now_s, abs=1e-5), "the network is well again"


def test_each_message_of_a_burst_is_as_old_as_it_is() -> None:
    desk = Desk(STICK)
    desk.talk()
    for _ in range(4):
        desk.move(0)
    said_s = desk.now_s
    desk.now_s += 2.0
    heard = desk.hear()
    assert heard.deadman is None or heard.deadman == pytest.approx(said_s, abs=0.01)
    desk.move(0)
    assert desk.hear().deadman == pytest.approx(desk.now_s, abs=1e-5)


@pytest.mark.parametrize("stamps", ["equal", "back"])
def test_a_joystick_whose_stamp_is_not_new_moves_nothing(stamps: str) -> None:
    desk = Desk(STICK)
    for _ in range(5):
        desk.move(stamp_s=desk.now_s)
        desk.hear()
    desk.move(0, axis=1.0, stamp_s=desk.now_s)
    said_s = desk.now_s
    assert desk.hear().teleop is not None
    for number in range(8):
        desk.move(0, axis=1.0, stamp_s=said_s - 0.05 if stamps == "equal" else said_s - 0.1 - number)
        heard = desk.hear()
    assert heard.teleop is None and heard.deadman == pytest.approx(said_s, abs=1e-5)


def test_of_an_old_message_what_stops_the_robot_counts_and_what_moves_it_does_not() -> None:
    desk = Desk(STICK)
    desk.talk()
    desk.move(0, 1, 2, 3, axis=1.0)
    desk.now_s += 2.0
    heard = desk.hear()
    assert heard.estop and not heard.reset and heard.wanted is None and heard.teleop is None
    desk.move(0)
    assert desk.hear().deadman is not None
    desk.move()
    desk.now_s += 2.0
    assert desk.hear().deadman is None, "to let go counts, however late it is heard"


def test_a_release_counts_whatever_its_stamp_is() -> None:
    desk = Desk(SWITCH)
    desk.talk()
    desk.say("/deadman", data=False)
    desk.now_s += 2.0
    assert desk.hear().deadman is None


def test_a_twist_of_before_a_pause_moves_nothing() -> None:
    desk = Desk(MOUSE)
    desk.talk()
    desk.say("/teleop", linear={"x": 0.5})
    assert desk.hear().wanted == Mode.TELEOP
    desk.say("/teleop", linear={"x": 0.5})
    desk.now_s += 2.0
    assert desk.hear().teleop is None


def test_in_lockstep_messages_count_from_their_arrival() -> None:
    desk = Desk(SWITCH, timed=False)
    desk.talk()
    desk.say("/deadman", data=True)
    desk.now_s += 2.0
    assert desk.hear().deadman == desk.now_s


def test_where_time_is_simulated_the_headers_stamp_does_not_count() -> None:
    desk = Desk(STICK, use_sim_time=True)
    desk.talk()
    for _ in range(8):
        desk.move(0, stamp_s=3.0)
        heard = desk.hear()
    assert heard.deadman == pytest.approx(desk.now_s, abs=1e-5)
