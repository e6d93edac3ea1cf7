"""A human who sets up scenes, and chunks that are offered to the control loop."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.inference import InferenceRequest
from embodied_rl.deployment.bridge.reporting import StepContext
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.execution.operator_device import OperatorDevice
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode
from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.sim import Source
from embodied_rl.robot_simulator import episode_control
from embodied_rl.robot_simulator.episode_control import AttendedEpisodes, EpisodeOperator
from embodied_rl.robot_simulator.link import EndedStep, OfferedChunks
from tests.support.refusals import refuses

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
    with refuses("scene-not-set-up", "sim.attend"):
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
    with refuses("scene-not-set-up", "sim.attend"):
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
    with refuses("scene-not-set-up", "sim.attend"):
        scene.episodes.wait("push it")


CHUNK = np.ones((2, 3), np.float32)


def ask(chunks: OfferedChunks, sequence: int) -> None:
    request = ChunkRequest(sequence, 1, 0, np.zeros((0, 3), np.float32), 0, 0.0)
    chunks.submit(InferenceRequest(request, lambda: pytest.fail("nobody asks for an observation")))


def ended(source: Source) -> EndedStep:
    step: Any = ExecutedStep(0.0, Mode.RUN, source, None, np.zeros(3, np.float32), np.zeros(3))
    return step, StepContext(0, 0, 0, "", {})


def answers(chunks: OfferedChunks) -> list[int]:
    found = [answer.chunk for answer in chunks.take_results()]
    assert all(chunk is not None and (chunk.actions == 1).all() for chunk in found)
    return [chunk.sequence for chunk in found if chunk is not None]


@pytest.mark.parametrize("offer_first", [True, False])
def test_a_question_and_an_offer_meet_in_either_order(offer_first: bool) -> None:
    chunks = OfferedChunks()
    for act in (chunks.offer, ask) if offer_first else (ask, chunks.offer):
        assert answers(chunks) == []
        act(CHUNK) if act is not ask else ask(chunks, 7)
    assert answers(chunks) == [7] and answers(chunks) == []


def test_a_chunk_that_was_forgotten_before_it_began_is_given_again() -> None:
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    ask(chunks, 1)
    assert answers(chunks) == [1]
    assert chunks.take(lambda: [ended(Source.HOLD)])
    ask(chunks, 2)
    assert answers(chunks) == [2]


@pytest.mark.parametrize("source", [Source.POLICY, Source.HUMAN, Source.SAFETY, Source.REPLAY])
@pytest.mark.parametrize("taken", [True, False])
def test_a_chunk_is_over_once_the_robot_has_done_something(source: Source, taken: bool) -> None:
    """Whether the caller has taken the step already, or the control loop alone knows of it."""
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    ask(chunks, 1)
    assert answers(chunks) == [1]
    if taken:
        chunks.take(lambda: [ended(source)])
    else:
        chunks.list_ended = lambda: [ended(source)]
    ask(chunks, 2)
    assert answers(chunks) == []


def test_a_withdrawn_chunk_answers_nothing() -> None:
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    chunks.offer(None)
    ask(chunks, 1)
    assert answers(chunks) == []
