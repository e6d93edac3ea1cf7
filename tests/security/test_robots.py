"""What strangers send to a robot: its file, messages on its topics, and the commands that open them."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rosbags")
pytest.importorskip("mcap")

from embodied_rl.deployment.bridge.operator_topics import EpisodeTracker
from embodied_rl.deployment.robots.description import CameraEntry, OperatorTopics
from embodied_rl.deployment.robots.fields import UnusableMessageError, make_reader
from embodied_rl.deployment.robots.mapping import ObservationMapping
from embodied_rl.deployment.robots.pictures import read_picture
from embodied_rl.deployment.robots.reading import load_robot, read_robot
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Trust
from embodied_rl.robot_simulator.episode_control import read_end
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.schema.config_file import read_config
from embodied_rl.schema.untrusted_settings import list_settings
from embodied_rl.simulated_robot.requests import read_faults
from tests.support.planting import Plant
from tests.support.recording import TEXT
from tests.support.robots import change_robot, make_tabletop_messages, write_robot
from tests.support.strangers import DEEP

pytestmark = pytest.mark.thorough


MESSAGES = Messages()
ESCAPE = "\x1b]0;evil\x07"

# a robot's file


@pytest.mark.parametrize(
    "value",
    [
        "!!int ''", "!!bool x", "!!timestamp x", "!!float ''", "!!map [1]", "!!set {a}", "!!python/name:os.system",
        "1" + ":59" * 50_000, "9" * 4000, "0x" + "f" * 5000, '"\\e[31m"', '"\\u202e"', "x" * 100_000, "[" * 50_000,
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
@pytest.mark.parametrize("read", [read_robot, read_contract])
def test_values_that_yaml_trips_over(tmp_path: Path, read: Callable[[Path], object], value: str) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(f"name: {value}\n")
    with pytest.raises(UserError, match=r"robot.yaml is not supported YAML") as refused:
        read(file)
    assert len(str(refused.value)) < 500 and str(refused.value).isprintable()


@pytest.mark.parametrize("value", ["!!int ''", "!!bool x", "!!timestamp x", "!!map [1]"])
def test_values_that_a_configuration_trips_over(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(f"sim: {value}\n")
    with pytest.raises(UserError, match=r"config.yaml is damaged"):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"control_hz": 1e-300, "command_hz": 1e300}, "control_hz"),
        ({"control_hz": 5e-324, "command_hz": 5e-324}, "control_hz"),
        ({"command_hz": 12.5e18}, "command_hz"),
        ({"control_hz": 10**39}, "control_hz"),
        ({"topics__tool__rate_hz": 1e300}, "rate_hz"),
        ({"state__tool_x__reads": "1e999 * tool.pose.position.x"}, "tool_x.reads"),
        ({"state__tool_x__reads": "0 * tool.pose.position.x"}, "tool_x.reads"),
    ],
)
def test_numbers_that_no_robot_has(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    file = write_robot(tmp_path, **changes)
    with pytest.raises(UserError, match=f"mine.yaml: .*{key}"):
        read_robot(file)


@pytest.mark.parametrize("entry", ["²", "9" * 500])
def test_entries_that_are_no_numbers(tmp_path: Path, entry: str) -> None:
    topic = {"name": "/array", "type": "std_msgs/msg/Float64MultiArray", "qos": "state", "rate_hz": 10, "max_age_s": 1}
    file = write_robot(tmp_path, topics__array=topic, state__tool_x__reads=f"array.data[{entry}]")
    with pytest.raises(UserError, match=r"tool_x.reads"):
        ObservationMapping(read_robot(file))


def test_a_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "robot.yaml")
    with pytest.raises(UserError, match=r"robot.yaml"):
        read_strict_yaml(tmp_path / "robot.yaml")


def test_nobody_else_switches_off_the_dead_man_s_switch() -> None:
    code = {each.key for each in list_settings(RobotSimulatorConfig) if each.trust is Trust.CODE}
    assert {"deadman", "return_points"} <= code


# messages


@pytest.mark.parametrize("value", [1e300, -3.5e38])
def test_a_state_that_no_policy_can_take(tmp_path: Path, value: float) -> None:
    """It would be infinite as float32."""
    said = make_tabletop_messages(MESSAGES)
    said["tool"].pose.position.x = value
    with pytest.raises(UnusableMessageError, match="tool_x"):
        ObservationMapping(load_robot("tabletop")).read_state(said)


def test_a_sum_that_overflows(tmp_path: Path) -> None:
    reads = ["tool.pose.position.x", "tool.pose.position.y"]
    said = make_tabletop_messages(MESSAGES)
    said["tool"].pose.position.x = said["tool"].pose.position.y = 1.5e308
    with pytest.raises(UnusableMessageError, match="tool_x"):
        ObservationMapping(change_robot(tmp_path, state__tool_x__reads=reads)).read_state(said)


def test_names_of_joints_are_no_commands_of_a_terminal() -> None:
    message = MESSAGES.make("sensor_msgs/msg/JointState", name=[ESCAPE, "x" * 10_000] * 200, position=np.zeros(400))
    with pytest.raises(UnusableMessageError, match="elbow is not one of its joints") as refused:
        make_reader("position[elbow]", "/joints")(message)
    assert len(str(refused.value)) < 1000 and str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("type_name", "said"),
    [
        ("Image", {"encoding": ESCAPE * 10_000, "height": 1, "width": 1}),
        ("CompressedImage", {"format": ESCAPE * 10_000}),
        ("CompressedImage", {"format": "png", "data": np.zeros(9, np.uint8)}),
        ("Image", {"encoding": "mono8", "height": 2**24, "width": 1, "step": 1, "data": np.zeros(2**24, np.uint8)}),
        ("Image", {"encoding": "mono8", "height": 1, "width": 2**24, "step": 2**24, "data": np.zeros(2**24, np.uint8)}),
        ("Image", {"encoding": "mono8", "height": 2**16, "width": 2**16, "step": 2**32 - 1}),
        ("Image", {"encoding": "rgb8", "height": 0, "width": 8, "step": 24}),
        ("Image", {"encoding": "rgb8", "height": 8, "width": 0, "step": 0}),
        ("Image", {"encoding": "rgb8", "height": 2**31, "width": 2**31, "step": 0}),
    ],
)
def test_invalid_pictures(type_name: str, said: dict[str, Any]) -> None:
    message = MESSAGES.make(f"sensor_msgs/msg/{type_name}", **said)
    with pytest.raises(UnusableMessageError) as refused:
        read_picture(message, CameraEntry("front", "front", 64, 64, resize="area", fit="stretch"))
    assert len(str(refused.value)) < 1000 and str(refused.value).isprintable()


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_damaged_pictures_raise_nothing_else(kind: str) -> None:
    from PIL import Image

    file, draw = io.BytesIO(), np.random.default_rng(3)
    Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(file, kind)
    camera = CameraEntry("front", "front", 16, 16)
    for _ in range(300):
        data = np.frombuffer(file.getvalue(), np.uint8).copy()
        data[draw.integers(0, len(data), 3)] = draw.integers(0, 256, 3)
        message = MESSAGES.make(
            "sensor_msgs/msg/CompressedImage", format=kind, data=data[: draw.integers(8, len(data))]
        )
        try:
            read_picture(message, camera)
        except UnusableMessageError as error:
            assert str(error).isprintable()


ABSURD = ["[" * 100_000, DEEP, '{"index": ' + "9" * 30 + "}", '{"index": ' + "9" * 4000 + "}", '{"index": NaN}', "[]"]


@pytest.mark.parametrize("text", ABSURD, ids=range(len(ABSURD)))
@pytest.mark.parametrize("topic", ["/simulation/reset", "/simulation/outcome"])
def test_episode_topics_accept_any_text(topic: str, text: str) -> None:
    """An exception in a callback would end the thread that spins; an index beyond int64 the one that asks."""
    bus = Bus(lambda: 1, MESSAGES)
    with InProcessTransport(bus, "stranger") as stranger, InProcessTransport(bus, "bridge") as node:
        topics = OperatorTopics(reset="/simulation/reset", outcome="/simulation/outcome")
        tracker = EpisodeTracker(node, topics, "lift")
        stranger.create_publisher(topic, TEXT, "latched").publish(MESSAGES.make(TEXT, data=text))
        node.spin_once()
    assert tracker.requested is None and tracker.refused == 1
    assert len(tracker.last_refusal) < 500 and tracker.last_refusal.isprintable()


def test_a_task_instruction_is_one_short_line() -> None:
    bus = Bus(lambda: 1, MESSAGES)
    with InProcessTransport(bus, "stranger") as stranger, InProcessTransport(bus, "bridge") as node:
        tracker = EpisodeTracker(node, OperatorTopics(instruction="/instruction"), None)
        said = stranger.create_publisher("/instruction", TEXT, "latched")
        for text in ("x" * 100_000, f"lift {ESCAPE}"):
            said.publish(MESSAGES.make(TEXT, data=text))
            node.spin_once()
        assert tracker.instruction is None and tracker.refused == 2 and tracker.last_refusal.isprintable()
        said.publish(MESSAGES.make(TEXT, data="lift the cube"))
        node.spin_once()
    assert tracker.instruction == "lift the cube"


@pytest.mark.parametrize("number", ["9" * 400, "NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize("key", ["delay", "share", "clock_jump", "seed"])
def test_faults_of_any_size(key: str, number: str) -> None:
    text = f'{{"{key}": {number}}}'
    if (key, number) == ("seed", "9" * 400):
        assert read_faults(text).seed > 0
        return
    with pytest.raises(UserError, match=key):
        read_faults(text)


@pytest.mark.parametrize("reward", ["9" * 400, "NaN", "1e999", '"x"', "[]"])
def test_an_outcome_of_any_size(reward: str) -> None:
    said = '"index": 1, "success": true, "truncated": false, "failure": ""'
    assert read_end(f'{{{said}, "reward": {reward}}}', 1) is None
    assert read_end(f'{{{said}, "reward": 1}}', 1) is not None


def test_a_factor_in_powers_of_ten(tmp_path: Path) -> None:
    robot = change_robot(tmp_path, state__tool_x__reads="1e-3 * tool.pose.position.x")
    assert robot.state[0].terms[0].scale == 1e-3


@pytest.mark.parametrize("success", ["[]", "{}", "1", '"yes"', "null", "true"])
def test_a_success_that_is_none(success: str) -> None:
    bus = Bus(lambda: 1, MESSAGES)
    with InProcessTransport(bus, "stranger") as stranger, InProcessTransport(bus, "bridge") as node:
        tracker = EpisodeTracker(node, OperatorTopics(reset="/reset", outcome="/outcome"), "lift")
        for topic, text in (("/reset", '{"index": 3}'), ("/outcome", f'{{"index": 3, "success": {success}}}')):
            stranger.create_publisher(topic, TEXT, "latched").publish(MESSAGES.make(TEXT, data=text))
            node.spin_once()
    assert tracker.requested is not None and tracker.is_over(tracker.requested)
    assert tracker.find_label(tracker.requested) == ("success" if success == "true" else "")


Typed = Callable[..., tuple[int, str]]
ROBOTS = {
    "doctor": ("doctor", "robot={}"),
    "contract": ("contract", "robot={}"),
    "contract of rosetta": ("contract", "contract={}"),
    "record": ("record", "robot={}", "out=recorded", "--dry-run"),
    "bridge": ("bridge", "robot={}", "policy=ws://127.0.0.1:9", "--dry-run"),
    "robot": ("robot", "robot={}", "--dry-run"),
    "simulator": ("train", "sim=robot", "sim.robot={}", "--dry-run"),
}
PLANTED = {
    "constructor": "name: !!python/object/apply:os.system ['touch {}']\n",
    "references": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "variable": "name: ${{oc.env:SECRET}}\n",
    "deep": "name: " + "[" * 20_000,
    "terminal": 'name: "\\e]0;evil\\a"\n',
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("command", ROBOTS)
def test_a_robot(plant: Plant, typed: Typed, monkeypatch: pytest.MonkeyPatch, command: str, planted: str) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    file = plant.sent / "robot.yaml"
    file.write_text(PLANTED[planted].format(plant.mark))
    check(plant, typed, file, ROBOTS[command])


@pytest.mark.parametrize("command", [("convert", "{}", "out=made"), ("record", "recover={}", "out=made")])
@pytest.mark.parametrize("content", [b"evil", b"\x89MCAP0\r\n\x06" + b"\xff" * 8, b"\x89MCAP0\r\n\x03\x01" + bytes(8)])
def test_a_recording(plant: Plant, typed: Typed, command: tuple[str, ...], content: bytes) -> None:
    (plant.sent / "a.mcap").write_bytes(content)
    (plant.sent / "b.mcap").symlink_to(plant.outside / "secret.json")
    check(plant, typed, plant.sent, command)
    assert not (plant.work / "made").exists()


def check(plant: Plant, typed: Typed, file: Path, command: tuple[str, ...]) -> None:
    plant.watch()
    code, said = typed(*(word.format(file) for word in command))
    assert plant.find_harm() == []
    lines = [line for line in said.splitlines() if line.startswith("embodied-rl: ")]
    assert code == 2 and len(lines) == 1 and str(file) in lines[0], said
    assert "hunter2" not in said and "\x1b" not in said and "Traceback" not in said
