"""Files of return points and demonstrations: checked before anything moves, and written whole."""

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.motion_files import load_demonstration, make_motions
from embodied_rl.deployment.bridge.motions import MotionDesk
from embodied_rl.deployment.bridge.running import check_bridge
from embodied_rl.deployment.execution.return_points import (
    ReturnPoint,
    ReturnPoints,
    load_return_points,
    save_return_points,
)
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.recording.description_file import write_description
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.robots.return_file import ReturnFile
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from embodied_rl.schema import BridgeConfig
from tests.support.demonstrations import write_episode
from tests.support.recorded_robot import FakeRun, record_run

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


class Asked:
    """A core whose mode a test says."""

    mode, planned = Mode.HOLD, None

    def plan(self, motion: Any) -> None:
        self.planned = motion


def go_back(desk: MotionDesk, core: Asked, arrives: bool = True) -> Any:
    """The operator wants a return, which begins and ends."""
    desk.prepare(OperatorInput(wanted=Mode.RETURN), core, (HERE, OPEN), "lift")  # type: ignore[arg-type]
    desk.follow(Mode.RETURN, "", "lift")
    assert core.planned is not None
    core.planned.arrived = arrives
    desk.follow(Mode.HOLD, "", "lift")
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
def test_what_began_at_a_point_is_counted_there_and_nothing_else(
    file: Path, modes: str, arrives: bool, counts: bool
) -> None:
    desk, core = make_motions(replace(CONFIG, return_points=str(file)), ROBOT), Asked()
    name = go_back(desk, core, arrives).point.name
    before = read(file).find(name)
    for mode in modes.split():
        desk.follow(Mode(mode), "", "lift")
    desk.follow(Mode.HOLD, "failure", "lift")
    desk.settle()
    assert read(file).find(name).tries == before.tries + counts
    assert read(file).find(name).failures == before.failures + counts


def test_an_episode_that_is_asked_for_anew_ends_the_try(file: Path) -> None:
    desk, core = make_motions(replace(CONFIG, return_points=str(file)), ROBOT), Asked()
    go_back(desk, core)
    desk.follow(Mode.RUN, "", "lift")
    desk.forget()
    desk.follow(Mode.HOLD, "failure", "lift")
    assert desk.settle() == [] and read(file) == POINTS


def test_an_older_motion_is_not_done_where_the_present_task_has_no_point(file: Path) -> None:
    desk, core = make_motions(replace(CONFIG, return_points=str(file)), ROBOT), Asked()
    go_back(desk, core)
    wish = OperatorInput(wanted=Mode.RETURN)
    assert desk.prepare(wish, core, (HERE, OPEN), "sweep").wanted is None  # type: ignore[arg-type]
    assert desk.refused.startswith("return was refused: robot 'tabletop' has no return point of the task 'sweep'")
    assert desk.prepare(wish, core, (HERE, OPEN), "lift").wanted == Mode.RETURN  # type: ignore[arg-type]
    assert desk.refused == ""


def test_points_are_drawn_by_their_weights_and_shown_before(file: Path) -> None:
    desk, core = make_motions(replace(CONFIG, return_points=str(file), seed=5), ROBOT), Asked()
    desk.follow(Mode.HOLD, "", "lift")
    shown, gone = [], []
    for _ in range(40):
        shown.append(desk.describe()["return"])
        gone.append(go_back(desk, core).words)
    tries = sum(point.tries for point in POINTS.points)
    assert gone == shown
    assert [each.split("'")[1] for each in gone] == [POINTS.choose(5, tries + number).name for number in range(40)]
    assert {each.split("'")[1] for each in gone} == {"high", "low"}


# the file


def test_what_somebody_else_changed_meanwhile_stays(file: Path) -> None:
    mine = ReturnFile(file, ROBOT)
    save_return_points(POINTS.add(ReturnPoint("theirs", "", (0.4, 0.0, 0.2, None))), file)
    mine.count("low", failed=False)
    assert mine.write() == [f"counted a success from the return point 'low', in {file}"]
    assert [point.name for point in read(file).points] == ["high", "low", "theirs"]
    assert (read(file).find("low").tries, read(file).find("low").failures) == (9, 8)
    assert mine.write() == []


def test_what_cannot_be_written_is_kept_and_said(file: Path) -> None:
    mine, sound = ReturnFile(file, ROBOT), file.read_text()
    file.write_text("{")
    mine.count("low", failed=True)
    assert mine.write() == []
    assert f"return_points={file}: 1 changes are not written: {file} cannot be read" in mine.problem
    assert file.read_text() == "{"
    file.write_text(sound)
    assert mine.write() == [], "it is not tried again and again"
    mine.count("high", failed=True)
    assert len(mine.write()) == 2 and mine.problem == ""
    assert [point.failures for point in read(file).points] == [1, 9]
    mine.count("high", failed=True)
    file.unlink()
    with pytest.raises(UserError, match="1 changes are not written"):
        mine.close()


@pytest.mark.process
def test_a_bridge_that_is_killed_while_it_writes_leaves_the_old_file(file: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
            mine = ReturnFile(file, ROBOT)
            mine.count("low", failed=False)
            mine.write()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert len(list(file.parent.iterdir())) == 2, "it had written beside the file"
    assert read(file) == POINTS
    mine = ReturnFile(file, ROBOT)
    mine.count("low", failed=False)
    mine.write()
    assert read(file).find("low").tries == 9


@pytest.mark.parametrize(
    ("measured", "commanded", "words"),
    [
        ((0.9, 0.1, 0.2, math.nan), (0, 0, 0, 1), "point 1: pose of 'move_x' is 0.9, outside of its 0.24…0.72"),
        ((0.5, math.nan, 0.2, math.nan), (0, 0, 0, 1), "'move_y' is not measured at present"),
        ((0.5, math.inf, 0.2, math.nan), (0, 0, 0, 1), "'move_y' is not measured at present"),
        ((0.5, 0.1, 0.2, math.nan), (0, 0, 0, 1.5), "point 1: pose of 'gripper' is 1.5, outside"),
    ],
)
def test_a_place_that_could_not_be_read_back_is_not_stored(
    tmp_path: Path, measured: tuple[float, ...], commanded: tuple[float, ...], words: str
) -> None:
    mine = ReturnFile(tmp_path / "new.json", ROBOT)
    with pytest.raises(UserError) as caught:
        mine.store(np.array(measured), np.array(commanded, float), "lift")
    assert words in str(caught.value)
    assert mine.write() == [] and not mine.path.exists()


def test_a_place_is_stored_with_what_is_measured_and_what_was_commanded(tmp_path: Path) -> None:
    mine = ReturnFile(tmp_path / "new.json", ROBOT)
    mine.store(HERE, OPEN, "lift")
    mine.store(HERE, OPEN, "push")
    mine.write()
    assert read(mine.path).points == (
        ReturnPoint("point 1", "lift", (0.5, 0.1, 0.2, 1.0)),
        ReturnPoint("point 2", "push", (0.5, 0.1, 0.2, 1.0)),
    )
    base = load_robot("mobile_base")
    with pytest.raises(UserError, match="nothing measures where the robot is"):
        ReturnFile(tmp_path / "base.json", base).store(np.full(2, math.nan), np.zeros(2), "drive")


# what is refused before anything moves


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_file_of_return_points_that_does_not_fit_is_refused(file: Path) -> None:
    config = replace(CONFIG, return_points=str(file))
    assert len(check_bridge(config)) == 2
    for changes, words in (
        ({"robot": "franka"}, "return_points: .*points.json: robot is 'franka', and 'tabletop' is needed"),
        ({"robot": "tabletop", "plugin": "os"}, "return_points: .*points.json: unknown key 'plugin'"),
    ):
        change(file, **changes)
        with pytest.raises(UserError, match=words):
            check_bridge(config)


@pytest.mark.parametrize(
    ("changes", "robot", "words"),
    [
        ({"return_points": "{}/none/points.json"}, ROBOT, r"there is no folder .*none\. Make it, or correct the path"),
        ({"return_points": "{}/new.json"}, without("store"), "holds no point, and nobody could store one"),
        ({"return_points": "{}/new.json"}, without("go_back"), "return_points: .*names no operator.device.go_back"),
        ({"replay": "{}/sound.npz"}, without("replay"), "replay: .*names no operator.device.replay"),
        ({"replay": "{}/none.npz"}, ROBOT, "replay: .*none.npz cannot be read"),
        ({"replay": "{}/sound.npz", "replay_episode": 1}, ROBOT, "is one episode. Leave replay_episode out"),
        ({"replay_episode": 1}, ROBOT, "is for replay=<folder of a recording>"),
        ({"replay": "{}/other.npz"}, ROBOT, "replay: .*other.npz is of another robot: action_names"),
        ({"replay": "{}/outside.npz"}, ROBOT, "the start of outside.npz: pose of 'move_x' is 0.9, outside of its 0.24"),
        ({"replay": "{}/storage"}, ROBOT, "is a replay storage, which is for learning. Give an episode's .npz"),
        ({"replay": "{}"}, ROBOT, "does not say which robot was recorded"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_moves(
    tmp_path: Path, changes: dict[str, Any], robot: RobotDescription, words: str
) -> None:
    actions, state = np.zeros((3, 4)), np.full((3, 7), 0.25)
    write_episode(tmp_path / "sound.npz", ROBOT.body, actions, state)
    write_episode(tmp_path / "outside.npz", ROBOT.body, actions, np.full((3, 7), 0.9))
    write_episode(tmp_path / "other.npz", ROBOT.body, actions, state, action_names=["a", "b", "c", "d"])
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "format.json").write_text("{}")
    named = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(UserError, match=words) as caught:
        make_motions(replace(CONFIG, **named), robot)
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


def test_an_episode_that_is_not_whole_or_not_named_is_refused(recording: tuple[Path, FakeRun]) -> None:
    folder, _ = recording
    for episode, words in (
        (None, r"say which of its episodes, replay_episode=<number>. There are 0 \(task 4\), 1 \(task 5\)"),
        (7, "say which of its episodes"),
        (1, "episode 1 is not whole: steps without a message of /camera/front/image_raw"),
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
