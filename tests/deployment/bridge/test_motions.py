"""Returns, stored places and replays: which files are accepted, which tries count, and what an operator requests."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.motion_files import load_demonstration, make_motion_manager
from embodied_rl.deployment.bridge.motions import MotionManager
from embodied_rl.deployment.execution.return_points import (
    ReturnPoint,
    ReturnPoints,
    load_return_points,
    save_return_points,
)
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.robots.return_file import ReturnFile
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from embodied_rl.schema import BridgeConfig
from tests.deployment.bridge.test_real_time import MovingPolicy, assert_ramped, request_episode
from tests.support.bridging import RealTimeBench
from tests.support.control_loop import ControlLoop
from tests.support.demonstrations import write_episode
from tests.support.recorded_robot import FakeRun, record_run
from tests.support.refusals import refuses

ROBOT = load_robot("tabletop")
NAMES = tuple(entry.name for entry in ROBOT.actions)
CONFIG = BridgeConfig("tabletop", "ws://127.0.0.1:1")
POINTS = ReturnPoints(
    ROBOT.name,
    NAMES,
    (ReturnPoint("high", "lift", (0.5, 0.0, 0.2, None)), ReturnPoint("low", "lift", (0.5, 0.0, 0.1, -1.0), "", 8, 8)),
)
HERE, OPEN = np.array([0.5, 0.1, 0.2, math.nan]), np.array([0.0, 0.0, 0.0, 1.0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_return_points(POINTS, tmp_path / "points.json")
    return tmp_path / "points.json"


def read(path: Path) -> ReturnPoints:
    return load_return_points(path, ROBOT.name, ROBOT.limits)


def without(*buttons: str) -> RobotDescription:
    device = replace(ROBOT.operator.device, **dict.fromkeys(buttons))
    return replace(ROBOT, operator=replace(ROBOT.operator, device=device))


# which tries count


class FakeCore:
    """A core with a mode that a test sets."""

    mode, planned = Mode.HOLD, None

    def plan(self, motion: Any) -> None:
        self.planned = motion


def go_back(manager: MotionManager, core: FakeCore, arrives: bool = True) -> Any:
    """Request a return, which begins and ends."""
    manager.prepare(OperatorInput(wanted=Mode.RETURN), core, (HERE, OPEN), "lift")  # type: ignore[arg-type]
    manager.follow(Mode.RETURN, "", "lift")
    assert core.planned is not None
    core.planned.arrived = arrives
    manager.follow(Mode.HOLD, "", "lift")
    return core.planned


@pytest.mark.parametrize(
    ("modes", "arrives", "counts"),
    [
        ("hold run hold", True, True),
        ("run teleop run hold", True, True),
        ("run estop hold", True, True),
        ("run hold", False, False),
        ("hold", True, False),
        ("teleop hold run", True, False),
        ("replay hold run", True, False),
        ("run replay hold", True, False),
        ("run hold return hold", True, False),
    ],
)
def test_only_a_try_that_began_at_a_point_is_counted(file: Path, modes: str, arrives: bool, counts: bool) -> None:
    manager, core = make_motion_manager(replace(CONFIG, return_points=str(file)), ROBOT), FakeCore()
    name = go_back(manager, core, arrives).point.name
    before = read(file).find(name)
    for mode in modes.split():
        manager.follow(Mode(mode), "", "lift")
    manager.follow(Mode.HOLD, "failure", "lift")
    manager.settle()
    assert read(file).find(name).tries == before.tries + counts
    assert read(file).find(name).failures == before.failures + counts


def test_a_new_episode_ends_the_try(file: Path) -> None:
    manager, core = make_motion_manager(replace(CONFIG, return_points=str(file)), ROBOT), FakeCore()
    go_back(manager, core)
    manager.follow(Mode.RUN, "", "lift")
    manager.forget()
    manager.follow(Mode.HOLD, "failure", "lift")
    assert manager.settle() == [] and read(file) == POINTS


def test_no_return_without_a_point_of_the_present_task(file: Path) -> None:
    manager, core = make_motion_manager(replace(CONFIG, return_points=str(file)), ROBOT), FakeCore()
    go_back(manager, core)
    request = OperatorInput(wanted=Mode.RETURN)
    assert manager.prepare(request, core, (HERE, OPEN), "sweep").wanted is None  # type: ignore[arg-type]
    assert manager.refused.startswith("return was refused: robot 'tabletop' has no return point of the task 'sweep'")
    assert manager.prepare(request, core, (HERE, OPEN), "lift").wanted == Mode.RETURN  # type: ignore[arg-type]
    assert manager.refused == ""


def test_points_are_drawn_by_weight_and_announced(file: Path) -> None:
    manager, core = make_motion_manager(replace(CONFIG, return_points=str(file), seed=5), ROBOT), FakeCore()
    manager.follow(Mode.HOLD, "", "lift")
    shown, gone = [], []
    for _ in range(40):
        shown.append(manager.describe()["return"])
        gone.append(go_back(manager, core).words)
    tries = sum(point.tries for point in POINTS.points)
    assert gone == shown
    assert [each.split("'")[1] for each in gone] == [POINTS.choose(5, tries + number).name for number in range(40)]
    assert {each.split("'")[1] for each in gone} == {"high", "low"}


# the file


def test_concurrent_changes_of_the_file_are_kept(file: Path) -> None:
    mine = ReturnFile(file, ROBOT)
    save_return_points(POINTS.add(ReturnPoint("theirs", "", (0.4, 0.0, 0.2, None))), file)
    mine.count("low", failed=False)
    assert mine.write() == [f"counted a success from the return point 'low', in {file}"]
    assert [point.name for point in read(file).points] == ["high", "low", "theirs"]
    assert (read(file).find("low").tries, read(file).find("low").failures) == (9, 8)
    assert mine.write() == []


def test_failed_writes_are_reported_and_retried_with_the_next_change(file: Path) -> None:
    mine, sound = ReturnFile(file, ROBOT), file.read_text()
    file.write_text("{")
    mine.count("low", failed=True)
    assert mine.write() == []
    assert f"return_points={file}: 1 changes are not written: {file} cannot be read" in mine.problem
    assert file.read_text() == "{"
    file.write_text(sound)
    assert mine.write() == []
    mine.count("high", failed=True)
    assert len(mine.write()) == 2 and mine.problem == ""
    assert [point.failures for point in read(file).points] == [1, 9]
    mine.count("high", failed=True)
    file.unlink()
    with refuses("return-points-not-written", file, "1 changes"):
        mine.close()


def test_an_interrupted_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    mine = ReturnFile(file, ROBOT)
    mine.count("low", failed=False)
    with pytest.raises(KeyboardInterrupt):
        mine.write()
    assert read(file) == POINTS


@pytest.mark.parametrize(
    ("measured", "commanded", "data"),
    [
        ((0.9, 0.1, 0.2, math.nan), (0, 0, 0, 1), ["point 1", "'move_x'", "0.9", "0.24…0.72"]),
        ((0.5, math.nan, 0.2, math.nan), (0, 0, 0, 1), ["'move_y'"]),
        ((0.5, math.inf, 0.2, math.nan), (0, 0, 0, 1), ["'move_y'"]),
        ((0.5, 0.1, 0.2, math.nan), (0, 0, 0, 1.5), ["point 1", "'gripper'", "1.5"]),
    ],
)
def test_an_invalid_place_is_not_stored(
    tmp_path: Path, measured: tuple[float, ...], commanded: tuple[float, ...], data: list[str]
) -> None:
    mine = ReturnFile(tmp_path / "new.json", ROBOT)
    with pytest.raises(UserError) as caught:
        mine.store(np.array(measured), np.array(commanded, float), "lift")
    assert all(each in str(caught.value) for each in data)
    assert mine.write() == [] and not mine.path.exists()


def test_a_place_is_stored_from_measured_and_commanded_entries(tmp_path: Path) -> None:
    mine = ReturnFile(tmp_path / "new.json", ROBOT)
    mine.store(HERE, OPEN, "lift")
    mine.store(HERE, OPEN, "push")
    mine.write()
    assert read(mine.path).points == (
        ReturnPoint("point 1", "lift", (0.5, 0.1, 0.2, 1.0)),
        ReturnPoint("point 2", "push", (0.5, 0.1, 0.2, 1.0)),
    )
    base = load_robot("mobile_base")
    with refuses("robot-position-not-measured", "actions.<entry>.measured"):
        ReturnFile(tmp_path / "base.json", base).store(np.full(2, math.nan), np.zeros(2), "drive")


# refusals before the robot moves


@pytest.mark.parametrize(
    ("changes", "robot", "words"),
    [
        (
            {"return_points": "{}/none/points.json"},
            ROBOT,
            r"the folder .*none is missing\. Create it, or correct the path",
        ),
        ({"return_points": "{}/new.json"}, without("store"), "new.json.*operator.device.store"),
        ({"return_points": "{}/new.json"}, without("go_back"), "return_points: .*operator.device.go_back"),
        ({"replay": "{}/sound.npz"}, without("replay"), "replay: .*operator.device.replay"),
        ({"replay": "{}/none.npz"}, ROBOT, "replay: .*none.npz cannot be read"),
        ({"replay": "{}/sound.npz", "replay_episode": 1}, ROBOT, "is one episode. Leave replay_episode out"),
        ({"replay_episode": 1}, ROBOT, "replay_episode=1 needs replay="),
        ({"replay": "{}/other.npz"}, ROBOT, "replay: .*other.npz is of another robot: action_names"),
        ({"replay": "{}/outside.npz"}, ROBOT, "the start of outside.npz: pose of 'move_x' is 0.9, outside of its 0.24"),
        ({"replay": "{}/storage"}, ROBOT, "storage is a replay storage"),
        ({"replay": "{}"}, ROBOT, "no description of the recorded robot"),
        (
            {"return_points": "{}/franka.json"},
            ROBOT,
            "return_points: .*json: robot is 'franka', and 'tabletop'",
        ),
        ({"return_points": "{}/odd.json"}, ROBOT, "return_points: .*odd.json: unknown key 'plugin'"),
    ],
)
def test_invalid_files_and_settings(
    tmp_path: Path, changes: dict[str, Any], robot: RobotDescription, words: str
) -> None:
    actions, state = np.zeros((3, 4)), np.full((3, 7), 0.25)
    write_episode(tmp_path / "sound.npz", ROBOT.body, actions, state)
    write_episode(tmp_path / "outside.npz", ROBOT.body, actions, np.full((3, 7), 0.9))
    write_episode(tmp_path / "other.npz", ROBOT.body, actions, state, action_names=["a", "b", "c", "d"])
    save_return_points(POINTS, tmp_path / "odd.json")
    keys = json.loads((tmp_path / "odd.json").read_text())
    (tmp_path / "odd.json").write_text(json.dumps(keys | {"plugin": "os"}))
    (tmp_path / "franka.json").write_text(json.dumps(keys | {"robot": "franka"}))
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "format.json").write_text("{}")
    named = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(UserError, match=words) as caught:
        make_motion_manager(replace(CONFIG, **named), robot)
    assert "\n" not in str(caught.value)


# a recording as a demonstration


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeRun]:
    def run(fake: FakeRun) -> None:
        for number, blind in ((4, []), (5, [3])):
            fake.run_episode(number, [Source.HUMAN] * 8, words=f"task {number}", blind=blind)
            fake.publish_text(fake.robot.operator.label, "success")

    folder = tmp_path_factory.mktemp("recordings") / "bag"
    return folder, record_run(folder, Messages("jazzy"), run)


def test_an_episode_of_a_recording_is_a_demonstration(recording: tuple[Path, FakeRun]) -> None:
    folder, fake = recording
    told, truth = load_demonstration(folder, 0, ROBOT), fake.truth[0]
    assert told.times == pytest.approx(0.08 * np.arange(9))
    assert (told.actions == np.array([step.executed for step in truth])).all()
    assert (told.measured[:, :3] == np.array([step.state[:3] for step in truth])).all()
    assert np.isnan(told.measured[:, 3]).all()


def test_incomplete_and_unknown_episodes_are_refused(recording: tuple[Path, FakeRun]) -> None:
    folder, _ = recording
    for episode, words in (
        (None, r"replay_episode=<number> to one of 0 \(task 4\), 1 \(task 5\)"),
        (7, "replay_episode=<number>"),
        (1, "episode 1 is incomplete: steps without a message of /camera/front/image_raw"),
    ):
        with pytest.raises(UserError, match=words):
            load_demonstration(folder, episode, ROBOT)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"unit": "rad"}, r"actions\.move_x\.unit=rad"),
        ({"kind": "velocity"}, "kind of 'move_x' is 'velocity' there, 'displacement' here"),
        ({"measured": "tool_y"}, "measured of 'move_x' is 'tool_y' there, 'tool_x' here"),
        ({"action_high": 0.02}, r"action_high \(0.02, 0.03, 0.03, 1.0\) there"),
    ],
)
def test_a_recording_of_another_robot_is_refused(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    actions = (replace(ROBOT.actions[0], **entry), *ROBOT.actions[1:])
    limits = ROBOT.limits
    if "kind" in entry:
        limits = replace(limits, entries=(replace(limits.entries[0], kind=entry["kind"]), *limits.entries[1:]))
    write_description(replace(ROBOT, actions=actions, limits=limits), tmp_path)
    with pytest.raises(UserError, match=words):
        load_demonstration(tmp_path, None, ROBOT)


DEVICE = ROBOT.operator.device


class Operator:
    """An operator at the tabletop's joystick; the robot's policy drives to the left."""

    def __init__(self, **changes: Any) -> None:
        self.bench = RealTimeBench(None if changes.get("policy", "") is None else MovingPolicy(), changes)
        self.steps: list[dict[str, Any]] = []
        note = lambda message, *_: self.steps.append(json.loads(message.data))  # noqa: E731
        self.bench.node.create_subscription("/policy_bridge/steps", "std_msgs/msg/String", "command", note)
        self.bench.prepare()
        self.move()

    def move(self, *axes: float, press: Sequence[str] = ()) -> None:
        """Move the joystick's axes, and press buttons by their use."""
        deflected = np.array([*axes, *np.zeros(5)][:5], np.float32)
        buttons = np.zeros(11, np.int32)
        buttons[[getattr(DEVICE, each) for each in press]] = 1
        self.bench.say("/teleop", "sensor_msgs/msg/Joy", "sensor_data", axes=deflected, buttons=buttons)
        self.bench.run(0.05)

    def press(self, button: str, then_s: float = 0.0) -> None:
        """Press and release a button; then let time pass."""
        self.move(press=[button])
        self.move()
        self.bench.run(then_s)

    def label(self, text: str) -> None:
        self.bench.say("/label", "std_msgs/msg/String", "command", data=text)
        self.bench.run(0.05)

    def wait_until_holding(self, most: float = 12.0) -> None:
        for _ in range(round(most / 0.1)):
            if self.status["mode"] == "hold":
                return
            self.bench.run(0.1)
        raise AssertionError(f"it does not come to hold: {self.status}")

    @property
    def status(self) -> dict[str, Any]:
        return self.bench.bridge.describe()

    @property
    def tool(self) -> np.ndarray:
        return self.bench.robot.robot.read().tool[0]


def save_point(folder: Path, *place: float) -> Path:
    """Save a point of any task, with the gripper where it is."""
    point = ReturnPoint("high", "", (*place, None))
    save_return_points(ReturnPoints(ROBOT.name, NAMES, (point,)), folder / "points.json")
    return folder / "points.json"


@pytest.mark.thorough
def test_an_operator_stores_a_place_and_sends_the_robot_back_to_it(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    operator = Operator(return_points=str(file))
    assert not file.exists()
    operator.bench.run(0.3)
    operator.press("hold", 0.6)
    stored = operator.tool.copy()
    operator.press("store")
    (point,) = read(file).points
    assert (point.name, point.task) == ("point 1", operator.bench.bridge.episodes.instruction)
    assert point.pose == (*(pytest.approx(place, abs=1e-3) for place in stored), -1)
    operator.press("run", 1.5)
    operator.press("hold", 0.5)
    assert operator.tool[1] - stored[1] > 0.06, "the policy drove away"
    operator.steps.clear()
    operator.press("go_back")
    assert operator.status["mode"] == "return"
    operator.wait_until_holding()
    assert operator.status["why"] == "the return is done"
    assert operator.tool == pytest.approx(stored, abs=0.008)
    went = [each["source"] for each in operator.steps if each["mode"] == "return"]
    assert len(went) > 5 and {*went[1:]} == {"replay"}, "the first one began before the request"
    assert_ramped(operator.bench)


@pytest.mark.thorough
def test_tries_from_a_point_are_counted_in_its_file(tmp_path: Path) -> None:
    file = save_point(tmp_path, 0.5, 0.0, 0.2)
    operator, lines = Operator(return_points=str(file)), []
    operator.bench.bridge.print_line = lines.append
    operator.bench.run(0.3)
    operator.label("failure")
    assert read(file).points[0].tries == 0, "it did not begin there"
    for label, counted in (("failure", (1, 1)), ("abort", (1, 1)), ("success", (2, 1))):
        operator.press("go_back")
        operator.wait_until_holding()
        operator.press("run", 0.3)
        operator.label(label)
        point = read(file).points[0]
        assert (point.tries, point.failures) == counted
        operator.label("failure")
        assert read(file).points[0] == point, "an episode has one end"
    assert operator.status["motions"]["return"] == "go to the return point 'high' (1 of 2 tries failed there)"
    assert f"counted a success from the return point 'high', in {file}" in "\n".join(lines)


@pytest.mark.thorough
def test_a_simulated_robot_s_outcome_counts_as_a_label(tmp_path: Path) -> None:
    file = save_point(tmp_path, 0.5, 0.0, 0.2)
    operator = Operator(return_points=str(file), episodes=True)
    request_episode(operator.bench, 4)
    operator.press("hold", 0.3)
    operator.press("go_back")
    operator.wait_until_holding()
    operator.press("run", 6.0)  # its time limit
    assert operator.status["waiting"]
    assert (read(file).points[0].tries, read(file).points[0].failures) == (1, 1)


@pytest.mark.thorough
def test_a_human_who_touches_the_joystick_takes_over_from_a_return(tmp_path: Path) -> None:
    file = save_point(tmp_path, 0.6, 0.2, 0.25)
    operator = Operator(return_points=str(file))
    operator.bench.run(0.3)
    operator.press("hold", 0.3)
    operator.press("go_back")
    operator.move(0.0, 0.5)
    assert operator.status["mode"] == "teleop"
    operator.bench.run(0.1)
    operator.press("hold")
    operator.press("run", 0.2)
    operator.label("success")
    assert read(file).points[0].tries == 0, "the robot did not arrive"
    assert_ramped(operator.bench)


def test_a_refused_store(tmp_path: Path) -> None:
    operator = Operator(return_points=str(tmp_path / "points.json"))
    operator.bench.bridge.episodes.instruction = "x" * 501
    operator.press("hold")
    operator.press("store")
    assert "store was refused: point 1: task must be one line" in operator.status["why"]
    assert list(tmp_path.iterdir()) == []


def record_move(bench: RealTimeBench, path: Path) -> Path:
    """An episode that moves the tool to the left from where it is, 1 cm a step, with an open gripper."""
    seen = bench.bridge.latest.observe(bench.bridge.latest.snapshot(), "").state[0].astype(np.float64)
    state = np.tile(seen, (10, 1))
    state[:, 1] += 0.01 * np.arange(10)
    actions = np.tile(np.array([0.0, 0.01, 0.0, 1.0], np.float32), (10, 1))
    return write_episode(path, ROBOT.body, actions, state)


@pytest.mark.thorough
def test_a_demonstration_is_replayed_only_from_its_start(tmp_path: Path) -> None:
    bench = RealTimeBench(MovingPolicy())
    bench.prepare()
    operator = Operator(replay=str(record_move(bench, tmp_path / "left.npz")))
    operator.press("hold", 0.3)
    start = operator.tool.copy()
    operator.steps.clear()
    operator.press("replay")
    assert operator.status["mode"] == "replay"
    operator.wait_until_holding()
    assert operator.status["why"] == "the replay is done"
    operator.bench.run(0.5)
    assert operator.tool - start == pytest.approx([0, 0.1, 0], abs=0.015)
    replayed = [each for each in operator.steps if each["source"] == "replay"]
    assert len(replayed) in (10, 11) and {each["mode"] for each in replayed[:-1]} == {"replay"}
    assert np.array([each["executed"] for each in replayed[4:8]]) == pytest.approx(
        np.tile([0, 0.01, 0, 1], (4, 1)), abs=1e-6
    )

    count = len(operator.bench.commands)
    operator.press("replay", 0.3)
    assert "the replay was refused: 'move_y' is away from the recorded start by 0.1" in operator.status["why"]
    assert (np.array(operator.bench.commands)[count:, :3] == 0).all(), "the robot did not move"

    operator.press("go_back")
    assert operator.status["mode"] == "return", "without return points it goes to the recorded start"
    operator.wait_until_holding()
    operator.press("replay")
    assert operator.status["mode"] == "replay"
    operator.wait_until_holding()
    assert operator.status["why"] == "the replay is done"
    assert_ramped(operator.bench)


def test_a_refusal_ends_with_the_next_mode() -> None:
    loop, manager, nowhere = ControlLoop(), MotionManager(), (np.zeros(2), np.zeros(2))
    manager.prepare(OperatorInput(store=True), loop.core, nowhere, "")
    assert manager.refused
    manager.follow(Mode.HOLD, "", "")
    assert manager.refused
    manager.follow(Mode.RUN, "", "")
    assert not manager.refused
