"""Checks before a robot moves: each refusal is one line with a remedy, and nothing is commanded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge import running
from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.bridge.bridge_factory import choose_settings, make_core_settings
from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.running import check_bridge, run_bridge
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
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
COMMAND = "std_msgs/msg/Float64MultiArray"
LONG = replace(SPEC, horizon=50, executed=50)
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
)
def test_missing_and_incompatible_topics(description: RobotDescription, code: str, data: list[str]) -> None:
    assert_refused(RealTimeBench(StillPolicy(), description=description), code, *data)


def test_unusable_observations() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.robot.set_faults(FaultsNode(states="missing_joint"))
    assert_refused(bench, "message-unusable", "finger2")
    policy = StillPolicy(raises=UserError("no such word", code="word-unknown"))
    assert_refused(RealTimeBench(policy), "word-unknown", "no such word")


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


@pytest.mark.parametrize(
    ("topic", "type_name", "qos", "code", "data"),
    [
        ("/joint_states", "sensor_msgs/msg/JointState", "state", "topic-several-publishers", "/operator and /robot"),
        ("/command", COMMAND, "command", "command-rival", "/operator"),
        ("/estop", "std_msgs/msg/Bool", "command", "estop-not-received", "volatile"),
        ("/estop", "std_msgs/msg/String", "latched", "estop-not-received", "std_msgs/msg/String"),
    ],
)
def test_publishers_that_contradict_the_robot(topic: str, type_name: str, qos: str, code: str, data: str) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.node.create_publisher(topic, type_name, qos)
    assert_refused(bench, code, topic, data)


def test_a_pressed_emergency_stop() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=True)
    assert_refused(bench, "estop-pressed", "/estop", "/operator")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("topic", "type_name", "qos", "problem", "past"),
    [
        ("/command", COMMAND, "command", "/command: /operator", "/command: another node"),
        ("/estop", "std_msgs/msg/Bool", "command", "volatile", "emergency stop was not received"),
        ("/estop", "std_msgs/msg/String", "latched", "std_msgs/msg/String", "emergency stop was not received"),
    ],
)
def test_the_robot_holds_until_a_faulty_publisher_ends_and_run_is_requested(
    topic: str, type_name: str, qos: str, problem: str, past: str
) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.2)

    def check() -> tuple[str, str]:
        bench.bridge.check_topics()
        bench.run(0.1)
        return bench.bridge.describe()["mode"], bench.why

    assert check()[0] == "run"
    faulty = bench.node.create_publisher(topic, type_name, qos)
    mode, why = check()
    assert mode == "hold" and problem in why
    bench.bridge.operator.request_mode(Mode.RUN)
    assert check()[0] == "hold", "the other publisher is still there"
    faulty.close()
    mode, why = check()
    assert mode == "hold" and past in why and problem not in why, "no mode was requested"
    bench.bridge.operator.request_mode(Mode.RUN)
    check()
    mode, why = check()
    assert mode == "run" and past not in why


@pytest.mark.thorough
def test_a_robot_that_is_measured_with_another_sign_is_deactivated_by_the_probe() -> None:
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


@pytest.mark.parametrize(
    ("spec", "code", "data"),
    [
        (replace(SPEC, control_hz=25.0), "policy-does-not-fit", "25"),
        (replace(SPEC, control_hz=None), "policy-control-rate-missing", "12.5"),
        (None, "policy-description-missing", ""),
    ],
)
def test_a_policy_that_contradicts_the_robot(spec: PolicyDescription | None, code: str, data: str) -> None:
    with refuses(code, data, "ws://here"):
        check_served_policy(spec, ROBOT, "ws://here")


@pytest.mark.parametrize(
    ("config", "latency", "said"),
    [
        (CONFIG, 0.3, "needs chunks of 8 actions, and this policy predicts 5"),
        (replace(CONFIG, replan=5), 0.07, "needs chunks of 6 actions"),
        (replace(CONFIG, strategy="prefix"), 0.07, "is trained on prefixes of 0 actions"),
    ],
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


def test_limits_of_open_loop_motion_come_from_the_robots_file() -> None:
    made = choose_settings(CONFIG, ROBOT, LONG, [0.01])
    assert made.budget == 12 and made.strategy == "naive"
    stop = replace(CONFIG, strategy="stop")
    assert choose_settings(stop, ROBOT, LONG, [0.01]).replan == 12
    still = choose_settings(replace(CONFIG, lockstep=True), ROBOT, LONG, [])
    assert (still.replan, still.strategy) == (50, "stop"), "time stands still between commands"
    with refuses("replan-too-long", "open_loop_s=1"):
        choose_settings(replace(stop, replan=20), ROBOT, LONG, [0.01])
    with refuses("latency-too-long", "open_loop_s"):
        choose_settings(replace(CONFIG, replan=12), ROBOT, LONG, [0.01])
    with refuses("latency-too-long", "silence_s=0.2"):
        choose_settings(CONFIG, replace(ROBOT, silence_s=0.2), LONG, [0.3])


@pytest.mark.parametrize(
    ("config", "code", "data"),
    [
        (replace(CONFIG, policy="runs/demo"), "policy-address-invalid", "policy=runs/demo"),
        (replace(CONFIG, robot="no_such_robot"), "robot-unknown", "no_such_robot"),
        (replace(CONFIG, lockstep=True, dry_run=True), "keys-contradict", "dry_run=true"),
        (replace(CONFIG, record="."), "output-exists", "."),
    ],
)
def test_settings_that_do_not_fit_together(config: BridgeConfig, code: str, data: str) -> None:
    with refuses(code, data):
        check_bridge(config)


def test_a_real_robot_requires_its_dead_man_s_switch() -> None:
    bench = RealTimeBench(StillPolicy())
    real = replace(ROBOT, operator=replace(ROBOT.operator, reset="", outcome=""))
    with refuses("deadman-required", "deadman=false", "tabletop"):
        make_core_settings(real, replace(CONFIG, deadman=False), bench.bridge.latest)


def test_a_refused_bridge_leaves_no_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bus = Bus(lambda: START_NS)
    monkeypatch.setattr(running, "open_policy", lambda *_: StillPolicy())
    monkeypatch.setattr(running, "open_transport", lambda *_: InProcessTransport(bus, "policy_bridge"))
    with refuses("topic-without-publisher"):
        run_bridge(replace(CONFIG, record=str(tmp_path / "recording")))
    assert not (tmp_path / "recording").exists()
