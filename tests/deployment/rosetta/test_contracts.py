"""Contracts of rosetta, there and back: nothing is lost in silence, and nothing of a stranger's is believed."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.deployment.robots.reading import read_robot
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import OURS, write_contract
from embodied_rl.interfaces.errors import UserError
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
STATE, ACTION = "observations|observation.state", "actions|action"


def change_contract(folder: Path, path: str, value: Any, contract: dict[str, Any] = ARM) -> Path:
    """A contract with a changed key; its path has | between keys, because they have dots."""
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
    """The Franka's file, with pictures as rosetta resizes them."""
    return write_robot(folder, "franka", cameras__wrist__resize="nearest", cameras__wrist__fit="stretch")


def test_a_contract_becomes_a_file_that_waits_for_numbers(tmp_path: Path) -> None:
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


def test_nobody_loads_it_before_the_numbers_are_there(tmp_path: Path) -> None:
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
    ("path", "value", "words"),
    [
        ("teleop", {"input": []}, "teleop: operators move the robot through the topics of `operator`"),
        ("rewards", {}, "rewards: rewards come from"),
        ("signals", {}, "signals: episodes end"),
        ("info", {}, "info: it has no place"),
        ("complementary_data", {}, "complementary_data: it has no place"),
        ("adjunct", [], "adjunct: topics that are recorded alone"),
        ("observation", {}, "unknown key 'observation'. Did you mean 'observations'"),
        ("fps", 12.5, "fps: expected a whole number"),
        ("fps", 0, "fps must be at least 1"),
        ("robot_interface", "ros1", "robot_interface: unknown value 'ros1'"),
        ("observations|observation.imu", JOINTS, "observations.observation.imu: pictures and one observation.state"),
        (STATE, 3, "observations.observation.state holds no keys"),
        (f"{STATE}|0|apply", ["rad2deg"], "states are in SI here"),
        (f"{STATE}|0|kind", "quaternion", "kind=quaternion: entries are plain numbers"),
        (f"{STATE}|0|select", ["position.j1", "position.j1"], "position.j1 stands there twice"),
        (f"{STATE}|0|select", [], "select is missing"),
        (f"{STATE}|0|selct", [], "unknown key 'observations.observation.state.selct'. Did you mean"),
        (f"{STATE}|0|align", None, "observations.observation.state.align: expected a group of keys"),
        (f"{STATE}|0|align", {"strategy": "near", "timeline": "header"}, "align.strategy: unknown value 'near'"),
        (f"{STATE}|0|align", {"strategy": "asof", "timeline": "header"}, "asof needs a time above 0"),
        (f"{STATE}|0|align|timeline", "receive", "the time of sensor_msgs/msg/JointState is header here"),
        (f"{STATE}|0|channel|decoder", "os:system", "decoder and encoder name code"),
        (f"{STATE}|0|channel|type", "std_msgs/msg/Float64MultiArray", "is receive here"),
        (f"{STATE}|1|channel|topic", "/joint_states", "/joint_states is read twice"),
        (f"{STATE}|0|channel|qos|history", "keep_all", "history: keep_last"),
        (f"{STATE}|0|channel|qos|reliability", "maybe", "qos.reliability: unknown value 'maybe'"),
        ("observations|observation.images.wrist.right|apply", [], "a camera has one step"),
        ("observations|observation.images.wrist.right|apply", [{"resize": [3]}], "expected a list of 2"),
        ("observations|observation.images.wrist.right|apply", ["rot90"], "holds no keys"),
        ("actions|gripper", JOINTS, "a robot has one command, 'action', and here are action, gripper"),
        (ACTION, [JOINTS, JOINTS], "a command over several topics is not sent"),
        (f"{ACTION}|channel|type", "sensor_msgs/msg/JointState", "not sensor_msgs/msg/JointState"),
        (f"{ACTION}|channel|safety", "zeros", "a stop is a ramp to rest here, never a move to zero"),
        (f"{ACTION}|channel|encoder", "os:system", "decoder and encoder name code"),
        (f"{ACTION}|apply", ["rad2deg"], "commands are in SI here"),
        (f"{ACTION}|apply", [{"clamp": {"min": 0}}], "clamp.max is missing"),
        (f"{ACTION}|select", ["velocity.j1"], "a trajectory is commanded by positions here"),
        (f"{ACTION}|align|strategy", "drop", "a command holds until the next one"),
        ("tasks", {"task": {"channel": {"topic": "/t", "type": "std_msgs/msg/String"}}}, "latched here"),
        ("tasks", {"words": {"channel": {"topic": "/t", "type": "std_msgs/msg/String"}}}, "one task"),
    ],
)
def test_what_has_no_meaning_here_is_refused_by_its_key(tmp_path: Path, path: str, value: Any, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read_contract(change_contract(tmp_path, path, value))
    assert words in str(raised.value) and str(raised.value).startswith(str(tmp_path / "contract.yaml"))
    assert "\n" not in str(raised.value)


def test_a_robot_comes_back_from_its_contract(tmp_path: Path) -> None:
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


def test_a_base_stops_by_zeros(tmp_path: Path) -> None:
    file = write_robot(tmp_path, "mobile_base", cameras__front__resize="nearest", cameras__front__fit="stretch")
    said = yaml.safe_load(write_contract(file))
    assert said["actions"]["action"]["channel"]["safety"] == "zeros"
    assert said["actions"]["action"]["select"] == ["twist.linear.x", "twist.angular.z"]


def change_fps(said: dict[str, Any]) -> None:
    said["fps"] = 20


def change_select(said: dict[str, Any]) -> None:
    said["actions"]["action"]["select"].reverse()


def add_adjunct(said: dict[str, Any]) -> None:
    said["adjunct"] = []


def break_ours(said: dict[str, Any]) -> None:
    said[OURS]["actions"]["joint1"]["limits"]["low"] = 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_fps, "fps was changed, and x-embodied-rl says otherwise"),
        (change_select, "actions.action.select was changed"),
        (add_adjunct, "adjunct was changed"),
        (break_ours, "actions.joint1.limits.low=9 must be below"),
    ],
)
def test_a_contract_that_was_changed_does_not_carry_another_robot(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    contract = tmp_path / "contract.yaml"
    said = yaml.safe_load(write_contract(plain_franka(tmp_path)))
    change(said)
    contract.write_text(yaml.dump(said, Dumper=_WithoutReferences, sort_keys=False))
    with pytest.raises(UserError) as raised:
        read_contract(contract)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tabletop", {}, "control_hz=12.5: the fps of a contract are a whole number"),
        ("franka", {}, "resize: area, fit: crop make other pixels than rosetta"),
        ("ur5e", {"cameras": None, "state__elbow__reads": "2 * joints.position[elbow_joint]"}, "sums and factors"),
        ("ur5e", {"cameras": None, "topics__joints__max_age_s": 0.0505}, "whole milliseconds"),
        ("so101", {"cameras": None, "command__order": ORDER}, "command.order"),
        ("mobile_base", {"cameras": None, "actions__drive__kind": "displacement"}, "is sent as a speed"),
        ("mobile_base", {"cameras": None, "commands": {"turn": {"topic": "/turn", "kind": "twist"}},
                         "actions__turn__command": "turn"}, "commands.turn"),
    ],
)  # fmt: skip
def test_what_a_contract_cannot_say_is_refused_by_its_key(
    tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as raised:
        write_contract(write_robot(tmp_path, name, **changes))
    assert words in str(raised.value) and str(tmp_path / "mine.yaml") in str(raised.value)
