"""Returns, stored places and replays that an operator requests over topics."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.motions import MotionManager
from embodied_rl.deployment.execution.return_points import (
    ReturnPoint,
    ReturnPoints,
    load_return_points,
    save_return_points,
)
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from tests.deployment.bridge.test_activation import ROBOT
from tests.deployment.bridge.test_real_time import MovingPolicy, assert_ramped
from tests.support.bridging import RealTimeBench
from tests.support.control_loop import ControlLoop
from tests.support.demonstrations import write_episode

DEVICE = ROBOT.operator.device
NAMES = tuple(entry.name for entry in ROBOT.actions)


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

    def press(self, button: str) -> None:
        self.move(press=[button])
        self.move()

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


def read(path: Path) -> ReturnPoints:
    return load_return_points(path, ROBOT.name, ROBOT.limits)


def test_an_operator_stores_a_place_and_sends_the_robot_back_to_it(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    operator = Operator(return_points=str(file))
    assert not file.exists()
    operator.bench.run(0.3)
    operator.press("hold")
    operator.bench.run(0.6)
    stored = operator.tool.copy()
    operator.press("store")
    (point,) = read(file).points
    assert (point.name, point.task) == ("point 1", operator.bench.bridge.episodes.instruction)
    assert point.pose == (*(pytest.approx(place, abs=1e-3) for place in stored), -1)
    operator.press("run")
    operator.bench.run(1.5)
    operator.press("hold")
    operator.bench.run(0.5)
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


def test_tries_from_a_point_are_counted_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    save_return_points(ReturnPoints(ROBOT.name, NAMES, (ReturnPoint("high", "", (0.5, 0.0, 0.2, None)),)), file)
    operator, lines = Operator(return_points=str(file)), []
    operator.bench.bridge.print_line = lines.append
    operator.bench.run(0.3)
    operator.label("failure")
    assert read(file).points[0].tries == 0, "it did not begin there"
    for label, counted in (("failure", (1, 1)), ("abort", (1, 1)), ("success", (2, 1))):
        operator.press("go_back")
        operator.wait_until_holding()
        operator.press("run")
        operator.bench.run(0.3)
        operator.label(label)
        point = read(file).points[0]
        assert (point.tries, point.failures) == counted
        operator.label("failure")
        assert read(file).points[0] == point, "an episode has one end"
    assert operator.status["motions"]["return"] == "go to the return point 'high' (1 of 2 tries failed there)"
    assert f"counted a success from the return point 'high', in {file}" in "\n".join(lines)


def test_a_simulated_robot_s_outcome_counts_as_a_label(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    save_return_points(ReturnPoints(ROBOT.name, NAMES, (ReturnPoint("high", "", (0.5, 0.0, 0.2, None)),)), file)
    operator = Operator(return_points=str(file), episodes=True)
    asked = {"index": 4, "task": 0, "seed": 3, "initial_state": None, "split": "train"}
    operator.bench.say("/simulation/reset", "std_msgs/msg/String", "latched", data=json.dumps(asked))
    operator.bench.run(0.3)
    operator.press("hold")
    operator.bench.run(0.3)
    operator.press("go_back")
    operator.wait_until_holding()
    operator.press("run")
    operator.bench.run(6.0)  # its time limit
    assert operator.status["waiting"]
    assert (read(file).points[0].tries, read(file).points[0].failures) == (1, 1)


def test_a_human_who_touches_the_joystick_takes_over_from_a_return(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    save_return_points(ReturnPoints(ROBOT.name, NAMES, (ReturnPoint("high", "", (0.6, 0.2, 0.25, None)),)), file)
    operator = Operator(return_points=str(file))
    operator.bench.run(0.3)
    operator.press("hold")
    operator.bench.run(0.3)
    operator.press("go_back")
    operator.move(0.0, 0.5)
    assert operator.status["mode"] == "teleop"
    operator.bench.run(0.1)
    operator.press("hold")
    operator.press("run")
    operator.bench.run(0.2)
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


def test_a_demonstration_is_replayed_only_from_its_start(tmp_path: Path) -> None:
    bench = RealTimeBench(MovingPolicy())
    bench.prepare()
    operator = Operator(replay=str(record_move(bench, tmp_path / "left.npz")))
    operator.press("hold")
    operator.bench.run(0.3)
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
    operator.press("replay")
    operator.bench.run(0.3)
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
