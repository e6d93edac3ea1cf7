"""Conversion of robot files to contracts of rosetta and back; unsupported and invalid keys are refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.deployment.robots.reading import read_robot
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import OURS, write_contract
from embodied_rl.interfaces.errors import UserError
from tests.support.refusals import refuses
from tests.support.robots import change_keys, write_robot

QOS = {"reliability": "best_effort", "history": "keep_last", "depth": 10}
JOINTS = {
    "channel": {"topic": "/joint_states", "type": "sensor_msgs/msg/JointState", "qos": QOS},
    "align": {"strategy": "hold", "timeline": "header"},
    "select": ["position.j1", "position.j2"],
}
ARM = {
    "robot_type": "arm",
    "robot_interface": "ros2",
    "fps": 30,
    "observations": {
        "observation.images.wrist.right": {
            "channel": {"topic": "/wrist/image_raw/compressed", "type": "sensor_msgs/msg/CompressedImage", "qos": QOS},
            "align": {"strategy": "asof", "timeline": "header", "tolerance_ms": 100},
            "apply": [{"resize": [240, 320]}],
        },
        "observation.state": [
            JOINTS,
            {
                "channel": {"topic": "/odom", "type": "nav_msgs/msg/Odometry", "dtype": "float64"},
                "align": {"strategy": "drop", "timeline": "header"},
                "select": ["twist.twist.linear.x", "pose.pose.orientation.w"],
            },
        ],
    },
    "actions": {
        "action": {
            "channel": {
                "topic": "/arm_controller/joint_trajectory",
                "type": "trajectory_msgs/msg/JointTrajectory",
                "safety": "hold",
            },
            "align": {"strategy": "hold", "timeline": "header"},
            "select": ["position.j1", "position.j2"],
            "apply": [{"clamp": {"min": -2, "max": 2}}],
        }
    },
}  # fmt: skip
NUMBERS = {"unit": "rad", "limits": {"low": -2, "high": 2, "speed": 0.5, "acceleration": 20, "jerk": 100}}
ORDER = ["gripper", "shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll"]
UNSUPPORTED, INVALID = "contract-unsupported", "contract-invalid"
STATE, ACTION = "observations|observation.state", "actions|action"


def change_contract(folder: Path, path: str, value: Any, contract: dict[str, Any] = ARM) -> Path:
    """Write a contract with a changed key; the path has | between keys, because they contain dots."""
    keys = copy.deepcopy(contract)
    *way, last = path.split("|")
    node: Any = keys
    for part in way:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[last] = value
    file = folder / "contract.yaml"
    file.write_text(yaml.dump(keys, Dumper=_WithoutReferences, sort_keys=False))
    return file


class _WithoutReferences(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def plain_franka(folder: Path) -> Path:
    """Write the robot file of the Franka with the resizing of rosetta."""
    return write_robot(folder, "franka", cameras__wrist__resize="nearest", cameras__wrist__fit="stretch")


def test_a_contract_becomes_a_file_with_missing_values(tmp_path: Path) -> None:
    text, missing = read_contract(change_contract(tmp_path, "fps", 30))
    keys = yaml.safe_load(text)
    assert {"command_hz", "topics.joint_states.rate_hz", "topics.joint_states.max_age_s"} < set(missing)
    assert keys["control_hz"] == 30 and keys["verified"] == "never run on hardware"
    assert keys["topics"]["wrist_right"]["max_age_s"] == 0.1 and keys["topics"]["odom"]["max_age_s"] == 1 / 30
    assert keys["cameras"]["wrist.right"] == {
        "topic": "wrist_right", "height": 240, "width": 320, "resize": "nearest", "fit": "stretch"
    }  # fmt: skip
    assert keys["state"]["position.j1"] == {"unit": "?", "reads": "joint_states.position[j1]"}
    assert keys["state"]["twist.twist.linear.x"] == {"unit": "m/s", "reads": "odom.twist.twist.linear.x"}
    assert keys["actions"]["position.j2"]["target"] == "j2" and keys["actions"]["position.j2"]["low"] == -2.0
    assert keys["actions"]["position.j2"]["measured"] == "position.j2"


def test_the_file_is_loaded_once_values_are_filled_in(tmp_path: Path) -> None:
    text, missing = read_contract(change_contract(tmp_path, "fps", 30))
    file = tmp_path / "robot.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"command_hz: expected a number, got '\?'"):
        read_robot(file)
    keys = yaml.safe_load(text)
    for topic in keys["topics"].values():
        topic |= {"rate_hz": 100, "max_age_s": topic["max_age_s"] if topic["max_age_s"] != "?" else 0.1}
    for entry in (*keys["actions"].values(), keys["state"]["position.j1"], keys["state"]["position.j2"]):
        entry |= {key: value for key, value in NUMBERS.items() if key in entry}
    file.write_text(yaml.dump(change_keys(keys, {"command_hz": 30}), Dumper=_WithoutReferences, sort_keys=False))
    robot = read_robot(file)
    assert [entry.target for entry in robot.actions] == ["j1", "j2"] and len(missing) > 10
    assert robot.body.cameras == {"wrist.right": (240, 320)}


@pytest.mark.parametrize(
    ("path", "value", "code", "data"),
    [
        ("teleop", {"input": []}, UNSUPPORTED, "teleop"),
        ("rewards", {}, UNSUPPORTED, "rewards"),
        ("signals", {}, UNSUPPORTED, "signals"),
        ("info", {}, UNSUPPORTED, "info"),
        ("complementary_data", {}, UNSUPPORTED, "complementary_data"),
        ("adjunct", [], UNSUPPORTED, "adjunct"),
        ("observation", {}, None, "unknown key 'observation'. Did you mean 'observations'"),
        ("fps", 12.5, None, "fps: expected a whole number"),
        ("fps", 0, None, "fps must be at least 1"),
        ("robot_interface", "ros1", None, "robot_interface: unknown value 'ros1'"),
        ("observations|observation.imu", JOINTS, UNSUPPORTED, "observations.observation.imu"),
        (STATE, 3, INVALID, "observations.observation.state"),
        (f"{STATE}|0|apply", ["rad2deg"], UNSUPPORTED, "observation.state.apply"),
        (f"{STATE}|0|kind", "quaternion", UNSUPPORTED, "kind=quaternion"),
        (f"{STATE}|0|select", ["position.j1", "position.j1"], INVALID, "position.j1"),
        (f"{STATE}|0|select", [], INVALID, "observation.state.select"),
        (f"{STATE}|0|selct", [], None, "unknown key 'observations.observation.state.selct'. Did you mean"),
        (f"{STATE}|0|align", None, None, "observations.observation.state.align: expected a group of keys"),
        (f"{STATE}|0|align", {"strategy": "near", "timeline": "header"}, None, "align.strategy: unknown value 'near'"),
        (f"{STATE}|0|align", {"strategy": "asof", "timeline": "header"}, INVALID, "align.tolerance_ms"),
        (f"{STATE}|0|align|timeline", "receive", UNSUPPORTED, "sensor_msgs/msg/JointState must have header"),
        (f"{STATE}|0|channel|decoder", "os:system", UNSUPPORTED, "decoder"),
        (f"{STATE}|0|channel|type", "std_msgs/msg/Float64MultiArray", UNSUPPORTED, "must have receive"),
        (f"{STATE}|1|channel|topic", "/joint_states", INVALID, "/joint_states"),
        (f"{STATE}|0|channel|qos|history", "keep_all", UNSUPPORTED, "history: keep_last"),
        (f"{STATE}|0|channel|qos|reliability", "maybe", None, "qos.reliability: unknown value 'maybe'"),
        ("observations|observation.images.wrist.right|apply", [], UNSUPPORTED, "wrist.right.apply"),
        ("observations|observation.images.wrist.right|apply", [{"resize": [3]}], None, "expected a list of 2"),
        ("observations|observation.images.wrist.right|apply", ["rot90"], INVALID, "wrist.right"),
        ("actions|gripper", JOINTS, UNSUPPORTED, "action, gripper"),
        (ACTION, [JOINTS, JOINTS], UNSUPPORTED, "actions.action"),
        (f"{ACTION}|channel|type", "sensor_msgs/msg/JointState", UNSUPPORTED, "type=sensor_msgs/msg/JointState"),
        (f"{ACTION}|channel|safety", "zeros", UNSUPPORTED, "safety=zeros"),
        (f"{ACTION}|channel|encoder", "os:system", UNSUPPORTED, "encoder"),
        (f"{ACTION}|apply", ["rad2deg"], UNSUPPORTED, "actions.action.apply"),
        (f"{ACTION}|apply", [{"clamp": {"min": 0}}], None, "clamp.max is missing"),
        (f"{ACTION}|select", ["velocity.j1"], UNSUPPORTED, "velocity.j1"),
        (f"{ACTION}|align|strategy", "drop", UNSUPPORTED, "align.strategy"),
        ("tasks", {"task": {"channel": {"topic": "/t", "type": "std_msgs/msg/String"}}}, UNSUPPORTED, "durability"),
        ("tasks", {"words": {"channel": {"topic": "/t", "type": "std_msgs/msg/String"}}}, UNSUPPORTED, "tasks"),
    ],
)
def test_unsupported_contracts_are_refused(tmp_path: Path, path: str, value: Any, code: str | None, data: str) -> None:
    """`code` is None for errors of `freeze_config`."""
    with pytest.raises(UserError) as raised:
        read_contract(change_contract(tmp_path, path, value))
    assert data in str(raised.value) and str(raised.value).startswith(str(tmp_path / "contract.yaml"))
    assert "\n" not in str(raised.value) and raised.value.code
    assert code in (None, raised.value.code)


def test_a_robot_file_survives_a_round_trip(tmp_path: Path) -> None:
    file = plain_franka(tmp_path)
    contract = tmp_path / "contract.yaml"
    contract.write_text(write_contract(file))
    said = yaml.safe_load(contract.read_text())
    assert said["robot_type"] == "franka_fr3" and said["fps"] == 10
    assert said["observations"]["observation.state"]["select"] == [f"position.fr3_joint{n}" for n in range(1, 8)]
    assert said["observations"]["observation.images.wrist"]["apply"] == [{"resize": [224, 224]}]
    assert said["actions"]["action"]["channel"]["safety"] == "hold"
    assert said["tasks"]["task"]["channel"]["qos"]["durability"] == "transient_local"
    again = tmp_path / "again.yaml"
    text, missing = read_contract(contract)
    again.write_text(text)
    assert read_robot(again) == read_robot(file) and missing == []


def test_a_mobile_base_stops_by_zeros(tmp_path: Path) -> None:
    file = write_robot(tmp_path, "mobile_base", cameras__front__resize="nearest", cameras__front__fit="stretch")
    said = yaml.safe_load(write_contract(file))
    assert said["actions"]["action"]["channel"]["safety"] == "zeros"
    assert said["actions"]["action"]["select"] == ["twist.linear.x", "twist.angular.z"]


@pytest.mark.parametrize(
    ("path", "value", "code", "data"),
    [
        ("fps", 20, "contract-contradicts-robot", "fps"),
        (f"{ACTION}|select", ["position.fr3_joint1"], "contract-contradicts-robot", "actions.action.select"),
        ("adjunct", [], "contract-contradicts-robot", "adjunct"),
        (f"{OURS}|actions|joint1|limits|low", 9, "", "actions.joint1.limits.low=9"),
    ],
)
def test_a_contract_that_contradicts_its_robot_file_is_refused(
    tmp_path: Path, path: str, value: Any, code: str, data: str
) -> None:
    contract = yaml.safe_load(write_contract(plain_franka(tmp_path)))
    with pytest.raises(UserError) as raised:
        read_contract(change_contract(tmp_path, path, value, contract))
    assert data in str(raised.value) and raised.value.code.startswith(code)


@pytest.mark.parametrize(
    ("name", "changes", "data"),
    [
        ("tabletop", {}, "control_hz=12.5"),
        ("franka", {}, "resize: area, fit: crop"),
        ("ur5e", {"cameras": None, "state__elbow__reads": "2 * joints.position[elbow_joint]"}, "state.elbow.reads"),
        ("ur5e", {"cameras": None, "topics__joints__max_age_s": 0.0505}, "max_age_s=0.0505"),
        ("so101", {"cameras": None, "command__order": ORDER}, "command.order"),
        ("mobile_base", {"cameras": None, "actions__drive__kind": "displacement"}, "actions.drive.kind"),
        ("mobile_base", {"cameras": None, "commands": {"turn": {"topic": "/turn", "kind": "twist"}},
                         "actions__turn__command": "turn"}, "commands.turn"),
    ],
)  # fmt: skip
def test_robots_that_a_contract_cannot_express_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], data: str
) -> None:
    with refuses("contract-not-expressible", data, tmp_path / "mine.yaml"):
        write_contract(write_robot(tmp_path, name, **changes))
