"""A robot with three command topics: each command, and each stop, goes to all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.bridge_factory import find_stop_timeout_s
from embodied_rl.deployment.bridge.running import check_bridge
from embodied_rl.deployment.execution.tick import Mode, State, Tick
from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.steps import STEPS
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.commands import CommandPublisher
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.interfaces.sim import Source
from embodied_rl.schema import BridgeConfig
from tests.deployment.bridge.test_activation import assert_refused
from tests.deployment.bridge.test_real_time import MovingPolicy
from tests.support.bridging import RealTimeBench
from tests.support.robots import change_robot, write_robot
from tests.support.transports import START_NS

TOPICS = {
    "lift": {"topic": "/lift", "kind": "twist", "timeout_s": 0.3},
    "hand": {"topic": "/hand", "kind": "gripper", "max_effort": 20.0},
}
CHANGES: dict[str, Any] = {
    "commands": TOPICS,
    "actions__move_z__command": "lift",
    "actions__move_z__target": "linear.z",
    "actions__gripper__command": "hand",
    "actions__gripper__target": "position",
}
TYPES = {"/lift": "geometry_msgs/msg/Twist", "/hand": "control_msgs/msg/GripperCommand"}


class LiftingPolicy(MovingPolicy):
    """Moves the tool to the left and up, and closes the gripper."""

    def infer(self, observation: Any, keys: Any = None, *others: Any, **more: Any) -> Any:
        chunk = super().infer(observation, keys, *others, **more)
        chunk[..., 2] = 0.004
        return chunk


@pytest.fixture
def robot(tmp_path: Path) -> RobotDescription:
    return change_robot(tmp_path, **CHANGES)


class Bench(RealTimeBench):
    """Notes each topic's commands; `commands` holds whole ones, of four entries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lifts: list[float] = []
        self.hands: list[tuple[float, float]] = []
        note_lift = lambda message, *_: self.lifts.append(message.linear.z)  # noqa: E731
        note_hand = lambda message, *_: self.hands.append((message.position, message.max_effort))  # noqa: E731
        self.node.create_subscription("/lift", TYPES["/lift"], "command", note_lift)
        self.node.create_subscription("/hand", TYPES["/hand"], "command", note_hand)


@pytest.fixture
def bench(robot: RobotDescription) -> Bench:
    made = Bench(LiftingPolicy(), simulated=robot)
    made.prepare()
    made.run(0.4)
    np.testing.assert_allclose([*made.commands[-1], made.lifts[-1]], [0, 0.05, 0.05], atol=1e-6)
    return made


def is_still(bench: Bench) -> bool:
    return not bench.commands[-1].any() and bench.lifts[-1] == 0


@pytest.mark.thorough
def test_each_command_is_published_on_all_topics(bench: Bench) -> None:
    assert len(bench.commands) == len(bench.lifts) == len(bench.hands) > 20
    assert bench.hands[-1] == (-1.0, 20.0)
    assert bench.robot.counts["refused"] == 0 and bench.robot.counts["commands"] >= len(bench.commands) - 1
    before = bench.robot.robot.read().tool[0].copy()
    bench.run(0.5)
    moved = bench.robot.robot.read().tool[0] - before
    assert moved[1] > 0.01 and moved[2] > 0.01


@pytest.mark.thorough
def test_an_emergency_stop_ramps_all_topics_down(bench: Bench) -> None:
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=True)
    bench.run(0.5)
    assert is_still(bench) and bench.bridge.describe()["mode"] == "estop"
    assert len(bench.commands) == len(bench.lifts) == len(bench.hands)
    assert bench.hands[-1][0] == bench.hands[-10][0], "the gripper keeps its command"
    assert (np.abs(np.diff(bench.lifts)) * 100 <= 10 * (1 + 1e-6)).all(), "a ramp, no jump"


@pytest.mark.thorough
@pytest.mark.parametrize("silent", ["bridge", "/lift"])
def test_a_robot_without_commands_on_one_topic_stops(bench: Bench, silent: str) -> None:
    if silent != "bridge":
        (ear,) = (one for one in bench.bus.subscriptions if (one.topic, one.transport.node) == (silent, "robot"))
        ear.close()
    bench.run(0.6, stopped=silent == "bridge")
    place = bench.robot.robot.read().tool[0].copy()
    bench.run(0.3, stopped=silent == "bridge")
    np.testing.assert_allclose(bench.robot.robot.read().tool[0], place, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("topic", list(TYPES))
def test_a_second_publisher_on_any_topic_makes_the_robot_hold(bench: Bench, topic: str) -> None:
    bench.node.create_publisher(topic, TYPES[topic], "command")
    bench.bridge.check_topics()
    bench.run(0.3)
    assert is_still(bench) and bench.bridge.describe()["mode"] == "hold" and f"{topic}: " in bench.why


def test_a_command_topic_without_subscriber_is_refused(robot: RobotDescription) -> None:
    bench = Bench(LiftingPolicy(), simulated=robot)
    for each in [one for one in bench.bus.subscriptions if one.topic == "/hand"]:
        each.close()
    assert_refused(bench, "command-topic-without-subscriber", "/hand", "commands.hand.topic")


def test_after_a_failure_on_one_topic_the_others_are_sent(robot: RobotDescription) -> None:
    node = InProcessTransport(Bus(lambda: START_NS), "policy_bridge")
    commands, sent = CommandPublisher(robot, node), list[str]()
    for name, publisher in commands.publishers.items():

        def publish(message: Any, name: str = name) -> None:
            sent.append(name)
            if not name:
                raise TransportError("/command: it was not taken")

        publisher.publish = publish  # type: ignore[method-assign]
    with pytest.raises(TransportError, match="/command"):
        commands.publish(Tick(np.zeros(4), None, None, Source.POLICY, Mode.RUN, State.ACTIVE))
    assert sent == ["", "lift", "hand"]


@pytest.mark.thorough
@pytest.mark.parametrize("with_steps", [True, False])
def test_a_recording_becomes_whole_actions(
    bench: Bench, robot: RobotDescription, tmp_path: Path, with_steps: bool
) -> None:
    """With the bridge's control steps, and from the command topics alone."""
    topics = [topic for topic in list_topics(robot) if with_steps or topic.name != STEPS]
    node, messages = InProcessTransport(bench.bus, "recorder"), bench.bus.messages
    recorder = TopicRecorder(node, topics, BagWriter(tmp_path / "bag", topics, messages), 2**26)
    for _ in range(10):
        bench.run(0.1)
        node.spin_once()
        while recorder.write_waiting():
            pass
    recorder.finish()
    conversion = Conversion.open(tmp_path / "bag", messages, robot, instruction="lift it")
    executed = np.array([step.executed for part in conversion.read_parts() for step in part.steps])
    assert len(executed) >= 8
    np.testing.assert_allclose(executed, np.tile([0, 0.004, 0.004, -1], (len(executed), 1)), atol=1e-6)


def test_a_dry_run_of_the_settings_names_all_topics(tmp_path: Path) -> None:
    said = dict(check_bridge(BridgeConfig(str(write_robot(tmp_path, **CHANGES)), "ws://127.0.0.1:1")))
    assert said["commands"] == "/command, /lift, /hand, 100 Hz"


def test_the_stop_timeout_is_that_of_the_slowest_topic(tmp_path: Path, robot: RobotDescription) -> None:
    assert find_stop_timeout_s(robot) == 0.3
    endless = {**TOPICS, "lift": {"topic": "/lift", "kind": "twist"}}
    assert find_stop_timeout_s(change_robot(tmp_path, **(CHANGES | {"commands": endless}))) is None
