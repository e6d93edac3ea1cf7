"""What keeps a robot from being moved: each fault is one line with its remedy, and nothing is commanded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge import running
from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.executor_settings import choose_settings
from embodied_rl.deployment.bridge.parts import make_core_settings
from embodied_rl.deployment.bridge.running import Bridge, check_bridge, run_bridge
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import find_robot_file, load_robot
from embodied_rl.deployment.simulated_robot.node import SimulatedRobot
from embodied_rl.deployment.simulated_robot.settings import RobotSettings
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.schema import BridgeConfig, FaultsNode
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.bridging import RealTimeBench
from tests.support.robots import describe_policy
from tests.support.transports import START_NS

ROBOT = load_robot("tabletop")
SPEC = describe_policy(ROBOT)
CONFIG = BridgeConfig("tabletop", "ws://127.0.0.1:1", patience=0.2)


class StillPolicy:
    """Answers that the robot shall stand still; takes what it is told to raise."""

    def __init__(self, spec: PolicyDescription = SPEC, raises: Exception | None = None) -> None:
        self.spec, self.raises, self.version, self.deadline = spec, raises, 1, 1.0

    def infer(self, observation: Any, keys: Any = None, *others: Any, **more: Any) -> Any:
        if self.raises is not None:
            raise self.raises
        return np.zeros((1, self.spec.horizon, 4), np.float32)

    def close(self) -> None: ...


def refuse(bench: RealTimeBench) -> str:
    """Prepare in vain; return the one line that is said, after which nothing was commanded."""
    with pytest.raises(UserError) as error:
        bench.prepare()
    bench.run(0.1)
    assert bench.commands == []
    assert "\n" not in str(error.value)
    return str(error.value)


def with_topic(**changes: Any) -> RobotDescription:
    """The robot, with another topic of joint states."""
    return replace(ROBOT, topics={**ROBOT.topics, "joints": replace(ROBOT.topics["joints"], **changes)})


def test_a_sound_robot_and_policy_run() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.5)
    assert bench.bridge.describe()["mode"] == "run"
    assert len(bench.commands) > 20


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
    ("description", "said"),
    [
        (with_topic(name="/nowhere"), "/nowhere: nobody publishes it. Start the robot's driver"),
        (
            with_topic(type_name="sensor_msgs/msg/BatteryState"),
            "the publisher's type is sensor_msgs/msg/JointState, the subscription's sensor_msgs/msg/BatteryState",
        ),
        (replace(ROBOT, command=replace(ROBOT.command, name="/nobody")), "controller, or correct command.topic."),
    ],
    ids=["topic", "type", "command"],
)
def test_topics_that_are_not_there(description: RobotDescription, said: str) -> None:
    assert said in refuse(RealTimeBench(StillPolicy(), description=description))


def test_a_quality_that_does_not_fit() -> None:
    topics = {**ROBOT.topics, "front": replace(ROBOT.topics["front"], qos="command")}
    said = refuse(RealTimeBench(StillPolicy(), description=replace(ROBOT, topics=topics)))
    assert "/camera/front/image_raw: no message arrives, because the publisher offers best_effort" in said
    assert "Correct topics.front" in said


def test_a_joint_that_is_missing() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.robot.set_faults(FaultsNode(states="missing_joint"))
    assert "finger2 is not among its joints" in refuse(bench)


def test_joints_in_another_order_are_found_by_their_names() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.robot.set_faults(FaultsNode(states="other_order"))
    bench.prepare()
    kept = bench.bridge.inbox.keep()
    joints = dict(zip(kept["joints"].name, kept["joints"].position, strict=True))
    (state,) = bench.bridge.inbox.observe(kept, "").state
    assert state[3] == np.float32(joints["finger1"] + joints["finger2"]) and list(joints)[-1] != "finger2"


def test_two_robots_that_say_where_they_are() -> None:
    bench = RealTimeBench(StillPolicy())
    second = bench.node.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
    assert "/joint_states: 2 publish it, /operator and /robot, and what they say would be mixed" in refuse(bench)
    second.close()


def test_a_robot_in_lockstep_is_no_robot_in_real_time() -> None:
    bench = RealTimeBench(StillPolicy(), {"lockstep": True})
    assert "the robot's time goes on by itself (/clock). Start the robot with lockstep=true" in refuse(bench)
    now = [START_NS]
    bus = Bus(lambda: now[0])
    servo = TabletopServo(TabletopConfig())
    robot = SimulatedRobot(servo, ROBOT, InProcessTransport(bus, "robot"), RobotSettings(True))
    bridge = Bridge(CONFIG, ROBOT, InProcessTransport(bus, "policy_bridge"), StillPolicy())  # pyright: ignore[reportArgumentType]
    robot.begin(Episode(0, 0, 0))
    robot.repeat()
    with pytest.raises(UserError, match=r"/clock stands still for .* Start the robot without lockstep=true, or give"):
        bridge.prepare()


def test_a_second_publisher_of_commands() -> None:
    bench = RealTimeBench(StillPolicy())
    rival = bench.node.create_publisher("/command", "std_msgs/msg/Float64MultiArray", "command")
    assert "/operator gives commands, too. A robot takes commands of one" in refuse(bench)
    rival.close()


def test_a_second_publisher_while_it_runs_makes_the_robot_hold() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.2)
    rival = bench.node.create_publisher("/command", "std_msgs/msg/Float64MultiArray", "command")
    bench.bridge.look_at_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold"
    assert "gives commands, too" in bench.why
    bench.bridge.operator.ask(Mode.RUN)
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold", "the other one is still there"
    rival.close()
    bench.bridge.look_at_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold", "nobody asked for more"
    assert "somebody else gave commands" in bench.why
    bench.bridge.operator.ask(Mode.RUN)
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "run"
    bench.bridge.look_at_topics()
    assert "commands" not in bench.why


def test_a_pressed_emergency_stop() -> None:
    bench = RealTimeBench(StillPolicy())
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=True)
    assert "/estop: the emergency stop is pressed by /operator. Release it there" in refuse(bench)


UNHEARD = [
    ("std_msgs/msg/Bool", "command", "the publisher offers volatile, the subscription requests transient_local"),
    ("std_msgs/msg/String", "latched", "the publisher's type is std_msgs/msg/String"),
]


@pytest.mark.parametrize(("type_name", "qos", "said"), UNHEARD)
def test_an_emergency_stop_that_would_not_be_heard(type_name: str, qos: str, said: str) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.node.create_publisher("/estop", type_name, qos)
    found = refuse(bench)
    assert said in found and "/estop: " in found and "Publish std_msgs/msg/Bool there, reliable and transient" in found


@pytest.mark.parametrize(("type_name", "qos", "said"), UNHEARD)
def test_an_emergency_stop_that_is_not_heard_while_it_runs_makes_the_robot_hold(
    type_name: str, qos: str, said: str
) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.prepare()
    bench.run(0.2)
    bench.bridge.look_at_topics()
    assert bench.bridge.describe()["mode"] == "run"
    button = bench.node.create_publisher("/estop", type_name, qos)
    bench.bridge.look_at_topics()
    bench.run(0.1)
    assert bench.bridge.describe()["mode"] == "hold" and said in bench.why
    button.close()
    bench.bridge.look_at_topics()
    bench.run(0.1)
    assert "an emergency stop was there that could not be heard: hold until run is asked for" in bench.why
    bench.bridge.operator.ask(Mode.RUN)
    bench.run(0.1)
    bench.bridge.look_at_topics()
    assert bench.bridge.describe()["mode"] == "run" and "emergency" not in bench.why


def test_two_who_give_the_emergency_stop_where_nobody_knows_who_spoke(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RealTimeBench(StillPolicy())
    bench.say("/estop", "std_msgs/msg/Bool", "latched", data=False)
    monkeypatch.setattr(InProcessTransport, "identifies_publishers", False)
    assert bench.prepare() is None, "one alone is no question"
    bench = RealTimeBench(StillPolicy())
    for _ in range(2):
        bench.say("/estop", "std_msgs/msg/Bool", "latched", data=False)
    said = refuse(bench)
    assert "/estop: 2 publishers give the emergency stop (/operator)" in said and "Let one node publish it" in said


def test_words_that_nobody_says() -> None:
    quiet = replace(ROBOT, operator=replace(ROBOT.operator, instruction=""))
    assert "Say them: instruction=…" in refuse(RealTimeBench(StillPolicy(), description=quiet))
    RealTimeBench(StillPolicy(), {"instruction": "push"}, description=quiet).prepare()


def test_a_policy_that_refuses_the_observation() -> None:
    assert "no such word" in refuse(RealTimeBench(StillPolicy(raises=UserError("no such word"))))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"action_names": ("x", "y", "z", "gripper")}, "The actions differ: the policy has x, y, z"),
        ({"action_high": (0.3, 0.3, 0.3, 1.0)}, "Action 'move_x' goes from -0.03 to 0.3"),
        ({"state_names": SPEC.state_names[::-1]}, "in this order"),
        ({"cameras": {"wrist": (64, 64)}}, "wrist"),
        ({"control_hz": 25.0}, "25"),
        ({"control_hz": None}, "does not say how many actions a second"),
        ({"state_units": "mm"}, "state is in mm"),
    ],
    ids=["another robot", "limits", "order", "camera", "rate", "no rate", "units"],
)
def test_a_policy_that_contradicts_the_robot(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="tabletop") as error:
        check_served_policy(replace(SPEC, **change), ROBOT, "ws://here")
    assert said in str(error.value)
    assert "ws://here" in str(error.value)


def test_a_server_that_says_nothing_of_its_policy() -> None:
    with pytest.raises(UserError, match="not moved on a guess"):
        check_served_policy(None, ROBOT, "ws://here")


@pytest.mark.parametrize(
    ("config", "latency", "said"),
    [
        (CONFIG, 0.3, "needs chunks of 8 actions, and this policy predicts 5"),
        (replace(CONFIG, replan=5), 0.07, "needs chunks of 6 actions"),
        (replace(CONFIG, strategy="prefix"), 0.07, "is trained to continue 0 actions"),
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
    ("config", "said"),
    [
        (replace(CONFIG, policy="runs/demo"), "is no address of a policy server"),
        (replace(CONFIG, robot="no_such_robot"), "no such robot"),
        (replace(CONFIG, lockstep=True, dry_run=True), "dry_run=true gives none"),
        (replace(CONFIG, record="."), r"^\. exists and is not overwritten"),
    ],
)
def test_settings_that_cannot_be(config: BridgeConfig, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_bridge(config)


def test_limits_the_wrong_way_round(tmp_path: Any) -> None:
    text = find_robot_file("tabletop").read_text().replace("low: -1, high: 1, speed: 26", "low: 1, high: -1, speed: 26")
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="must be below"):
        check_bridge(replace(CONFIG, robot=str(file)))


def test_security_that_dds_from_pip_has_not() -> None:
    with pytest.raises(UserError, match="ROS_SECURITY_ENABLE"):
        read_environment({"ROS_SECURITY_ENABLE": "true"})


def test_only_a_simulated_robot_goes_without_its_dead_man_s_switch() -> None:
    bench = RealTimeBench(StillPolicy())
    real = replace(ROBOT, operator=replace(ROBOT.operator, reset="", outcome=""))
    with pytest.raises(UserError, match="no simulated robot"):
        make_core_settings(real, replace(CONFIG, deadman=False), bench.bridge.inbox)


def test_a_dead_man_s_switch_that_nobody_holds() -> None:
    bench = RealTimeBench(StillPolicy(), {"deadman": True})
    bench.prepare()
    bench.run(0.3)
    assert bench.bridge.describe()["mode"] == "hold"
    assert "dead man's switch" in bench.why


def test_a_bridge_that_is_refused_leaves_no_recording_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bus = Bus(lambda: START_NS)
    monkeypatch.setattr(running, "open_policy", lambda *_: (StillPolicy(), SPEC))
    monkeypatch.setattr(running, "open_transport", lambda *_: InProcessTransport(bus, "policy_bridge"))
    with pytest.raises(UserError, match="nobody publishes it"):
        run_bridge(replace(CONFIG, record=str(tmp_path / "recording")))
    assert not (tmp_path / "recording").exists()
