"""The bridge in real time with a clock that the test sets: causes of HOLD, and stops by a ramp."""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.benchmarks.robot_runs.episode_runner import list_reasons
from embodied_rl.deployment.bridge.bridge_factory import make_core_settings
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.pacing import read_seconds
from embodied_rl.deployment.execution.operator_device import OperatorDevice
from embodied_rl.deployment.policy_client.client_messages import NoPolicyAnswer
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.sim import Episode
from embodied_rl.schema import BridgeConfig, FaultsNode
from tests.deployment.bridge.test_activation import ROBOT, SPEC, StillPolicy
from tests.support.bridging import RealTimeBench
from tests.support.transports import START_NS


class MovingPolicy(StillPolicy):
    """Moves the tool to the left, and closes the gripper."""

    def infer(self, observation: Any, keys: Any = None, *others: Any, **more: Any) -> Any:
        super().infer(observation)
        return np.tile(np.array([0.0, 0.004, 0.0, -1.0], np.float32), (1, SPEC.horizon, 1))


@pytest.fixture
def bench() -> RealTimeBench:
    made = RealTimeBench(MovingPolicy())
    made.prepare()
    made.run(0.4)
    np.testing.assert_allclose(made.speeds, [0, 0.05, 0], atol=1e-6)
    return made


def is_still(bench: RealTimeBench) -> bool:
    return bool((bench.speeds == 0).all())


def assert_ramped(bench: RealTimeBench) -> None:
    """No command changed faster than the robot's limits allow."""
    speeds = np.array(bench.commands)[:, :3]
    limits = ROBOT.limits.list_values("acceleration")[:3]
    assert (np.abs(np.diff(speeds, axis=0)) * ROBOT.command_hz <= np.array(limits) * (1 + 1e-6)).all()


@pytest.mark.thorough
def test_the_robot_stops_while_the_policy_fails(bench: RealTimeBench) -> None:
    bench.policy.raises = NoPolicyAnswer("the server is away")
    bench.run(1.0)
    assert is_still(bench)
    assert bench.bridge.describe()["mode"] == "run"
    assert "the server is away" in bench.why
    assert_ramped(bench)
    bench.policy.raises = None
    bench.run(1.0)
    np.testing.assert_allclose(bench.speeds, [0, 0.05, 0], atol=1e-6)
    assert "away" not in bench.why


WITH_BUTTONS = replace(
    ROBOT,
    operator=replace(
        ROBOT.operator,
        deadman="/deadman",
        deadman_timeout_s=0.2,
        teleop="/joy",
        teleop_type="sensor_msgs/msg/Joy",
        label="/label",
        device=OperatorDevice(estop=0, reset=1, hold=2, run=3),
    ),
)


def press(bench: RealTimeBench, *buttons: int) -> None:
    """Press buttons of a joystick and release them."""
    for down in (buttons, ()):
        pressed = np.array([int(each in down) for each in range(4)], np.int32)
        bench.say("/joy", "sensor_msgs/msg/Joy", "sensor_data", axes=np.zeros(0, np.float32), buttons=pressed)
        bench.run(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "hold", "label"])
def test_a_stop_before_the_start_of_the_policy_is_kept(how: str) -> None:
    bench = RealTimeBench(MovingPolicy(), {"deadman": True}, description=WITH_BUTTONS)
    bench.prepare()
    press(bench)
    bench.run(0.2)
    assert bench.bridge.describe()["mode"] == "hold", "the dead man's switch is released"
    if how == "label":
        bench.say("/label", "std_msgs/msg/String", "command", data="abort")
        bench.run(0.05)
    else:
        press(bench, {"stop": 0, "hold": 2}[how])
        press(bench, 1)
    for _ in range(3):
        bench.say("/deadman", "std_msgs/msg/Bool", "deadman", data=True)
        bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold"
    assert (np.array(bench.commands)[:, :3] == 0).all()
    bench.say("/deadman", "std_msgs/msg/Bool", "deadman", data=True)
    press(bench, 3)
    assert bench.bridge.describe()["mode"] == "run", "the operator requested it"


@pytest.mark.thorough
def test_each_publisher_must_release_its_emergency_stop() -> None:
    bench = RealTimeBench(MovingPolicy(), description=WITH_BUTTONS)
    bench.prepare()
    press(bench)
    bench.run(0.2)
    assert bench.bridge.describe()["mode"] == "run"
    first, second = (bench.node.create_publisher("/estop", "std_msgs/msg/Bool", "latched") for _ in range(2))

    def say_and_reset(*said: tuple[Any, bool]) -> str:
        for publisher, pressed in said:
            publisher.publish(bench.node.messages.make("std_msgs/msg/Bool", data=pressed))
        press(bench, 1)
        return bench.bridge.describe()["mode"]

    assert say_and_reset((first, True), (second, False)) == "estop"
    assert "/estop: the emergency stop is pressed by /operator, and released there" in bench.why
    assert say_and_reset((second, True)) == "estop"
    assert say_and_reset((first, False)) == "estop"
    first.close()
    assert say_and_reset((second, False)) == "hold"
    assert "/estop" not in bench.why


def test_an_emergency_stop_can_be_reset_before_an_episode() -> None:
    bench = RealTimeBench(MovingPolicy(), {"episodes": True}, description=WITH_BUTTONS)
    bench.prepare()
    request_episode(bench, 1)
    press(bench)
    press(bench, 0)
    assert bench.bridge.describe()["mode"] == "estop"
    request_episode(bench, 2)
    assert bench.why and bench.bridge.describe()["mode"] == "estop"
    press(bench, 1)
    bench.run(0.2)
    assert bench.bridge.describe()["mode"] == "run"


def request_episode(bench: RealTimeBench, index: int) -> None:
    asked = {"index": index, "task": 0, "seed": 3, "initial_state": None, "split": "train"}
    bench.say("/simulation/reset", "std_msgs/msg/String", "latched", data=json.dumps(asked))
    bench.run(0.2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"cameras": "dead"}, "front"),
        ({"cameras": "frozen"}, "front"),
        ({"states": "nan"}, "tool"),
        ({"states": "delayed", "delay": 0.5}, "joints"),
    ],
)
def test_the_robot_stops_while_a_sensor_fails(bench: RealTimeBench, fault: dict[str, Any], said: str) -> None:
    bench.robot.set_faults(FaultsNode(**fault))
    bench.run(1.2)
    assert is_still(bench)
    assert said in bench.why
    bench.robot.set_faults(FaultsNode())
    bench.run(2.0)
    np.testing.assert_allclose(bench.speeds, [0, 0.05, 0], atol=1e-6)
    assert said not in bench.why, "a past fault is not reported"
    assert_ramped(bench)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"encoding": "yuv422"}, {"height": 32}], ids=["encoding", "size"])
def test_an_unreadable_picture_stops_the_robot_in_the_next_tick(bench: RealTimeBench, changes: dict[str, Any]) -> None:
    send, broken = bench.robot.topics.send_pictures, []
    sound = bench.bridge.latest.newest["front"].message

    def spoil(pictures: Any) -> None:
        if broken:
            return
        broken.append(len(bench.commands))
        stamp = bench.bridge.latest.newest["tool"].message.header
        data = sound.data[: changes.get("height", 64) * 192]
        message = replace(sound, header=stamp, data=data, **changes)
        bench.node.create_publisher("/camera/front/image_raw", sound.__msgtype__, "sensor_data").publish(message)

    bench.robot.topics.send_pictures = spoil  # type: ignore[method-assign]
    bench.run(0.2)
    slower = [each[1] < 0.05 - 1e-6 for each in bench.commands[broken[0] :]]
    assert slower.index(True) <= 2 and is_still(bench) and "camera front" in bench.why
    bench.robot.topics.send_pictures = send  # type: ignore[method-assign]
    bench.run(1.5)
    np.testing.assert_allclose(bench.speeds, [0, 0.05, 0], atol=1e-6)


@pytest.mark.thorough
def test_pictures_with_late_stamps_are_stale_if_clocks_agree() -> None:
    bench = RealTimeBench(MovingPolicy(), description=replace(ROBOT, use_sim_time=False))
    bench.prepare()
    bench.robot.set_faults(FaultsNode(cameras="delayed", delay=1.0))
    bench.run(0.5)
    count = len(bench.commands)
    bench.run(2.5)
    assert not np.array(bench.commands[count:])[:, :3].any()
    assert "its stamp is 1." in bench.why


@pytest.mark.parametrize(
    ("robot", "changes", "lockstep", "lost_s"),
    [
        ("tabletop", {}, False, 0.1),
        ("tabletop", {}, True, None),
        ("mobile_base", {}, False, 0.5),
        ("ur5e", {}, False, 0.1),
        ("mobile_base", {"timeout_s": 0.0}, False, None),
    ],
)
def test_the_stop_timeout_of_a_robot(
    robot: str, changes: dict[str, float], lockstep: bool, lost_s: float | None
) -> None:
    known = load_robot(robot)
    known = replace(known, command=replace(known.command, **changes))
    latest = LatestMessages(InProcessTransport(Bus(lambda: START_NS)), known, lambda: 0.0)
    config = BridgeConfig(robot, "ws://in-process", lockstep=lockstep)
    assert make_core_settings(known, config, latest).lost_s == lost_s


def test_the_clock_counts_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= read_seconds() <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.thorough
def test_stopping_brings_the_robot_to_rest(bench: RealTimeBench) -> None:
    controller = bench.bridge.controller
    assert controller is not None
    left = controller.stop()
    assert not left
    bench.run(0.5)
    assert controller.stop()
    assert is_still(bench)
    assert_ramped(bench)
    count = len(bench.commands)
    bench.run(0.2)
    assert len(bench.commands) == count


@pytest.mark.thorough
def test_a_dry_run_publishes_only_its_status_and_does_not_compare_motion() -> None:
    bench = RealTimeBench(MovingPolicy(), {"dry_run": True})
    bench.prepare()
    bench.run(3.0)
    assert bench.bridge.describe()["mode"] == "run"
    assert bench.commands == []
    mine = {each.topic for each in bench.bus.publishers if each.transport.node == "policy_bridge"}
    assert mine == {"/policy_bridge/status", "/policy_bridge/steps"}
    assert not [each for each in bench.bus.publishers if each.topic == "/policy_bridge/steps" and each.past]


def test_an_episode_runs_from_its_request_to_its_outcome() -> None:
    bench = RealTimeBench(MovingPolicy(), {"episodes": True})
    bench.prepare()
    bench.run(0.3)
    assert bench.commands == []
    request_episode(bench, 4)
    bench.run(0.3)
    assert bench.robot.episode == Episode(4, 0, 3)
    assert bench.bridge.describe()["episode"] == 4
    assert len(bench.commands) > 30
    bench.run(5.0)  # its time limit
    assert bench.robot.robot.outcome is not None
    assert bench.bridge.describe()["waiting"]
    count = len(bench.commands)
    bench.run(0.2)
    assert len(bench.commands) == count


def test_reasons_are_told_apart_by_words_and_not_by_times() -> None:
    said = "waiting for the first chunk; the policy has not answered for 0.02 s; the policy has not answered for 0.03 s"
    assert list_reasons(said) == ["waiting for the first chunk", "the policy has not answered"]
