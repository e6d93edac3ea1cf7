"""Bags of another library without the topics of the bridge: commands are the actions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from embodied_rl.datasets.lerobot.collected import list_frames
from embodied_rl.deployment.recording.commanded_steps import CommandedSteps
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.mcap_reader import RecordingError
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from tests.support.refusals import refuses
from tests.support.robots import change_robot
from tests.support.transports import START_NS

HAND = "control_msgs/msg/GripperCommand"
JOINTS, TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
STORE = get_typestore(Stores.ROS2_JAZZY)
STORE.register(get_types_from_msg("float64 position\nfloat64 max_effort", HAND))
WITH_HAND: dict[str, Any] = {
    "commands": {"hand": {"topic": "/hand", "kind": "gripper", "max_effort": 20.0}},
    "command__order": None,
    "actions__wrist_3__command": "hand",
    "actions__wrist_3__target": "position",
}


class Bag:
    """A writer of a bag; times are seconds since its start."""

    def __init__(self, folder: Path, storage: StoragePlugin, messages: Messages, robot: RobotDescription) -> None:
        self._messages, self._robot = messages, robot
        self._writer = Writer(folder, version=9, storage_plugin=storage)
        self._writer.open()
        self._topics: dict[str, Any] = {}

    def write(self, seconds: float, topic: str, kind: str, **values: Any) -> None:
        """Write a message."""
        if topic not in self._topics:
            self._topics[topic] = self._writer.add_connection(topic, kind, typestore=STORE)
        raw = self._messages.encode(kind, self._messages.make(kind, **values))
        self._writer.write(self._topics[topic], START_NS + round(seconds * 1e9), raw)

    def observe(self, seconds: float, place: float) -> None:
        """Write joint states: all joints at one place, in rad."""
        names = [entry.target for entry in self._robot.actions]
        self.write(seconds, "/joint_states", JOINTS, name=names, position=np.full(len(names), place))

    def command(self, seconds: float, place: float) -> None:
        """Command all joints to one place."""
        topic = self._robot.command
        self.write(seconds, topic.name, topic.type_name, data=np.full(len(self._robot.actions), place))

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def arm(tmp_path: Path) -> RobotDescription:
    """An arm without cameras, with actions at 10 Hz."""
    operator = {"label": "/label", "instruction": "/instruction"}
    return change_robot(tmp_path, "ur5e", cameras=None, control_hz=10.0, command_hz=100.0, operator=operator)


def drive(bag: Bag, begin: float, seconds: float) -> None:
    """Write joints at 50 Hz and commands at 20 Hz, which rise by 0.001 each."""
    for tick in range(round(seconds * 100)):
        now = begin + tick / 100
        if tick % 2 == 0:
            bag.observe(now, now / 100)
        if tick % 5 == 0:
            bag.command(now + 0.001, tick / 5 / 1000)


def convert(folder: Path, messages: Messages, robot: RobotDescription, **options: Any) -> tuple[Conversion, list[Any]]:
    conversion = Conversion.open(folder, messages, robot, **options)
    return conversion, list(conversion.read_parts())


@pytest.fixture(params=list(StoragePlugin))
def make(tmp_path: Path, messages: Messages, arm: RobotDescription, request: Any) -> Callable[[], Bag]:
    return lambda: Bag(tmp_path / "bag", request.param, messages, arm)


def test_a_bag_without_labels_is_one_episode(
    tmp_path: Path, messages: Messages, arm: RobotDescription, make: Callable[[], Bag]
) -> None:
    bag = make()
    for tick in range(5):
        bag.observe(tick / 50 - 0.1, 0.0)
    drive(bag, 0.0, 1.0)
    bag.close()
    conversion, (part,) = convert(tmp_path / "bag", messages, arm, instruction="stack the cubes")
    assert (part.label, part.ends, len(part.steps), part.episode.instruction) == ("", True, 10, "stack the cubes")
    assert {step.source for step in part.steps} == {Source.HUMAN} and not conversion.omissions
    executed = np.array([step.executed for step in part.steps])
    expected = 0.001 * np.arange(1, 20, 2, dtype=np.float32)  # the last of two commands in each control step
    np.testing.assert_allclose(executed, np.tile(expected[:, None], (1, 6)), rtol=1e-6)
    seen = np.array([step.observation.state[0, 0] for step in part.steps])
    np.testing.assert_allclose(seen, np.arange(10) * 0.001, atol=1e-6)  # the last measurement before the step


def test_labels_apply_to_earlier_and_instructions_to_later_commands(
    tmp_path: Path, messages: Messages, arm: RobotDescription, make: Callable[[], Bag]
) -> None:
    bag = make()
    words, labels = {0.0: "open", 2.6: "close"}, {0.8: "success", 3.6: "failure", 5.5: "success"}
    for tick in range(300):
        now = tick / 50
        bag.observe(now, now / 100)
        if now in (0.2, 1.0, 3.0, 5.0):
            bag.command(now, now / 100)
        for topic, texts in (("/instruction", words), ("/label", labels)):
            if now in texts:
                bag.write(now, topic, TEXT, data=texts[now])
    bag.close()
    _, parts = convert(tmp_path / "bag", messages, arm)
    found = [(part.label, len(part.steps), part.episode.instruction) for part in parts]
    assert found == [("success", 6, "open"), ("", 1, "open"), ("failure", 6, "close"), ("success", 5, "close")]
    for part in parts:
        rewards = [float(frame["next.reward"]) for frame in list_frames(part)]
        assert rewards == [0.0] * (len(part.steps) - 1) + [float(part.label == "success")]
        assert {step.observation.instruction for step in part.steps} == {(part.episode.instruction,)}


def test_velocities_are_averaged_over_a_control_step(tmp_path: Path, messages: Messages) -> None:
    robot = replace(load_robot("mobile_base"), cameras=())
    bag = Bag(tmp_path / "bag", StoragePlugin.MCAP, messages, robot)
    odom = robot.topics["odom"]
    for tick in range(60):
        if tick % 2 == 0:
            bag.write(tick / 100, odom.name, odom.type_name)
        twist = {"linear": {"x": 0.1 * (tick % 2)}}
        bag.write(tick / 100 + 0.001, robot.command.name, robot.command.type_name, twist=twist)
    bag.close()
    _, (part,) = convert(tmp_path / "bag", messages, robot)
    assert [float(step.executed[0]) for step in part.steps[:5]] == pytest.approx([0.05] * 5, abs=0.01)


def test_commands_of_two_topics_are_combined(tmp_path: Path, messages: Messages) -> None:
    robot = change_robot(tmp_path, "ur5e", cameras=None, control_hz=10.0, command_hz=100.0, **WITH_HAND)
    assert "/hand" in {topic.name for topic in list_topics(robot)}
    joints = [entry.target for entry in load_robot("ur5e").actions]
    bag = Bag(tmp_path / "bag", StoragePlugin.MCAP, messages, robot)
    for tick in range(-20, 60):  # the gripper is first commanded at 0 s, then every 200 ms
        bag.write(tick / 100, "/joint_states", JOINTS, name=joints, position=np.full(6, tick / 1000))
        bag.write(tick / 100 + 0.001, robot.command.name, robot.command.type_name, data=np.full(5, tick / 1000))
        if tick >= 0 and tick % 20 == 0:
            bag.write(tick / 100 + 0.002, "/hand", HAND, position=tick / 1000)
    bag.close()
    conversion, (part,) = convert(tmp_path / "bag", messages, robot)
    executed = np.array([step.executed for step in part.steps])
    assert executed.shape == (6, 6) and np.isfinite(executed).all()
    np.testing.assert_allclose(executed[:5, 0], np.array([10, 20, 30, 40, 50]) / 1000, atol=1e-6)
    np.testing.assert_allclose(executed[:, 5], np.array([0, 0, 20, 20, 40, 40]) / 1000, atol=1e-6)
    assert conversion.omissions == {"steps before each position had been commanded": 2}


def test_velocities_of_two_topics_are_averaged_separately(tmp_path: Path, messages: Messages) -> None:
    turn = {"topic": "/turn", "kind": "twist"}
    robot = change_robot(tmp_path, "mobile_base", cameras=None, commands={"turn": turn}, actions__turn__command="turn")
    steps, made = CommandedSteps(robot), list[Any]()
    for tick in range(200):
        now = START_NS + tick * 10**7
        made += steps.add_command(np.array([0.1 * (tick % 2), np.nan]), now)
        if tick < 50:
            made += steps.add_command(np.array([np.nan, 1.0]), now + 1000)
    executed = np.array([step.control.executed for step in made])
    np.testing.assert_allclose(executed[:, 0], 0.05, atol=0.01)
    assert (executed[:5, 1] == 1).all() and (executed[-4:, 1] == 0).all()


def test_a_bag_without_commands_on_each_topic_is_refused(tmp_path: Path, messages: Messages) -> None:
    robot = change_robot(tmp_path, "ur5e", cameras=None, **WITH_HAND)
    bag = Bag(tmp_path / "bag", StoragePlugin.MCAP, messages, robot)
    for tick in range(50):
        bag.write(tick / 100, robot.command.name, robot.command.type_name, data=np.zeros(5))
    bag.close()
    topics = ("/policy_bridge/steps", robot.command.name, "/hand")
    with refuses("recording-without-episodes", *topics, kind=RecordingError):
        convert(tmp_path / "bag", messages, robot)


def test_a_command_of_another_type_is_refused(tmp_path: Path, messages: Messages, arm: RobotDescription) -> None:
    bag = Bag(tmp_path / "bag", StoragePlugin.SQLITE3, messages, arm)
    bag.write(0.0, arm.command.name, TEXT, data="forward")
    bag.close()
    with refuses("recording-of-another-robot", arm.command.name, TEXT):
        convert(tmp_path / "bag", messages, arm)


@pytest.mark.parametrize("damage", ["text", "view"])
def test_a_damaged_database_is_refused(tmp_path: Path, messages: Messages, arm: RobotDescription, damage: str) -> None:
    import sqlite3

    (tmp_path / "bag").mkdir()
    file = tmp_path / "bag" / "bag_0.db3"
    if damage == "text":
        file.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    else:
        with sqlite3.connect(file) as database:
            database.execute("CREATE VIEW topics AS SELECT 1 AS id")
            database.execute("CREATE VIEW messages AS SELECT 1 AS id")
    with refuses("recording-damaged", file, kind=RecordingError):
        convert(tmp_path / "bag", messages, arm)
