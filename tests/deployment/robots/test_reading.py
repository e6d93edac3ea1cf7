"""A robot's file is plain data; invalid and unknown keys are refused by name."""

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.deployment.robots.reading import load_robot, read_robot
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import write_contract
from embodied_rl.interfaces.errors import UserError
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.refusals import refuses
from tests.support.robots import change_robot, read_keys, write_robot

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


def test_the_tabletop_s_limits_admit_all_actions() -> None:
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
    ("changes", "code", "data"),
    [
        ({"control_hz": 0}, "value-out-of-range", "control_hz=0"),
        ({"control_hz": math.inf}, "value-not-finite", "control_hz"),
        ({"command_hz": 90}, "control-rate-invalid", "87.5"),
        ({"command_hz": 5}, "control-rate-invalid", "command_hz=5 must be a multiple of control_hz=12.5, such as 12.5"),
        ({"control_hz": "fast"}, "value-wrong-type", "control_hz: expected a number, got 'fast'"),
        ({"name": ""}, "key-missing", "name and verified"),
        ({"speed": 3}, "key-unknown", "'speed'"),
        ({MOVE + "limit": 3}, "key-unknown", "'actions.move_x.limit'"),
        ({MOVE + "limits__speed": None}, "key-missing", "actions.move_x.limits.speed"),
        ({MOVE + "limits__low": 0.8}, "robot-limits-invalid", "actions.move_x.limits.low=0.8"),
        ({MOVE + "limits__jerk": -1}, "robot-limits-invalid", "actions.move_x.limits.jerk=-1.0"),
        ({MOVE + "limits__jerk": "none"}, "robot-limits-invalid", "actions.move_x.limits.jerk=none"),
        ({MOVE + "low": 0.1}, "robot-limits-invalid", "actions.move_x.low=0.1 must be below actions.move_x.high=0.03"),
        ({MOVE + "kind": "speed"}, "value-unknown", "actions.move_x.kind: unknown value 'speed'"),
        ({MOVE + "unit": "mm"}, "unit-unknown", "actions.move_x.unit='mm' is not SI"),
        ({MOVE + "unit": "rad"}, "unit-mismatch", "actions.move_x.unit=rad"),
        ({MOVE + "limits__high": 720}, "unit-implausible", "actions.move_x.limits: 720 m"),
        ({GRIPPER + "unit": "rad", GRIPPER + "limits__low": -115}, "unit-implausible", "115 rad"),
        ({MOVE + "measured": "tool_w"}, "name-unknown", "actions.move_x.measured: 'tool_w'"),
        ({MOVE + "target": "y"}, "action-target-invalid", "actions.move_x.target='y'"),
        ({MOVE + "limits__high": "none"}, "robot-limits-invalid", "actions.move_x.limits.high=none"),
        ({MOVE + "limits__low": math.nan}, "value-not-finite", "actions.move_x.limits.low"),
        ({MOVE + "measured": ""}, "limits-not-measured", "actions.move_x.limits: low and high"),
        ({"actions__gripper__limits__low": "unlimited"}, "robot-limits-invalid", "actions.gripper.limits"),
        ({"actions__gripper__tracking_error": 0.1}, "tracking-error-not-measured", "actions.gripper.tracking_error"),
        ({"actions": {}}, "robot-actions-missing", "actions has no entries"),
        ({"state": {}}, "robot-state-missing", "state has no entries"),
        ({"state__tool_x__reads": "tol.pose.position.x"}, "name-unknown", "'tool'"),
        ({"state__tool_x__reads": "tool"}, "field-syntax-invalid", "state.tool_x.reads: 'tool'"),
        ({"state__tool_x__reads": "tool.pose..x"}, "field-syntax-invalid", "'pose..x'"),
        ({"state__tool_x__reads": "1e * tool.pose.position.x"}, "field-factor-invalid", "'1e'"),
        ({"state__tool_x__reads": "tool.pose.position.w"}, "field-unknown", "has no field 'w'; it has x, y, z"),
        ({"state__tool_x__reads": "tool.pose"}, "field-not-a-number", "'pose' of geometry_msgs/msg/PoseStamped"),
        ({"state__tool_x__reads": "tool.header.frame_id"}, "field-not-a-number", "'header.frame_id'"),
        ({"state__tool_x__reads": "tool.pose.position.x.y"}, "field-unknown", "'pose.position.x.y'"),
        ({"state__tool_x__reads": "tool.pose[0].position.x"}, "field-not-a-list", "[0]"),
        ({"state__tool_x__reads": "joints.position"}, "field-entry-missing", "'position'"),
        ({"state__tool_x__reads": "joints.position[3]"}, "field-entry-invalid", "position[3]"),
        ({"state__tool_x__reads": "front_info.k[elbow]"}, "field-entry-invalid", "k[elbow]"),
        ({"state__tool_x__reads": []}, "robot-state-missing", "state.tool_x.reads is empty"),
        ({TOPIC + "name": "tool_pose"}, None, "topics.tool.name: 'tool_pose'"),
        ({TOPIC + "name": "/joint_states"}, "robot-topic-used-twice", "/joint_states"),
        ({TOPIC + "type": "PoseStamped"}, None, "topics.tool.type: 'PoseStamped'"),
        ({TOPIC + "type": "geometry_msgs/msg/PoseStampd"}, None, "geometry_msgs/msg/PoseStamped"),
        ({TOPIC + "type": "control_msgs/msg/JointJog"}, None, "control_msgs/msg/JointJog"),
        ({TOPIC + "qos": "best"}, None, "topics.tool.qos: qos='best'"),
        ({TOPIC + "rate_hz": -1}, "value-out-of-range", "topics.tool.rate_hz=-1"),
        ({TOPIC + "max_age_s": 0.001}, "topic-age-too-short", "topics.tool.max_age_s=0.001"),
        ({"cameras__front__topic": "joints"}, "camera-type-unsupported", "cameras.front.topic=joints"),
        ({"cameras__front__topic": "back"}, "name-unknown", "cameras.front.topic: 'back'"),
        ({"cameras__front__info": "front"}, "camera-type-unsupported", "cameras.front.info=front"),
        ({"cameras__front__height": 0}, "value-out-of-range", "cameras.front.height=0"),
        ({"cameras__front__resize": "cubic"}, "value-unknown", "cameras.front.resize: unknown value 'cubic'"),
        ({"command__kind": "servo"}, "value-unknown", "command.kind: unknown value 'servo'"),
        ({"command__type": "control_msgs/msg/JointJog"}, "command-type-unsupported", "JointJog"),
        ({"command__type": "control_msgs/action/GripperCommand"}, "command-type-unsupported", "command.type="),
        ({"command__max_effort": 5}, "key-unused", "command.max_effort=5"),
        ({"commands": HAND}, "command-without-actions", "commands.hand: "),
        ({"commands": {"": HAND["hand"]}}, "command-name-missing", "commands: each topic needs a name"),
        ({"commands": HAND, GRIPPER + "command": "hant"}, "name-unknown", "actions.gripper.command: 'hant'"),
        ({"commands": HAND, GRIPPER + "command": "hand"}, "action-target-invalid", "actions.gripper.target='gripper'"),
        ({"commands": {"hand": {"kind": "gripper"}}, **ON_HAND}, "key-missing", "commands.hand.topic"),
        ({"commands": {"hand": {**HAND["hand"], "topic": "/command"}}, **ON_HAND},
         "robot-topic-used-twice", "/command"),
        ({"commands": {"hand": {**HAND["hand"], "topic": "/estop"}}, **ON_HAND}, "robot-topic-used-twice", "/estop"),
        ({"commands": {"hand": {**HAND["hand"], "max_effort": 0}}, **ON_HAND}, "value-out-of-range", "max_effort=0"),
        ({"commands": {"hand": {**HAND["hand"], "timeout_s": -1}}, **ON_HAND}, "value-out-of-range", "timeout_s=-1"),
        ({"commands": {"hand": {**HAND["hand"], "type": "control_msgs/action/GripperCommand"}}, **ON_HAND},
         "command-type-unsupported", "commands.hand.type=control_msgs/action/GripperCommand"),
        ({"commands": HAND, **{f"actions__{name}__command": "hand" for name in ACTIONS}},
         "command-without-actions", "command: no action"),
        ({"command__topic": "command"}, None, "command.topic: 'command'"),
        ({"command__qos": "fast"}, None, "command.qos: qos='fast'"),
        ({"command__timeout_s": -1}, "value-out-of-range", "command.timeout_s=-1"),
        ({"command__order": ["x", "y"]}, "command-order-invalid", "command.order=['x', 'y']"),
        ({"command__kind": "twist"}, "action-target-invalid", "actions.move_x.target='x': a twist has linear.x"),
        ({"command__kind": "trajectory"}, "action-kind-unsupported", "actions.move_x.kind=displacement"),
        ({"command__topic": "/estop"}, "robot-topic-used-twice", "/estop"),
        ({"operator__estop": "estop"}, None, "operator.estop: 'estop'"),
        ({"operator__stop": "/e"}, "key-unknown", "unknown key 'operator.stop'. Did you mean 'operator.estop'?"),
        ({"operator__teleop_type": "std_msgs/msg/String"}, "value-unknown", "operator.teleop_type=std_msgs/msg/String"),
        ({"operator__deadman_timeout_s": 0}, "value-out-of-range", "operator.deadman_timeout_s=0"),
    ],
)  # fmt: skip
def test_an_invalid_description_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], code: str | None, data: str
) -> None:
    with pytest.raises(UserError) as raised:
        change_robot(tmp_path, **changes)
    assert data in str(raised.value) and str(raised.value).startswith(str(tmp_path / "mine.yaml"))
    assert code in (None, raised.value.code)
    assert "\n" not in str(raised.value)


BOX = {f"actions__drive__limits__{bound}": value for bound, value in (("low", -1), ("high", 1))}


@pytest.mark.parametrize(
    ("robot", "changes", "code", "data"),
    [
        ("franka", {"command__horizon_s": 0.05}, "trajectory-horizon-invalid", "command.horizon_s=0.05"),
        ("franka", {"command__horizon_s": 0.3}, "trajectory-horizon-invalid", "command.horizon_s=0.3"),
        ("franka", {"command__horizon_s": 2.0}, "value-out-of-range", "command.horizon_s=2"),
        ("franka", {"actions__joint1__limits__speed": 0.5}, "trajectory-speed-too-high",
         "actions.joint1.limits.speed=0.5"),
        ("franka", {"actions__joint1__kind": "velocity", "actions__joint1__tracking_error": None},
         "action-kind-unsupported", "actions.joint1.kind=velocity"),
        ("franka", {"command__order": ["fr3_joint1"]}, "command-order-invalid", "command.order=['fr3_joint1']"),
        ("mobile_base", {"actions__drive__target": "linear.w"}, "action-target-invalid", "target='linear.w'"),
        ("mobile_base", {"actions__drive__kind": "position", **BOX}, "action-kind-unsupported", "drive.kind=position"),
        ("mobile_base", {"command__kind": "pose", "command__type": None}, "action-target-invalid", "'linear.x'"),
    ],
)  # fmt: skip
def test_commands_that_do_not_suit_their_kind(
    tmp_path: Path, robot: str, changes: dict[str, Any], code: str, data: str
) -> None:
    with refuses(code, data):
        change_robot(tmp_path, robot, **changes)


def test_actions_are_divided_among_command_topics(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, commands=HAND, **ON_HAND)
    assert {name: robot.list_commanded(name) for name in robot.command_topics} == {"": [0, 1, 2], "hand": [3]}
    assert robot.commands["hand"].type_name == "control_msgs/msg/GripperCommand"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "code", "data"),
    [
        ("name: a\nname: b\n", "yaml-invalid", "line 2: 'name'"),
        ("state: {a: {unit: m}, a: {unit: m}}", "yaml-invalid", "'a'"),
        ("a: &x {b: 1}\nc: *x\n", "yaml-invalid", "(*name)"),
        ("name: !!python/object/apply:os.system [ls]\n", "yaml-invalid", "(!!name)"),
        ("- 1\n", "yaml-invalid", "mine.yaml"),
        ("", "yaml-invalid", "mine.yaml"),
        ("1: 2\n", "yaml-invalid", "line 1: "),
        ("state: {on: {unit: m}}", "yaml-invalid", "quote it"),
        ("state: {[a]: 1}", "yaml-invalid", "quote it"),
        ("a: [\n", "yaml-invalid", "mine.yaml"),
        ("a: " + "[" * 3000, "yaml-invalid", "mine.yaml"),
        ("#" * 300_000, "file-too-large", "256 KiB"),
    ],
)
def test_files_that_are_not_plain_data_are_refused(tmp_path: Path, text: str, code: str, data: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with refuses(code, data):
        read_robot(tmp_path / "mine.yaml")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with refuses("yaml-invalid", "mine.yaml"):
        read_robot(tmp_path / "mine.yaml")


def test_a_variable_of_this_machine_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "told")
    assert (
        change_robot(tmp_path, verified="${oc.env:SECRET} ${control_hz}").verified == "${oc.env:SECRET} ${control_hz}"
    )


def test_an_unmeasured_velocity_may_be_unlimited(tmp_path: Path) -> None:
    free = {f"{MOVE}limits__{bound}": "unlimited" for bound in ("low", "high")}
    limits = change_robot(tmp_path, **free, **{MOVE + "measured": ""}).entry_limits[0]
    assert (limits.low, limits.high) == (-math.inf, math.inf)


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    file = write_robot(tmp_path)
    file.write_text(file.read_text().replace("timeout_s: 0.1", "timeout_s: 1e-1"))
    assert read_robot(file).command.timeout_s == 0.1


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with refuses("robot-unknown", "'tabletop'"):
        load_robot("tabeltop")


ODD = (
    None, True, [], {}, "", "x", "../../etc/passwd", -1, 0, 1e308, [[]], [{}], {"a": 1}, {1: 2}, "{{x}}", "a\nb", "é\0",
)  # fmt: skip
EACH = 40


def list_places(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and every place of a list."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, value in items for place in ((*way, key), *list_places(value, (*way, key)))]


def spoil(keys: Any, draw: random.Random) -> Any:
    spoilt = copy.deepcopy(keys)
    *way, last = draw.choice(list_places(spoilt))
    node = spoilt
    for key in way:
        node = node[key]
    node[last] = draw.choice(ODD)
    return spoilt


def count_refused(file: Path, keys: Any, draw: random.Random, read: Callable[[Path], object]) -> int:
    """Read `EACH` spoilt files, and return how many were refused, each in one short message with the file's name."""
    refused = 0
    for _ in range(EACH):
        file.write_text(yaml.safe_dump(spoil(keys, draw)))
        try:
            read(file)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(file)) and len(str(error)) < 1500
    return refused


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tabletop", "franka", "mobile_base"])
def test_a_spoilt_file_of_a_robot(tmp_path: Path, name: str) -> None:
    assert count_refused(tmp_path / "robot.yaml", read_keys(name), random.Random(7), read_robot) > EACH / 2


@pytest.mark.thorough
@pytest.mark.parametrize("carrying", [True, False])
def test_a_spoilt_contract(tmp_path: Path, carrying: bool) -> None:
    robot = write_robot(tmp_path, "franka", cameras__wrist__resize="nearest", cameras__wrist__fit="stretch")
    keys = yaml.safe_load(write_contract(robot))
    if not carrying:
        del keys["x-embodied-rl"]
    assert count_refused(tmp_path / "contract.yaml", keys, random.Random(8), read_contract) > EACH / 3
