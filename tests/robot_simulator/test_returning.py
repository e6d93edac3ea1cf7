"""Episodes of `sim=robot` that begin at return points, and count there."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.return_points import (
    ReturnPoint,
    ReturnPoints,
    load_return_points,
    save_return_points,
)
from embodied_rl.deployment.execution.tick import Motion
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Episode, Source
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator

ROBOT = load_robot("tabletop")
STILL = np.tile(np.array([0, 0, 0, 1], np.float32), (1, 4, 1))
HIGH, LOW = (0.5, 0.1, 0.2, None), (0.4, -0.1, 0.15, None)


def make(folder: Path, *points: ReturnPoint, **options: Any) -> RobotSimulator:
    save_return_points(ReturnPoints("tabletop", tuple(each.name for each in ROBOT.actions), points), folder / "p.json")
    config = RobotSimulatorConfig(return_points=str(folder / "p.json"), simulated={"horizon": 120}, **options)
    return RobotSimulator(config, 1)


def read(folder: Path) -> dict[str, tuple[int, int]]:
    points = load_return_points(folder / "p.json", "tabletop", ROBOT.limits).points
    return {point.name: (point.tries, point.failures) for point in points}


def run(robot: RobotSimulator, following: Episode | None = None) -> list[Any]:
    """The results of an episode of a policy that does nothing; it fails."""
    results = []
    while not results or not len(results[-1].ended):
        results.append(robot.step(STILL, [following]))
    return results


def test_episodes_begin_at_points_and_are_counted_there(tmp_path: Path) -> None:
    robot = make(tmp_path, ReturnPoint("high", "", HIGH))
    try:
        seen = robot.reset([Episode(0, 0, 3)])
        for count in (1, 2):
            assert seen.state[0, :3] == pytest.approx(HIGH[:3], abs=0.008)
            results = run(robot, Episode(count, 0, 3 + count))
            assert results[-1].truncated[0] and not results[-1].success.any()
            assert {*np.concatenate([each.source[0, : each.steps[0]] for each in results])} == {Source.POLICY}
            assert read(tmp_path) == {"high": (count, count)}
            seen = results[-1].observation
    finally:
        robot.close()


def test_an_episode_begins_with_what_the_robot_says_after_the_last_command_of_a_return(tmp_path: Path) -> None:
    robot = make(tmp_path, ReturnPoint("high", "", HIGH))
    try:
        seen = robot.reset([Episode(0, 0, 3)])
        robot._link.listen()  # what is still on its way
        np.testing.assert_array_equal(robot._observe().state, seen.state)
    finally:
        robot.close()


def test_a_robot_that_does_not_answer_after_a_return_is_missed_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = make(tmp_path, ReturnPoint("high", "", HIGH), patience=0.2)
    follow, until = robot._link.follow, time.monotonic() + 300

    def listen() -> None:
        assert time.monotonic() < until, "it waits without a deadline"

    def follow_and_fall_silent(motion: Motion) -> str:
        said = follow(motion)
        monkeypatch.setattr(robot._link, "listen", listen)
        return said

    monkeypatch.setattr(robot._link, "follow", follow_and_fall_silent)
    try:
        with pytest.raises(RunFailed, match="has not answered after a return"):
            robot.reset([Episode(0, 0, 3)])
    finally:
        robot.close()


def test_the_episode_s_seed_draws_among_the_points_of_its_task(tmp_path: Path) -> None:
    points = (
        ReturnPoint("high", "", HIGH),
        ReturnPoint("low", "", LOW),
        ReturnPoint("other", "sweep", (0.6, 0.2, 0.2, None)),
    )
    robot = make(tmp_path, *points)
    try:
        found = [robot.reset([Episode(n, 1, seed)]).state[0, :3] for n, seed in enumerate((1, 2, 3, 4, 1))]
    finally:
        robot.close()
    names = [next(each.name for each in points if each.pose[:3] == pytest.approx(place, abs=0.008)) for place in found]
    assert names[0] == names[4] and {*names} == {"high", "low"}


def test_a_task_without_points_is_refused(tmp_path: Path) -> None:
    robot = make(tmp_path, ReturnPoint("other", "sweep", HIGH))
    try:
        with pytest.raises(UserError, match=r"no return point of the task '.*', they are of: sweep\."):
            robot.reset([Episode(5, 0, 1)])
    finally:
        robot.close()


def test_a_point_that_is_not_reached_is_said_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = make(tmp_path, ReturnPoint("inside the table", "", (0.5, 0.1, -0.015, None)))
    try:
        robot.reset([Episode(7, 0, 3)])
        assert "Episode 7 does not begin at 'inside the table': the return was given up" in capsys.readouterr().out
        run(robot)
        assert read(tmp_path) == {"inside the table": (0, 0)}
    finally:
        robot.close()


def test_a_file_without_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sim.return_points=.*p.json has no point. Store some"):
        make(tmp_path)
    with pytest.raises(UserError, match=r"sim.return_points=nowhere/p.json: .*folder nowhere"):
        RobotSimulator(RobotSimulatorConfig(return_points="nowhere/p.json"), 1)
