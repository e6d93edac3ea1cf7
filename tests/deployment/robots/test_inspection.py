"""Inspection of a robot's topics by the doctor, which publishes nothing."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.robots.inspection import inspect_robot
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.sim import Diagnosis
from tests.support.robots import TalkingRobot, change_robot, make_tabletop_messages
from tests.support.transports import START_NS, borrow_domain

ROBOT = load_robot("tabletop")
COMMAND = ("/command", "std_msgs/msg/Float64MultiArray")
BOOL, JOY = "std_msgs/msg/Bool", "sensor_msgs/msg/Joy"


class InspectionBench:
    """A publishing robot, a subscribed controller and the doctor, in one process."""

    def __init__(self, robot: Any = ROBOT, **options: Any) -> None:
        self.now_ns = [START_NS]
        self.bus = Bus(lambda: self.now_ns[0])
        self.robot, self.talking = robot, TalkingRobot(robot, self.bus, self.now_ns, **options)
        self.controller = InProcessTransport(self.bus, "controller")
        self.listening = self.controller.create_subscription(*COMMAND, "command", lambda *_: None)
        self.doctor = InProcessTransport(self.bus, "doctor")

    def publish_operator(self) -> None:
        for topic, kind in (("/estop", BOOL), ("/deadman", BOOL), ("/teleop", JOY)):
            self.controller.create_publisher(topic, kind, "latched")

    def examine(self) -> dict[str, Diagnosis]:
        passing = lambda seconds: self.talking.pass_time(self.doctor, seconds)  # noqa: E731
        before = self.bus.sent
        rows = inspect_robot(self.robot, self.doctor, 1.0, passing)
        mine = [each for each in self.bus.publishers if each.transport is self.doctor]
        assert not mine and self.bus.sent > before
        assert all(row.remedy for row in rows if row.status != "ok"), "each problem has a remedy"
        assert not [each for each in self.bus.subscriptions if each.transport is self.doctor], "it unsubscribes"
        return {row.name: row for row in rows}


def test_a_sound_robot_has_nothing_to_remedy() -> None:
    bench = InspectionBench()
    bench.publish_operator()
    rows = bench.examine()
    assert {row.status for row in rows.values()} == {"ok"}, rows
    assert rows["/joint_states (joints)"].found == "100.0 Hz, 100 promised"
    assert rows["/camera/front/image_raw (front)"].found == "12.5 Hz, 12.5 promised"
    assert rows["limits"].found == "3 measured entries lie within them"
    assert rows["/command (command)"].found == "/controller listens"
    assert rows["emergency stop"].found == "/estop: /controller"


def put_outside(name: str, message: Any) -> None:
    if name == "tool":
        message.pose.position.x = 0.8


def lose_finger(name: str, message: Any) -> None:
    if name == "joints":
        message.name = [*message.name[:-1], "thumb"]


def break_picture(name: str, message: Any) -> None:
    if name == "front":
        message.encoding = "16UC1"


@pytest.mark.parametrize(
    ("options", "row", "status", "words"),
    [
        ({"periods": {"joints": 0}}, "/joint_states (joints)", "fail", "0 messages, 100 Hz promised"),
        ({"periods": {"joints": 0}}, "observation", "fail", "not checked: /joint_states"),
        ({"periods": {"joints": 20}}, "/joint_states (joints)", "warn", "50.0 Hz, 100 promised"),
        ({"periods": {"joints": 200}}, "/joint_states (joints)", "fail", "200 ms without a message"),
        ({"stamp_offset_s": -3.0}, "stamps of /tool_pose", "fail", "3.000 s behind"),
        ({"stamp_offset_s": 0.2}, "stamps of /tool_pose", "fail", "0.200 s ahead of"),
        ({"same_stamp": True}, "stamps of /tool_pose", "fail", "all are equal"),
        ({"change": put_outside}, "limits", "fail", "tool_x is 0.8 m, outside 0.24 to 0.72"),
        ({"change": lose_finger}, "state", "fail", "finger2"),
        ({"change": break_picture}, "pictures", "fail", "encoding '16UC1'"),
    ],
)
def test_faults_and_their_rows(options: dict[str, Any], row: str, status: str, words: str) -> None:
    found = InspectionBench(**options).examine()[row]
    assert (found.status, words in found.found) == (status, True), found


def test_a_sensor_that_repeats_itself_is_named(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, topics__front__may_repeat=False)
    found = InspectionBench(robot).examine()["/camera/front/image_raw (front)"]
    assert found.status == "fail" and "with constant content" in found.found


def test_missing_stamps_are_accepted() -> None:
    assert not [name for name in InspectionBench(stamp_offset_s=None).examine() if "stamps" in name]


def test_stamps_of_a_simulation_are_compared_with_its_own_time() -> None:
    rows = InspectionBench(started_ns=START_NS - 10**9).examine()
    assert rows["stamps"].status == "ok" and rows["/clock"].status == "ok"
    assert "1.000 s behind" not in str(rows)


def test_a_robot_without_simulated_time_is_compared_with_this_machine(tmp_path: Path) -> None:
    rows = InspectionBench(change_robot(tmp_path, use_sim_time=False), stamp_offset_s=-3.0).examine()
    assert "/clock" not in rows and "3.000 s behind" in rows["stamps of /tool_pose"].found


def test_a_topic_of_another_type_is_named() -> None:
    bench = InspectionBench()
    odd = replace(ROBOT.topics["front_info"], type_name="sensor_msgs/msg/Image")
    bench.robot = replace(ROBOT, topics=ROBOT.topics | {"front_info": odd})
    found = bench.examine()["/camera/front/camera_info (front_info)"]
    assert found.status == "fail" and "the publisher's type is sensor_msgs/msg/CameraInfo" in found.found


def test_an_incompatible_qos_is_named() -> None:
    bench = InspectionBench()
    bench.robot = replace(ROBOT, topics=ROBOT.topics | {"front": replace(ROBOT.topics["front"], qos="latched")})
    found = bench.examine()["/camera/front/image_raw (front)"]
    assert found.status == "fail" and "no message arrives, because" in found.found


def test_two_publishers_of_a_topic_are_named() -> None:
    bench = InspectionBench()
    bench.controller.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
    row = bench.examine()["/joint_states (joints)"]
    assert (row.status, row.found) == ("fail", "2 publishers: /controller, /robot")


def test_a_clock_that_stands_still_is_named() -> None:
    bench = InspectionBench()
    bench.talking.started_ns = START_NS
    bench.talking._say_clock = lambda: bench.talking.clock.publish(  # pyright: ignore[reportPrivateUsage]
        bench.bus.messages.make("rosgraph_msgs/msg/Clock", clock={"sec": 7, "nanosec": 0})
    )
    row = bench.examine()["/clock"]
    assert row.status == "fail" and "in lockstep waits for commands" in row.remedy


def test_subscribers_and_rival_publishers_of_commands() -> None:
    bench = InspectionBench()
    bench.listening.close()
    assert bench.examine()["/command (command)"].found == "no subscriber"
    bench.controller.create_subscription("/command", "geometry_msgs/msg/Twist", "command", lambda *_: None)
    assert "/controller takes geometry_msgs/msg/Twist" in bench.examine()["/command (command)"].found
    bench.controller.create_subscription(*COMMAND, "command", lambda *_: None)
    rows = bench.examine()
    assert rows["/command (command)"].status == "ok" and "rivals" not in rows
    bench.controller.create_publisher(*COMMAND, "command")
    assert bench.examine()["rivals"].found == "/controller publishes commands, too"


def test_each_command_topic_has_its_rows(tmp_path: Path) -> None:
    lift = {"topic": "/lift", "kind": "twist"}
    changes = {"actions__move_z__command": "lift", "actions__move_z__target": "linear.z"}
    bench = InspectionBench(change_robot(tmp_path, commands={"lift": lift}, **changes))
    rows = bench.examine()
    assert rows["/command (command)"].status == rows["command timeout"].status == "ok"
    assert rows["/lift (commands.lift)"].status == rows["commands.lift timeout"].status == "fail"
    bench.controller.create_subscription("/lift", "geometry_msgs/msg/Twist", "command", lambda *_: None)
    bench.controller.create_publisher("/lift", "geometry_msgs/msg/Twist", "command")
    rows = bench.examine()
    assert rows["/lift (commands.lift)"].status == "ok"
    assert rows["rivals on /lift"].status == "fail" and "rivals" not in rows


def test_missing_operator_topics_are_warnings() -> None:
    bench = InspectionBench()
    for label, topic in (("emergency stop", "/estop"), ("dead man's switch", "/deadman")):
        row = bench.examine()[label]
        assert (row.status, row.found) == ("warn", f"{topic}: no publisher")
    bench.robot = replace(ROBOT, operator=replace(ROBOT.operator, estop="", deadman=""))
    rows = bench.examine()
    assert (rows["emergency stop"].status, rows["emergency stop"].found) == ("warn", "none in the file")
    assert "dead man's switch" not in rows


@pytest.mark.parametrize(
    ("label", "topic", "kind", "qos", "said"),
    [
        ("emergency stop", "/estop", BOOL, "command", "the publisher offers volatile, the subscription requests trans"),
        (
            "emergency stop",
            "/estop",
            JOY,
            "latched",
            f"/controller publishes {JOY}, ",
        ),
        (
            "dead man's switch",
            "/deadman",
            JOY,
            "deadman",
            f"/controller publishes {JOY}, ",
        ),
        (
            "teleoperation",
            "/teleop",
            BOOL,
            "sensor_data",
            f"/controller publishes {BOOL}, ",
        ),
    ],
)
def test_incompatible_operator_topics_are_faults(label: str, topic: str, kind: str, qos: str, said: str) -> None:
    bench = InspectionBench()
    bench.controller.create_publisher(topic, kind, qos)
    row = bench.examine()[label]
    assert row.status == "fail" and said in row.found and "at least" in row.remedy


@pytest.mark.parametrize(("kind", "status"), [("displacement", "fail"), ("position", "warn")])
def test_a_robot_without_a_command_timeout_is_named(kind: str, status: str) -> None:
    actions = tuple(replace(entry, kind=kind) for entry in ROBOT.actions)
    robot = replace(ROBOT, actions=actions, command=replace(ROBOT.command, timeout_s=0.0), verified="never run")
    rows = InspectionBench(robot).examine()
    assert rows["command timeout"].status == status
    assert rows["robot tabletop"].status == "warn"


def test_undecodable_bytes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = InspectionBench()
    publisher = bench.talking.publishers["tool"]
    monkeypatch.setattr(publisher, "publish", lambda message: publisher.send(b"\0\1\0\0abc"))
    found = bench.examine()["/tool_pose (tool)"]
    assert found.status == "fail" and "are not a message of geometry_msgs/msg/PoseStamped" in found.found


@pytest.mark.process
def test_over_dds_topics_and_rates_are_seen() -> None:
    """Over the loopback interface, in a domain of its own."""
    robot = replace(ROBOT, use_sim_time=False)
    with borrow_domain() as domain:
        environment = RosEnvironment(domain=domain, range="LOCALHOST", tag=secrets.token_hex(8))
        with open_transport("dds", "robot", environment) as talker, open_transport("dds", "doctor", environment) as ear:
            publishers = {
                name: talker.create_publisher(topic.name, topic.type_name, topic.qos)
                for name, topic in robot.topics.items()
            }
            talker.create_subscription(*COMMAND, "command", lambda *_: None)
            messages = make_tabletop_messages(talker.messages)
            messages["joints"].velocity[0] = np.pi
            sent = [0]

            def talk() -> bool:
                for name, publisher in publishers.items():
                    publisher.publish(messages[name])
                sent[0] += 1
                return False

            def watch(seconds: float) -> None:
                ear.spin_until(lambda: all(len(ear.list_publishers(t.name)) for t in robot.topics.values()), 30)
                ear.spin_until(lambda: len(ear.list_subscriptions("/command")) > 0, 30)
                ear.spin_until(lambda: talk() or sent[0] > 20, 30 if seconds else 0)

            rows = {row.name: row for row in inspect_robot(robot, ear, 1.0, watch)}
    for name, topic in robot.topics.items():
        row = rows[f"{topic.name} ({name})"]
        assert "promised" in row.found and not row.found.startswith("0 messages"), row
    assert rows["/command (command)"].found == "/robot listens" and rows["state"].status == "ok"
