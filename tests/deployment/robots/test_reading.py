"""A robot's file is plain data; what cannot be, or is not understood, is refused by its key."""

import math
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.deployment.robots.reading import load_robot, read_robot
from embodied_rl.interfaces.errors import UserError
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.robots import change_robot, write_robot

MOVE = "actions__move_x__"
TOPIC = "topics__tool__"
GRIPPER = "actions__gripper__"
ACTIONS = ("move_x", "move_y", "move_z", "gripper")
HAND: dict[str, Any] = {"hand": {"topic": "/hand", "kind": "gripper", "max_effort": 20.0}}
ON_HAND = {GRIPPER + "command": "hand", GRIPPER + "target": "position"}


def test_the_tabletop_is_the_simulator_s() -> None:
    robot, spec = load_robot("tabletop"), spec_of(TabletopConfig())
    assert robot.body == spec.body
    assert robot.command_hz == 8 * robot.control_hz
    assert {entry.name for entry in robot.actions if entry.keeps} == set(spec.kept_while_holding)


def test_the_tabletop_s_limits_admit_all_that_its_actions_can_say() -> None:
    robot = load_robot("tabletop")
    period = 1 / robot.control_hz
    for entry, limits in zip(robot.actions, robot.entry_limits, strict=True):
        change = entry.action_high - entry.action_low if entry.kind == "position" else 2 * entry.action_high / period
        speed = change / period if entry.kind == "position" else change / 2
        assert limits.speed >= speed
        assert limits.acceleration >= 2 * speed / period and limits.jerk >= 4 * (2 * speed) / period**2


def test_a_path_is_read_like_a_name(tmp_path: Path) -> None:
    assert load_robot(write_robot(tmp_path)) == load_robot("tabletop")


def test_a_folder_of_configurations_comes_first(tmp_path: Path) -> None:
    (tmp_path / "robot").mkdir()
    write_robot(tmp_path, verified="nothing").rename(tmp_path / "robot" / "mine.yaml")
    assert load_robot("mine", tmp_path).verified == "nothing"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"control_hz": 0}, "control_hz=0 must be above 0"),
        ({"control_hz": math.inf}, "control_hz=inf must be above 0"),
        ({"command_hz": 90}, "command_hz=90 must be a multiple of control_hz=12.5, such as 87.5"),
        ({"command_hz": 5}, "such as 12.5"),
        ({"control_hz": "fast"}, "control_hz: expected a number, got 'fast'"),
        ({"name": ""}, "give both a text"),
        ({"speed": 3}, "unknown key 'speed'"),
        ({MOVE + "limit": 3}, "unknown key 'actions.move_x.limit'. Did you mean 'actions.move_x.limits'"),
        ({MOVE + "limits__speed": None}, "actions.move_x.limits.speed is missing"),
        ({MOVE + "limits__low": 0.8}, "actions.move_x.limits.low=0.8 must be below actions.move_x.limits.high=0.72"),
        ({MOVE + "limits__jerk": -1}, "actions.move_x.limits.jerk=-1.0 is no limit"),
        ({MOVE + "limits__jerk": "none"}, "write a number above 0, or unlimited"),
        ({MOVE + "low": 0.1}, "actions.move_x.low=0.1 must be below actions.move_x.high=0.03"),
        ({MOVE + "kind": "speed"}, "actions.move_x.kind: unknown value 'speed'"),
        ({MOVE + "unit": "mm"}, "actions.move_x.unit='mm' is not SI"),
        ({MOVE + "unit": "rad"}, "actions.move_x.unit=rad is compared with state.tool_x.unit=m: make them equal"),
        ({MOVE + "limits__high": 720}, "actions.move_x.limits: 720 m is beyond 100 m. Are these millimetres?"),
        ({GRIPPER + "unit": "rad", GRIPPER + "limits__low": -115}, "115 rad is beyond 62.8 rad. Are these degrees?"),
        ({MOVE + "measured": "tool_w"}, "actions.move_x.measured: 'tool_w' is not an entry of state. Did you mean"),
        ({MOVE + "target": "y"}, "actions.move_x.target='y': each action needs a target of its own"),
        ({MOVE + "limits__high": "none"}, "actions.move_x.limits.high=none is no limit: write a number, or unlimited"),
        ({MOVE + "limits__low": math.nan}, "actions.move_x.limits.low=nan is no limit"),
        ({MOVE + "measured": ""}, "actions.move_x.limits: low and high cannot be held"),
        ({"actions__gripper__limits__low": "unlimited"}, "a position needs both low and high"),
        ({"actions__gripper__tracking_error": 0.1}, "only what is measured can be compared"),
        ({"actions": {}}, "actions has no entries"),
        ({"state": {}}, "state has no entries"),
        ({"state__tool_x__reads": "tol.pose.position.x"}, "'tol' is not a topic of topics. Did you mean 'tool'?"),
        ({"state__tool_x__reads": "tool"}, "state.tool_x.reads: 'tool' is no number of a message"),
        ({"state__tool_x__reads": "tool.pose..x"}, "is no field"),
        ({"state__tool_x__reads": "1e * tool.pose.position.x"}, "is no factor"),
        ({"state__tool_x__reads": "tool.pose.position.w"}, "has no field 'w'; it has x, y, z"),
        ({"state__tool_x__reads": "tool.pose"}, "is no number: go on"),
        ({"state__tool_x__reads": "tool.header.frame_id"}, "is no number"),
        ({"state__tool_x__reads": "tool.pose.position.x.y"}, "nothing lies below"),
        ({"state__tool_x__reads": "tool.pose[0].position.x"}, "is no list"),
        ({"state__tool_x__reads": "joints.position"}, "say which entry"),
        ({"state__tool_x__reads": "joints.position[3]"}, "names its joints, and their order may change"),
        ({"state__tool_x__reads": "front_info.k[elbow]"}, "names no joints: write a number"),
        ({"state__tool_x__reads": []}, "state.tool_x.reads is empty"),
        ({TOPIC + "name": "tool_pose"}, "topics.tool.name: 'tool_pose' is not a topic name"),
        ({TOPIC + "name": "/joint_states"}, "the topic /joint_states is used twice"),
        ({TOPIC + "type": "PoseStamped"}, "topics.tool.type: 'PoseStamped' is not a message type"),
        ({TOPIC + "type": "geometry_msgs/msg/PoseStampd"}, "did you mean geometry_msgs/msg/PoseStamped"),
        ({TOPIC + "type": "control_msgs/msg/JointJog"}, "topics.tool.type: ROS 2 jazzy has no message type"),
        ({TOPIC + "qos": "best"}, "topics.tool.qos: qos='best' is not a profile"),
        ({TOPIC + "rate_hz": -1}, "topics.tool.rate_hz=-1 must be above 0"),
        ({TOPIC + "max_age_s": 0.001}, "topics.tool.max_age_s=0.001 is over before the next message"),
        ({"cameras__front__topic": "joints"}, "a camera needs sensor_msgs/msg/Image or"),
        ({"cameras__front__topic": "back"}, "cameras.front.topic: 'back' is not a topic of topics"),
        ({"cameras__front__info": "front"}, "cameras.front.info=front has type sensor_msgs/msg/Image"),
        ({"cameras__front__height": 0}, "1 to 8192 pixels each"),
        ({"cameras__front__resize": "cubic"}, "cameras.front.resize: unknown value 'cubic'"),
        ({"command__kind": "servo"}, "command.kind: unknown value 'servo'"),
        ({"command__type": "control_msgs/msg/JointJog"}, "command.type=control_msgs/msg/JointJog"),
        ({"command__type": "control_msgs/action/GripperCommand"}, "actions are not supported; use a topic"),
        ({"command__max_effort": 5}, "command.max_effort=5"),
        ({"commands": HAND}, "commands.hand: no action is sent there"),
        ({"commands": {"": HAND["hand"]}}, "commands: each topic needs a name"),
        ({"commands": HAND, GRIPPER + "command": "hant"}, "actions.gripper.command: 'hant' is not a topic of commands"),
        ({"commands": HAND, GRIPPER + "command": "hand"}, "actions.gripper.target='gripper': a gripper has position"),
        ({"commands": {"hand": {"kind": "gripper"}}, **ON_HAND}, "commands.hand.topic"),
        ({"commands": {"hand": {**HAND["hand"], "topic": "/command"}}, **ON_HAND}, "/command is used twice"),
        ({"commands": {"hand": {**HAND["hand"], "topic": "/estop"}}, **ON_HAND}, "/estop is used twice"),
        ({"commands": {"hand": {**HAND["hand"], "max_effort": 0}}, **ON_HAND}, "commands.hand.max_effort=0"),
        ({"commands": {"hand": {**HAND["hand"], "timeout_s": -1}}, **ON_HAND}, "commands.hand.timeout_s=-1"),
        ({"commands": {"hand": {**HAND["hand"], "type": "control_msgs/action/GripperCommand"}}, **ON_HAND},
         "commands.hand.type=control_msgs/action/GripperCommand: actions are not supported; use a topic"),
        ({"commands": HAND, **{f"actions__{name}__command": "hand" for name in ACTIONS}}, "command: no action"),
        ({"command__topic": "command"}, "command.topic: 'command' is not a topic name"),
        ({"command__qos": "fast"}, "command.qos: qos='fast' is not a profile"),
        ({"command__timeout_s": -1}, "command.timeout_s=-1 must be 0"),
        ({"command__order": ["x", "y"]}, "for kind forward it holds each target once"),
        ({"command__kind": "twist"}, "actions.move_x.target='x': a twist has linear.x"),
        ({"command__kind": "trajectory"}, "actions.move_x.kind=displacement cannot be sent as command.kind=trajectory"),
        ({"command__topic": "/estop"}, "the topic /estop is used twice"),
        ({"operator__estop": "estop"}, "operator.estop: 'estop' is not a topic name"),
        ({"operator__stop": "/e"}, "unknown key 'operator.stop'. Did you mean 'operator.estop'?"),
        ({"operator__teleop_type": "std_msgs/msg/String"}, "operator.teleop_type=std_msgs/msg/String is none of"),
        ({"operator__deadman_timeout_s": 0}, "operator.deadman_timeout_s=0 must be above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as raised:
        change_robot(tmp_path, **changes)
    assert words in str(raised.value) and str(raised.value).startswith(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(raised.value)


def test_actions_are_parted_among_command_topics(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, commands=HAND, **ON_HAND)
    assert {name: robot.list_commanded(name) for name in robot.command_topics} == {"": [0, 1, 2], "hand": [3]}
    assert robot.commands["hand"].type_name == "control_msgs/msg/GripperCommand"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", "line 2: 'name' stands there twice"),
        ("state: {a: {unit: m}, a: {unit: m}}", "'a' stands there twice"),
        ("a: &x {b: 1}\nc: *x\n", "references (*name) are not read"),
        ("name: !!python/object/apply:os.system [ls]\n", "types (!!name) are not read here"),
        ("- 1\n", "holds no keys"),
        ("", "holds no keys"),
        ("1: 2\n", "line 1: a key that is no text: quote it"),
        ("state: {on: {unit: m}}", "a key that is no text: quote it"),
        ("state: {[a]: 1}", "a key that is no text"),
        ("a: [\n", "is no YAML"),
        ("a: " + "[" * 3000, "is no YAML"),
        ("#" * 300_000, "is larger than 256 KiB"),
    ],
)
def test_what_is_no_plain_data_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        read_robot(tmp_path / "mine.yaml")
    assert words in str(raised.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no YAML"):
        read_robot(tmp_path / "mine.yaml")


def test_a_variable_of_this_machine_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "told")
    assert (
        change_robot(tmp_path, verified="${oc.env:SECRET} ${control_hz}").verified == "${oc.env:SECRET} ${control_hz}"
    )


def test_a_speed_without_a_measured_place_has_no_box(tmp_path: Path) -> None:
    free = {f"{MOVE}limits__{bound}": "unlimited" for bound in ("low", "high")}
    limits = change_robot(tmp_path, **free, **{MOVE + "measured": ""}).entry_limits[0]
    assert (limits.low, limits.high) == (-math.inf, math.inf)


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    file = write_robot(tmp_path)
    file.write_text(file.read_text().replace("timeout_s: 0.1", "timeout_s: 1e-1"))
    assert read_robot(file).command.timeout_s == 0.1


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"there is no such robot, and no such file\. Did you mean 'tabletop'"):
        load_robot("tabeltop")
