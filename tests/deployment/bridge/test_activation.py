"""Checks before a robot moves: each refusal is one line with a remedy, and nothing is commanded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge import running
from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.bridge.bridge_factory import make_core_settings
from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.executor_settings import choose_settings
from embodied_rl.deployment.bridge.running import check_bridge, run_bridge
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import find_robot_file, load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.schema import BridgeConfig, FaultsNode
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.bridging import RealTimeBench
from tests.support.refusals import refuses
from tests.support.robots import describe_policy
from tests.support.transports import START_NS

ROBOT = load_robot("tabletop")
SPEC = describe_policy(ROBOT)
CONFIG = BridgeConfig("tabletop", "ws://127.0.0.1:1", patience=0.2)


class StillPolicy:
    """Commands the robot to stand still, or raises `raises`."""

    def __init__(self, spec: PolicyDescription = SPEC, raises: Exception | None = None) -> None:
        self.spec, self.raises, self.version, self.deadline = spec, raises, 1, 1.0

    def infer(self, observation: Any, keys: Any = None, *others: Any, **more: Any) -> Any:
        if self.raises is not None:
            raise self.raises
        return np.zeros((1, self.spec.horizon, 4), np.float32)

    def close(self) -> None: ...


def assert_refused(bench: RealTimeBench, code: str, *data: object) -> None:
    """Prepare and check that this is refused in one line and that nothing is commanded."""
    with refuses(code, *data) as error:
        bench.prepare()
    bench.run(0.1)
    assert bench.commands == []
    assert "\n" not in str(error.value)


def with_topic(**changes: Any) -> RobotDescription:
    """Return the robot with another topic of joint states."""
    return replace(ROBOT, topics={**ROBOT.topics, "joints": replace(ROBOT.topics["joints"], **changes)})


def test_a_sound_robot_and_policy_run() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.5)
    assert bench.bridge.describe()["mode"] == "run"
    assert len(bench.commands) > 20


@pytest.mark.thorough
def test_a_robot_that_is_measured_with_another_sign_is_deactivated_by_the_probe() -> None:
    bench = RealTimeBench(StillPolicy(), description=replace(ROBOT, probe=True))
    bench.prepare()
    bench.run(6.0)
    assert bench.bridge.describe()["mode"] == "run", "as the file says"
    y = ROBOT.state[1]
    turned = (ROBOT.state[0], replace(y, terms=(replace(y.terms[0], scale=-1.0),)), *ROBOT.state[2:])
    bench = RealTimeBench(StillPolicy(), description=replace(ROBOT, probe=True, state=turned))
    bench.prepare()
    begun = bench.robot.robot.read().tool[0]
    bench.run(6.0)
    assert bench.bridge.describe()["state"] == "inactive" and "move_y was commanded to move by" in bench.why
    assert np.abs(bench.robot.robot.read().tool[0] - begun).max() < 0.015
    count = len(bench.commands)
    bench.run(0.5)
    assert len(bench.commands) == count


@pytest.mark.parametrize(
    ("description", "code", "data"),
    [
        (with_topic(name="/nowhere"), "topic-without-publisher", ["/nowhere", "topics.joints.name"]),
        (
            with_topic(type_name="sensor_msgs/msg/BatteryState"),
            "topic-incompatible",
            ["sensor_msgs/msg/JointState", "sensor_msgs/msg/BatteryState", "topics.joints"],
        ),
        (
            replace(ROBOT, topics={**ROBOT.topics, "front": replace(ROBOT.topics["front"], qos="command")}),
            "topic-incompatible",
            ["/camera/front/image_raw", "best_effort", "topics.front"],
        ),
        (
            replace(ROBOT, command=replace(ROBOT.command, name="/nobody")),
            "command-topic-without-subscriber",
            ["/nobody", "command.topic"],
        ),
    ],
    ids=["topic", "type", "qos", "command"],
)
def test_missing_and_incompatible_topics(description: RobotDescription, code: str, data: list[str]) -> None:
    assert_refused(RealTimeBench(StillPolicy(), description=description), code, *data)


def test_a_missing_joint() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.robot.set_faults(FaultsNode(states="missing_joint"))
    assert_refused(bench, "message-unusable", "finger2")


def test_joints_in_another_order_are_found_by_their_names() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.robot.set_faults(FaultsNode(states="other_order"))
    bench.prepare()
    kept = bench.bridge.latest.snapshot()
    joints = dict(zip(kept["joints"].name, kept["joints"].position, strict=True))
    (state,) = bench.bridge.latest.observe(kept, "").state
    assert state[3] == np.float32(joints["finger1"] + joints["finger2"]) and list(joints)[-1] != "finger2"


def test_a_second_publisher_of_a_state_topic() -> None:
    bench = RealTimeBench(StillPolicy())
    second = bench.node.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
    assert_refused(bench, "topic-several-publishers", "/joint_states", "/operator and /robot")
    second.close()


def test_lockstep_must_match_the_robot() -> None:
    bench = RealTimeBench(StillPolicy(), {"lockstep": True})
    assert_refused(bench, "lockstep-mismatch", "/clock", "with lockstep=true")
    now = [START_NS]
    bus = Bus(lambda: now[0])
    servo = TabletopServo(TabletopConfig())
    robot = SimulatedRobot(servo, ROBOT, InProcessTransport(bus, "robot"), RobotSettings(True))
    bridge = Bridge(CONFIG, ROBOT, InProcessTransport(bus, "policy_bridge"), StillPolicy())  # pyright: ignore[reportArgumentType]
    robot.begin(Episode(0, 0, 0))
    robot.repeat()
    with refuses("lockstep-mismatch", "/clock", "without lockstep=true"):
        bridge.prepare()


def test_a_second_publisher_of_commands() -> None:
    bench = RealTimeBench(StillPolicy())
    rival = bench.node.create_publisher("/command", "std_msgs/msg/Float64MultiArray", "command")
    assert_refused(bench, "command-rival", "/command", "/operator")
    rival.close()


def test_a_second_publisher_while_it_runs_makes_the_robot_hold() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.2)
    rival = bench.node.create_publisher("/command", "std_msgs/msg/Float64MultiArray", "command")
    bench.bridge.check_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold"
    assert "/command: /operator" in bench.why
    bench.bridge.operator.request_mode(Mode.RUN)
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold", "the other publisher is still there"
    rival.close()
    bench.bridge.check_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold", "no mode was requested"
    assert "/command: " in bench.why
    bench.bridge.operator.request_mode(Mode.RUN)
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "run"
    bench.bridge.check_topics()
    assert "/command" not in bench.why


def test_a_pressed_emergency_stop() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=True)
    assert_refused(bench, "estop-pressed", "/estop", "/operator")


INCOMPATIBLE_STOPS = [
    ("std_msgs/msg/Bool", "command", "volatile"),
    ("std_msgs/msg/String", "latched", "std_msgs/msg/String"),
]


@pytest.mark.parametrize(("type_name", "qos", "problem"), INCOMPATIBLE_STOPS)
def test_an_emergency_stop_that_is_not_received(type_name: str, qos: str, problem: str) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.node.create_publisher("/estop", type_name, qos)
    assert_refused(bench, "estop-not-received", "/estop", problem, "std_msgs/msg/Bool")


@pytest.mark.parametrize(("type_name", "qos", "problem"), INCOMPATIBLE_STOPS)
def test_the_robot_holds_while_an_emergency_stop_is_not_received(type_name: str, qos: str, problem: str) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.2)
    bench.bridge.check_topics()
    assert bench.bridge.describe()["mode"] == "run"
    button = bench.node.create_publisher("/estop", type_name, qos)
    bench.bridge.check_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold" and problem in bench.why
    button.close()
    bench.bridge.check_topics()
    bench.run(0.1)
    assert "emergency stop" in bench.why and problem not in bench.why
    bench.bridge.operator.request_mode(Mode.RUN)
    bench.run(0.1)
    bench.bridge.check_topics()
    assert bench.bridge.describe()["mode"] == "run" and "emergency" not in bench.why


def test_several_emergency_stops_that_the_transport_cannot_distinguish(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=False)
    monkeypatch.setattr(InProcessTransport, "identifies_publishers", False)
    assert bench.prepare() is None, "a single one is accepted"
    bench = RealTimeBench(StillPolicy())
    for _ in range(2):
        bench.say("/estop", "std_msgs/msg/Bool", "latched", data=False)
    assert_refused(bench, "estop-publishers-ambiguous", "/estop", 2, "/operator", "transport=dds")


def test_a_missing_task_instruction() -> None:
    quiet = replace(ROBOT, operator=replace(ROBOT.operator, instruction=""))
    assert_refused(RealTimeBench(StillPolicy(), description=quiet), "instruction-missing", "instruction=…")
    RealTimeBench(StillPolicy(), {"instruction": "push"}, description=quiet).prepare()


def test_a_policy_that_refuses_the_observation() -> None:
    policy = StillPolicy(raises=UserError("no such word", code="word-unknown"))
    assert_refused(RealTimeBench(policy), "word-unknown", "no such word")


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        ({"action_names": ("x", "y", "z", "gripper")}, "policy-does-not-fit", "x, y, z"),
        ({"action_high": (0.3, 0.3, 0.3, 1.0)}, "policy-does-not-fit", "'move_x' goes from -0.03 to 0.3"),
        ({"state_names": SPEC.state_names[::-1]}, "policy-does-not-fit", "in this order"),
        ({"cameras": {"wrist": (64, 64)}}, "policy-does-not-fit", "wrist"),
        ({"control_hz": 25.0}, "policy-does-not-fit", "25"),
        ({"control_hz": None}, "policy-control-rate-missing", "12.5"),
        ({"state_units": "mm"}, "policy-does-not-fit", "mm"),
    ],
    ids=["another robot", "limits", "order", "camera", "rate", "no rate", "units"],
)
def test_a_policy_that_contradicts_the_robot(change: dict[str, Any], code: str, data: str) -> None:
    with refuses(code, data, "tabletop", "ws://here"):
        check_served_policy(replace(SPEC, **change), ROBOT, "ws://here")


def test_a_server_without_a_description_of_its_policy() -> None:
    with refuses("policy-description-missing", "ws://here"):
        check_served_policy(None, ROBOT, "ws://here")


@pytest.mark.parametrize(
    ("config", "latency", "said"),
    [
        (CONFIG, 0.3, "needs chunks of 8 actions, and this policy predicts 5"),
        (replace(CONFIG, replan=5), 0.07, "needs chunks of 6 actions"),
        (replace(CONFIG, strategy="prefix"), 0.07, "is trained on prefixes of 0 actions"),
    ],
    ids=["slow", "seldom", "untrained"],
)
def test_a_budget_below_latency_and_replanning(config: BridgeConfig, latency: float, said: str) -> None:
    with pytest.raises(UserError, match=said):
        choose_settings(config, ROBOT, SPEC, [0.01] * 10 + [latency] * 10)


def test_settings_follow_from_the_latency() -> None:
    quick = choose_settings(CONFIG, ROBOT, SPEC, [0.02] * 20)
    assert (quick.strategy, quick.delay, quick.replan) == ("naive", 1, 1)
    trained = choose_settings(CONFIG, ROBOT, replace(SPEC, prefix_trained_to=4, horizon=10), [0.2] * 20)
    assert (trained.strategy, trained.delay, trained.replan, trained.longest_prefix) == ("prefix", 3, 3, 4)
    still = choose_settings(replace(CONFIG, lockstep=True), ROBOT, SPEC, [])
    assert (still.strategy, still.delay, still.replan) == ("stop", 0, 5)


@pytest.mark.parametrize(
    ("config", "code", "data"),
    [
        (replace(CONFIG, policy="runs/demo"), "policy-address-invalid", "policy=runs/demo"),
        (replace(CONFIG, robot="no_such_robot"), "robot-unknown", "no_such_robot"),
        (replace(CONFIG, lockstep=True, dry_run=True), "keys-contradict", "dry_run=true"),
    ],
)
def test_settings_that_do_not_fit_together(config: BridgeConfig, code: str, data: str) -> None:
    with refuses(code, data):
        check_bridge(config)


def test_an_existing_folder_of_a_recording_is_refused() -> None:
    with refuses("output-exists", "."):
        check_bridge(replace(CONFIG, record="."))


def test_exchanged_limits(tmp_path: Any) -> None:
    text = find_robot_file("tabletop").read_text().replace("low: -1, high: 1, speed: 26", "low: 1, high: -1, speed: 26")
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with refuses("robot-limits-invalid", "low=1", "high=-1"):
        check_bridge(replace(CONFIG, robot=str(file)))


def test_security_of_ros_is_not_supported() -> None:
    with pytest.raises(UserError, match="ROS_SECURITY_ENABLE"):
        read_environment({"ROS_SECURITY_ENABLE": "true"})


def test_a_real_robot_requires_its_dead_man_s_switch() -> None:
    bench = RealTimeBench(StillPolicy())
    real = replace(ROBOT, operator=replace(ROBOT.operator, reset="", outcome=""))
    with refuses("deadman-required", "deadman=false", "tabletop"):
        make_core_settings(real, replace(CONFIG, deadman=False), bench.bridge.latest)


def test_a_released_dead_man_s_switch_makes_the_robot_hold() -> None:
    bench = RealTimeBench(StillPolicy(), {"deadman": True})
    bench.prepare()
    bench.run(0.3)
    assert bench.bridge.describe()["mode"] == "hold"
    assert "dead man's switch" in bench.why


def test_a_refused_bridge_leaves_no_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bus = Bus(lambda: START_NS)
    monkeypatch.setattr(running, "open_policy", lambda *_: (StillPolicy(), SPEC))
    monkeypatch.setattr(running, "open_transport", lambda *_: InProcessTransport(bus, "policy_bridge"))
    with refuses("topic-without-publisher"):
        run_bridge(replace(CONFIG, record=str(tmp_path / "recording")))
    assert not (tmp_path / "recording").exists()
