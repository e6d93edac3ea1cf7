"""Inspection of a robot's topics by the doctor, which publishes nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.deployment.robots.inspection import inspect_robot
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.sim import Diagnosis
from tests.support.robots import TalkingRobot, change_robot, make_tabletop_messages
from tests.support.transports import LONG_S, START_NS, borrow_environment

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


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("front", {"may_repeat": False}, "with constant content"),
        ("front", {"qos": "latched"}, "no message arrives, because"),
        ("front_info", {"type_name": "sensor_msgs/msg/Image"}, "the publisher's type is sensor_msgs/msg/CameraInfo"),
    ],
)
def test_topics_that_contradict_the_file(name: str, change: dict[str, Any], words: str) -> None:
    bench, topic = InspectionBench(), ROBOT.topics[name]
    bench.robot = replace(ROBOT, topics=ROBOT.topics | {name: replace(topic, **change)})
    row = bench.examine()[f"{topic.name} ({name})"]
    assert row.status == "fail" and words in row.found


def test_two_publishers_and_undecodable_bytes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = InspectionBench()
    bench.controller.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
    publisher = bench.talking.publishers["tool"]
    monkeypatch.setattr(publisher, "publish", lambda message: publisher.send(b"\0\1\0\0abc"))
    rows = bench.examine()
    assert rows["/joint_states (joints)"].found == "2 publishers: /controller, /robot"
    assert "are not a message of geometry_msgs/msg/PoseStamped" in rows["/tool_pose (tool)"].found
    assert {rows[row].status for row in ("/joint_states (joints)", "/tool_pose (tool)")} == {"fail"}


def test_stamps_of_a_simulation_are_compared_with_its_own_time() -> None:
    assert not [name for name in InspectionBench(stamp_offset_s=None).examine() if "stamps" in name]
    rows = InspectionBench(started_ns=START_NS - 10**9).examine()
    assert rows["stamps"].status == "ok" and rows["/clock"].status == "ok"
    assert "1.000 s behind" not in str(rows)


def test_a_robot_without_simulated_time_is_compared_with_this_machine(tmp_path: Path) -> None:
    rows = InspectionBench(change_robot(tmp_path, use_sim_time=False), stamp_offset_s=-3.0).examine()
    assert "/clock" not in rows and "3.000 s behind" in rows["stamps of /tool_pose"].found


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
        ("emergency stop", "/estop", JOY, "latched", f"/controller publishes {JOY}, "),
        ("dead man's switch", "/deadman", JOY, "deadman", f"/controller publishes {JOY}, "),
        ("teleoperation", "/teleop", BOOL, "sensor_data", f"/controller publishes {BOOL}, "),
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


@pytest.mark.process
def test_topics_and_the_listener_of_commands_are_seen_over_dds() -> None:
    robot = replace(ROBOT, use_sim_time=False)
    with (
        borrow_environment() as environment,
        open_transport("dds", "robot", environment) as talker,
        open_transport("dds", "doctor", environment) as ear,
    ):
        messages, topics = make_tabletop_messages(talker.messages), robot.topics.items()
        publishers = {name: talker.create_publisher(each.name, each.type_name, each.qos) for name, each in topics}
        talker.create_subscription(*COMMAND, "command", lambda *_: None)
        sent = [0]

        def talk() -> bool:
            for name, publisher in publishers.items():
                publisher.publish(messages[name])
            sent[0] += 1
            return sent[0] > 20

        def watch(seconds: float) -> None:
            if seconds:
                ear.spin_until(talk, LONG_S)
                return
            ear.spin_until(lambda: all(each.count_matched() for each in publishers.values()), LONG_S)
            ear.spin_until(lambda: any(not each.own for each in ear.list_subscriptions("/command")), LONG_S)

        rows = {row.name: row for row in inspect_robot(robot, ear, 1.0, watch)}
    for name, topic in topics:
        found = rows[f"{topic.name} ({name})"].found
        assert "promised" in found and not found.startswith("0 messages"), found
    assert rows["/command (command)"].found == "/robot listens" and rows["state"].status == "ok"
