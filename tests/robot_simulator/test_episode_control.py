"""A human who sets up scenes: what it says is read under the lock, and stays there for the control loop."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.operator_device import OperatorDevice
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.robot_simulator import episode_control
from embodied_rl.robot_simulator.episode_control import AttendedEpisodes, EpisodeOperator

JOY, BOOL = "sensor_msgs/msg/Joy", "std_msgs/msg/Bool"
BUTTON = OperatorTopics(teleop="/teleop", label="/label", device=OperatorDevice(run=0))
SWITCH = OperatorTopics(deadman="/deadman", label="/label", deadman_timeout_s=0.15)


class Scene:
    """An operator, its topics and a clock of its own; `acts` are done in turn whenever the one who waits sleeps."""

    def __init__(self, topics: OperatorTopics, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 5.0  # far from the system's monotonic clock, as the bridge's own one may be
        self.bus = Bus(lambda: int(self.now_s * 1e9))
        self.node, human = InProcessTransport(self.bus, "policy_bridge"), InProcessTransport(self.bus, "human")
        robot = replace(load_robot("tabletop"), operator=topics)
        self.operator = EpisodeOperator(self.node, robot, lambda: self.now_s)
        self.acts: list[Callable[[], object]] = []
        self._joy = human.create_publisher("/teleop", JOY, "sensor_data")
        self._switch = human.create_publisher("/deadman", BOOL, "deadman")
        self.episodes = AttendedEpisodes(topics, self.operator, wait_s=1.0)
        self.waited_s = 0.0
        monkeypatch.setattr(episode_control, "time", SimpleNamespace(monotonic=lambda: self.waited_s, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        if self.acts:
            self.acts.pop(0)()

    def press(self, down: bool) -> None:
        self.now_s += 0.05
        made = self.node.messages.make(JOY, axes=np.zeros(0, np.float32), buttons=np.array([down], np.int32))
        self._joy.publish(made)
        self.node.spin_once()

    def hold(self, held: bool) -> None:
        self.now_s += 0.05
        self._switch.publish(self.node.messages.make(BOOL, data=held))
        self.node.spin_once()

    def read(self) -> None:
        """Do what the control loop does a hundred times a second."""
        self.operator.read(Mode.HOLD, np.zeros(4))


@pytest.fixture
def make_scene(monkeypatch: pytest.MonkeyPatch) -> Callable[[OperatorTopics], Scene]:
    return lambda topics: Scene(topics, monkeypatch)


def test_a_press_counts_though_the_control_loop_has_read_it(make_scene: Callable[[OperatorTopics], Scene]) -> None:
    scene = make_scene(BUTTON)
    scene.acts = [lambda: scene.press(False), lambda: (scene.press(True), scene.read())]
    scene.episodes.wait("push it")
    assert not scene.acts


def test_a_press_of_before_does_not_count(make_scene: Callable[[OperatorTopics], Scene]) -> None:
    scene = make_scene(BUTTON)
    scene.press(False)
    scene.press(True)
    scene.operator.request_mode(Mode.RUN)
    with pytest.raises(UserError, match="The scene was not set up"):
        scene.episodes.wait("push it")


def test_a_switch_that_is_taken_hold_of_counts_by_the_operators_clock(
    make_scene: Callable[[OperatorTopics], Scene],
) -> None:
    scene = make_scene(SWITCH)
    scene.acts = [lambda: scene.hold(False), lambda: scene.hold(True)]
    scene.episodes.wait("push it")
    assert not scene.acts


def test_a_switch_that_was_held_is_let_go_of_first(make_scene: Callable[[OperatorTopics], Scene]) -> None:
    scene = make_scene(SWITCH)
    scene.hold(True)
    with pytest.raises(UserError, match="The scene was not set up"):
        scene.episodes.wait("push it")
    scene.now_s += 1.0  # it fell silent, which is a release
    scene.acts = [lambda: scene.hold(True)]
    scene.episodes.wait("push it")


@pytest.mark.parametrize("topics", [BUTTON, SWITCH], ids=["button", "switch"])
def test_operator_input_is_read_under_its_lock(
    topics: OperatorTopics, make_scene: Callable[[OperatorTopics], Scene]
) -> None:
    scene = make_scene(topics)
    lock: threading.Lock = scene.operator._lock

    class LockedParser:
        def __init__(self, parser: Any) -> None:
            self._parser = parser

        def __getattr__(self, name: str) -> Any:
            assert lock.locked(), f"{name} of the parser was read without its lock"
            return getattr(self._parser, name)

    scene.operator._parser = LockedParser(scene.operator._parser)  # type: ignore[assignment]
    with pytest.raises(UserError, match="The scene was not set up"):
        scene.episodes.wait("push it")
