"""Operator input counts from the time at which it was sent; an episode's scene begins with the new instruction."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.operator_topics import TEXT, EpisodeTracker, OperatorListener
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


class OperatorTopicsBench:
    """An operator's topics over a network; messages wait until `receive`."""

    def __init__(self, topics: OperatorTopics, *, timed: bool = True, use_sim_time: bool = False) -> None:
        self.now_s = 100.0
        bus = Bus(lambda: START_NS + round(self.now_s * 1e9))
        self.node, self._human = InProcessTransport(bus, "policy_bridge"), InProcessTransport(bus, "human")
        robot = replace(load_robot("tabletop"), operator=topics, use_sim_time=use_sim_time)
        self.listener = OperatorListener(self.node, robot, lambda: self.now_s, timed=timed)
        kinds = {"/deadman": (BOOL, "deadman"), "/teleop": (topics.teleop_type, "sensor_data")}
        self._publishers = {name: self._human.create_publisher(name, *kind) for name, kind in kinds.items()}

    def publish(self, topic: str, *, stamp_s: float | None = None, **values: Any) -> None:
        """Publish, 50 ms after the message before, with a header's stamp where one is given."""
        self.now_s += 0.05
        publisher = self._publishers[topic]
        if stamp_s is not None:
            sec, nanosec = divmod(round(stamp_s * 1e9), 10**9)
            values |= {"header": {"stamp": {"sec": sec, "nanosec": nanosec}, "frame_id": ""}}
        publisher.publish(self._human.messages.make(publisher.type_name, **values))

    def move(self, *down: int, axis: float = 0.0, stamp_s: float | None = None) -> None:
        """Publish the state of a joystick."""
        buttons = np.array([each in down for each in range(4)], np.int32)
        self.publish("/teleop", stamp_s=stamp_s, axes=np.array([axis], np.float32), buttons=buttons)

    def receive(self) -> OperatorInput:
        self.node.spin_once()
        return self.listener.read(Mode.HOLD, np.zeros(4))

    def talk(self, count: int = 5) -> OperatorInput:
        """Publish neutral messages for a while, each received at once."""
        for _ in range(count):
            if self.listener._topics.deadman == "/deadman":
                self.publish("/deadman", data=True)
            elif self.listener._topics.teleop_type == TWIST:
                self.publish("/teleop")
            else:
                self.move()
            said = self.receive()
        return said


def test_a_held_switch_keeps_its_age_after_a_pause_of_the_network() -> None:
    bench = OperatorTopicsBench(SWITCH)
    assert bench.talk().deadman == pytest.approx(bench.now_s, abs=1e-5)
    bench.publish("/deadman", data=True)
    sent_s = bench.now_s
    bench.now_s += 2.0
    assert bench.receive().deadman == pytest.approx(sent_s, abs=0.01)
    bench.publish("/deadman", data=True)
    assert bench.receive().deadman == pytest.approx(bench.now_s, abs=1e-5), "the network works again"


def test_messages_of_a_burst_keep_their_age() -> None:
    bench = OperatorTopicsBench(STICK)
    bench.talk()
    for _ in range(4):
        bench.move(0)
    sent_s = bench.now_s
    bench.now_s += 2.0
    received = bench.receive()
    assert received.deadman is None or received.deadman == pytest.approx(sent_s, abs=0.01)
    bench.move(0)
    assert bench.receive().deadman == pytest.approx(bench.now_s, abs=1e-5)


@pytest.mark.parametrize("stamps", ["equal", "back"])
def test_a_joystick_message_with_an_old_stamp_moves_nothing(stamps: str) -> None:
    bench = OperatorTopicsBench(STICK)
    for _ in range(5):
        bench.move(stamp_s=bench.now_s)
        bench.receive()
    bench.move(0, axis=1.0, stamp_s=bench.now_s)
    sent_s = bench.now_s
    assert bench.receive().teleop is not None
    for number in range(8):
        bench.move(0, axis=1.0, stamp_s=sent_s - 0.05 if stamps == "equal" else sent_s - 0.1 - number)
        received = bench.receive()
    assert received.teleop is None and received.deadman == pytest.approx(sent_s, abs=1e-5)


def test_an_old_message_can_stop_the_robot_and_not_move_it() -> None:
    bench = OperatorTopicsBench(STICK)
    bench.talk()
    bench.move(0, 1, 2, 3, axis=1.0)
    bench.now_s += 2.0
    received = bench.receive()
    assert received.estop and not received.reset and received.wanted is None and received.teleop is None
    bench.move(0)
    assert bench.receive().deadman is not None
    bench.move()
    bench.now_s += 2.0
    assert bench.receive().deadman is None, "a release counts at any age"


def test_a_release_counts_at_any_age() -> None:
    bench = OperatorTopicsBench(SWITCH)
    bench.talk()
    bench.publish("/deadman", data=False)
    bench.now_s += 2.0
    assert bench.receive().deadman is None


def test_a_twist_from_before_a_pause_moves_nothing() -> None:
    bench = OperatorTopicsBench(MOUSE)
    bench.talk()
    bench.publish("/teleop", linear={"x": 0.5})
    assert bench.receive().wanted == Mode.TELEOP
    bench.publish("/teleop", linear={"x": 0.5})
    bench.now_s += 2.0
    assert bench.receive().teleop is None


def test_in_lockstep_messages_count_from_their_arrival() -> None:
    bench = OperatorTopicsBench(SWITCH, timed=False)
    bench.talk()
    bench.publish("/deadman", data=True)
    bench.now_s += 2.0
    assert bench.receive().deadman == bench.now_s


def test_with_simulated_time_header_stamps_do_not_count() -> None:
    bench = OperatorTopicsBench(STICK, use_sim_time=True)
    bench.talk()
    for _ in range(8):
        bench.move(0, stamp_s=3.0)
        received = bench.receive()
    assert received.deadman == pytest.approx(bench.now_s, abs=1e-5)


TOPICS = load_robot("tabletop").operator


class Scene:
    """An episode tracker, and publishers of requests and instructions at times that the test sets."""

    def __init__(self, instruction: str | None = None) -> None:
        self.now_ns = 0
        bus = Bus(lambda: self.now_ns)
        self.node = InProcessTransport(bus, "bridge")
        self.tracker = EpisodeTracker(self.node, TOPICS, instruction)
        others = InProcessTransport(bus, "others")
        self._topics = {
            name: others.create_publisher(name, TEXT, "latched") for name in (TOPICS.reset, TOPICS.instruction)
        }

    def say(self, now_ns: int, topic: str, text: str) -> None:
        self.now_ns = now_ns
        self._topics[topic].publish(self.node.messages.make(TEXT, data=text))

    def ask(self, now_ns: int, index: int) -> None:
        self.say(now_ns, TOPICS.reset, json.dumps({"index": index}))

    def answer(self, now_ns: int) -> None:
        self.say(now_ns, TOPICS.instruction, "push the red cube")

    def find_min_source_ns(self) -> int:
        self.node.spin_once()
        assert self.tracker.requested is not None
        return self.tracker.find_min_source_ns(self.tracker.requested)


@pytest.mark.parametrize("arrives_first", ["request", "instruction"])
def test_the_scene_begins_with_the_robots_new_instruction(arrives_first: str) -> None:
    scene = Scene()
    scene.answer(5)
    if arrives_first == "request":
        scene.ask(10, 1)
        assert scene.find_min_source_ns() == 10, "before the instruction"
        scene.answer(30)
    else:
        scene.answer(30)
        scene.node.spin_once()
        scene.ask(10, 1)  # arrives late
    assert scene.find_min_source_ns() == 29, "messages at the time of the instruction count"
    scene.answer(50)
    assert scene.find_min_source_ns() == 29, "a repeated instruction does not change the scene"
    scene.ask(60, 2)
    assert scene.find_min_source_ns() == 60
    scene.answer(70)
    assert scene.find_min_source_ns() == 69


def test_a_configured_instruction_does_not_mark_a_scene() -> None:
    scene = Scene("push the red cube")
    scene.ask(10, 1)
    scene.answer(30)
    assert scene.find_min_source_ns() == 10
