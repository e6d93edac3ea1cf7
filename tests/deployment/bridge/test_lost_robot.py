"""After a long silence of its driver, a robot is commanded from its new place and not back to the old one."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.execution.tick import Mode, State
from embodied_rl.deployment.recording.steps import STEPS, ControlStep
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.schema import BridgeConfig
from tests.support.robots import change_robot, describe_policy
from tests.support.transports import START_NS

TICK_NS = 10_000_000


class StayingPolicy:
    """Commands the arm to stay where it is observed."""

    def __init__(self, robot: RobotDescription) -> None:
        self.spec, self.version, self.deadline = describe_policy(robot), 1, 1.0

    def infer(self, observation: Any, keys: Any = None, *others: Any, **more: Any) -> Any:
        return np.tile(observation.state.astype(np.float32)[:, None], (1, self.spec.horizon, 1))

    def close(self) -> None: ...


@dataclass
class ArmBench:
    """An arm with position commands and its bridge, with a clock that the test sets."""

    robot: RobotDescription
    now_ns: int = START_NS
    place: float = 0.1
    """Of all joints, in rad."""
    talks: bool = True
    commands: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        bus = Bus(lambda: self.now_ns)
        self.node = InProcessTransport(bus, "driver")
        topic, command = self.robot.topics["joints"], self.robot.command
        self._joints = self.node.create_publisher(topic.name, topic.type_name, topic.qos)
        self.node.create_subscription(command.name, command.type_name, command.qos, self._note)
        config = BridgeConfig("arm", "ws://in-process", patience=0.2, requests=2, instruction="stay")
        node, seconds = InProcessTransport(bus, "policy_bridge"), lambda: (self.now_ns - START_NS) / 1e9
        self.bridge = Bridge(config, self.robot, node, StayingPolicy(self.robot), seconds, threads=False)  # pyright: ignore[reportArgumentType]

    def run(self, seconds: float) -> None:
        """Let time pass; while `talks`, the driver publishes the arm's position with little noise."""
        for tick in range(round(seconds * 100)):
            self.now_ns += TICK_NS
            if self.talks:
                self._say(tick)
            self.bridge.node.spin_once()
            if (controller := self.bridge.controller) is not None:
                if (made := controller.tick()) is not None:
                    self.bridge.publish(made)
                self.bridge.report(at_once=True)
            self.node.spin_once()

    def _say(self, tick: int) -> None:
        names = [entry.target for entry in self.robot.actions]
        noise = 1e-5 * (tick % 7)
        sec, nanosec = divmod(self.now_ns, 1_000_000_000)
        position = np.full(len(names), self.place + noise)
        header = {"stamp": {"sec": sec, "nanosec": nanosec}}
        self._joints.publish(
            self.node.messages.make("sensor_msgs/msg/JointState", header=header, name=names, position=position)
        )

    def _note(self, message: Any, received_ns: int, source_ns: int) -> None:
        self.commands.append(np.array(message.data))


@pytest.fixture
def arm(tmp_path: Path) -> ArmBench:
    return start_arm(change_robot(tmp_path, "ur5e", probe=False, cameras=None, operator={"estop": "/estop"}))


def start_arm(robot: RobotDescription) -> ArmBench:
    """Start an arm that its policy drives."""
    made = ArmBench(replace(robot, operator=replace(robot.operator, deadman="")))
    made.run(0.3)
    made.bridge.prepare()
    made.run(1.0)
    assert made.bridge.core.mode == Mode.RUN
    np.testing.assert_allclose(made.commands[-1], 0.1, atol=1e-3)
    return made


@pytest.mark.thorough
def test_commands_end_with_the_driver_and_restart_at_the_new_place(arm: ArmBench) -> None:
    arm.talks = False
    arm.run(2.0)
    arm.commands.clear()
    arm.run(1.0)
    assert arm.commands == []
    assert "joints: no message for" in arm.bridge.describe()["why"]
    arm.place, arm.talks = 0.9, True
    arm.run(1.0)
    np.testing.assert_allclose(arm.commands, 0.9, atol=1e-2)
    assert arm.bridge.core.mode == Mode.RUN, "the policy continues"


def test_unmeasured_entries_restart_at_their_last_command(tmp_path: Path) -> None:
    changes = {"actions__wrist_3__measured": "", "actions__wrist_3__tracking_error": None}
    arm = start_arm(change_robot(tmp_path, "ur5e", probe=False, cameras=None, operator={"estop": "/estop"}, **changes))
    arm.talks = False
    arm.run(2.0)
    arm.commands.clear()
    arm.place, arm.talks = 0.9, True
    while not arm.commands:
        arm.run(0.01)
    np.testing.assert_allclose(arm.commands[0], [0.9] * 5 + [0.1], atol=1e-2)


def test_commands_continue_during_a_short_silence(arm: ArmBench) -> None:
    arm.talks = False
    arm.run(0.5)
    arm.commands.clear()
    arm.run(0.3)
    assert len(arm.commands) == 30
    assert arm.bridge.core.state == State.ACTIVE


def test_a_label_during_a_silence_is_recorded_when_the_arm_is_back(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, "ur5e", probe=False, cameras=None, operator={"estop": "/estop", "label": "/label"})
    arm, labels = start_arm(robot), []
    note = lambda message, *_: labels.append(ControlStep.from_json(message.data).label)  # noqa: E731
    arm.node.create_subscription(STEPS, "std_msgs/msg/String", "command", note)
    arm.talks = False
    arm.run(2.0)
    arm.node.create_publisher("/label", "std_msgs/msg/String", "command").publish(
        arm.node.messages.make("std_msgs/msg/String", data="failure")
    )
    arm.run(0.5)
    arm.talks = True
    arm.run(1.0)
    assert [label for label in labels if label] == ["failure"]
    assert arm.bridge.core.mode == Mode.HOLD


def test_an_arm_in_hold_stays_in_hold_after_a_silence(arm: ArmBench) -> None:
    assert arm.bridge.controller is not None
    arm.bridge.controller.hold()
    arm.run(0.2)
    arm.talks = False
    arm.run(2.0)
    arm.talks = True
    arm.run(1.0)
    assert arm.bridge.core.state == State.ACTIVE and arm.bridge.core.mode == Mode.HOLD
