"""Episodes of sim=robot that begin at return points, and returns and replays of a whole robot."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.demonstration import Replay, read_demonstration
from embodied_rl.deployment.execution.return_points import (
    ReturnMotion,
    ReturnPoint,
    ReturnPoints,
    ReturnSettings,
    load_return_points,
    save_return_points,
)
from embodied_rl.deployment.execution.tick import ExecutedStep, Motion
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Array, Episode, Source
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig, describe_robot
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.demonstrations import write_episode

ROBOT = load_robot("tabletop")
STILL = np.tile(np.array([0, 0, 0, 1], np.float32), (1, 4, 1))
Make = Callable[..., RobotSimulator]
HIGH, LOW = (0.5, 0.1, 0.2, None), (0.4, -0.1, 0.15, None)


@pytest.fixture
def make(tmp_path: Path, make_robot: Callable[..., RobotSimulator]) -> Make:
    """Make robots with these return points."""

    def make(*points: ReturnPoint, **options: Any) -> RobotSimulator:
        names = tuple(each.name for each in ROBOT.actions)
        save_return_points(ReturnPoints("tabletop", names, points), tmp_path / "p.json")
        return make_robot(return_points=str(tmp_path / "p.json"), simulated={"horizon": 120}, **options)

    return make


def read(folder: Path) -> dict[str, tuple[int, int]]:
    points = load_return_points(folder / "p.json", "tabletop", ROBOT.limits).points
    return {point.name: (point.tries, point.failures) for point in points}


def run(robot: RobotSimulator, following: Episode | None = None) -> list[Any]:
    """The results of an episode of a policy that does nothing; it fails."""
    results = []
    while not results or not len(results[-1].ended):
        results.append(robot.step(STILL, [following]))
    return results


@pytest.mark.thorough
def test_episodes_begin_at_points_and_are_counted_there(tmp_path: Path, make: Make) -> None:
    robot = make(ReturnPoint("high", "", HIGH))
    seen = robot.reset([Episode(0, 0, 3)])
    for count in (1, 2):
        assert seen.state[0, :3] == pytest.approx(HIGH[:3], abs=0.008)
        results = run(robot, Episode(count, 0, 3 + count))
        assert results[-1].truncated[0] and not results[-1].success.any()
        assert {*np.concatenate([each.source[0, : each.steps[0]] for each in results])} == {Source.POLICY}
        assert read(tmp_path) == {"high": (count, count)}
        seen = results[-1].observation


def test_a_scripted_human_waits_for_the_policy_after_a_return(make: Make) -> None:
    """As long as in an episode without one: that the robot moved to its start is no lack of progress."""
    robot = make(ReturnPoint("high", "", HIGH), human="scripted")
    robot.reset([Episode(0, 0, 3)])
    sources = np.concatenate([robot.step(STILL, [None]).source[0] for _ in range(5)])
    assert {*sources} == {Source.POLICY}, "20 control steps are 1.6 s of its patience of 2 s"


def test_the_steps_of_a_return_are_told_with_the_next_result(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of results and what is between them are all control steps that the robot publishes."""
    robot = make(ReturnPoint("high", "", HIGH))
    published, publish = list[Source](), robot._link._reporter.publish_step

    def note(step: ExecutedStep, context: Any) -> None:
        published.append(step.source)
        publish(step, context)

    monkeypatch.setattr(robot._link._reporter, "publish_step", note)
    robot.reset([Episode(0, 0, 3)])
    returned = published.count(Source.REPLAY)
    assert returned > 5
    assert robot.step(STILL, [None]).between == (((int(Source.REPLAY), returned),),)
    assert {each.between for each in run(robot, Episode(1, 0, 4))} == {((),)}, "the next return is told later"
    assert robot.step(STILL, [None]).between == (((int(Source.REPLAY), published.count(Source.REPLAY) - returned),),)
    assert published.count(Source.REPLAY) > returned


def test_an_episode_begins_with_what_the_robot_says_after_the_last_command_of_a_return(make: Make) -> None:
    robot = make(ReturnPoint("high", "", HIGH))
    seen = robot.reset([Episode(0, 0, 3)])
    robot._link.listen()  # what is still on its way
    np.testing.assert_array_equal(robot._observe().state, seen.state)


@pytest.mark.thorough
def test_a_robot_that_does_not_answer_after_a_return_is_missed_in_words(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = make(ReturnPoint("high", "", HIGH), patience=0.2)
    follow, until = robot._link.follow, time.monotonic() + 300

    def listen() -> None:
        assert time.monotonic() < until, "it waits without a deadline"

    def follow_and_fall_silent(motion: Motion) -> str:
        said = follow(motion)
        monkeypatch.setattr(robot._link, "listen", listen)
        return said

    monkeypatch.setattr(robot._link, "follow", follow_and_fall_silent)
    with pytest.raises(RunFailed, match="has not answered after a return"):
        robot.reset([Episode(0, 0, 3)])


@pytest.mark.thorough
def test_the_episode_s_seed_draws_among_the_points_of_its_task(make: Make) -> None:
    points = (
        ReturnPoint("high", "", HIGH),
        ReturnPoint("low", "", LOW),
        ReturnPoint("other", "sweep", (0.6, 0.2, 0.2, None)),
    )
    robot = make(*points)
    found = [robot.reset([Episode(n, 1, seed)]).state[0, :3] for n, seed in enumerate((1, 2, 3, 4, 1))]
    names = [next(each.name for each in points if each.pose[:3] == pytest.approx(place, abs=0.008)) for place in found]
    assert names[0] == names[4] and {*names} == {"high", "low"}


def test_a_task_without_points_is_refused(make: Make) -> None:
    robot = make(ReturnPoint("other", "sweep", HIGH))
    with pytest.raises(UserError, match=r"no return point of the task '.*', they are of: sweep\."):
        robot.reset([Episode(5, 0, 1)])


@pytest.mark.thorough
def test_a_point_that_is_not_reached_is_said_and_not_counted(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = make(ReturnPoint("inside the table", "", (0.5, 0.1, -0.015, None)))
    robot.reset([Episode(7, 0, 3)])
    assert "Episode 7 does not begin at 'inside the table': the return was given up" in capsys.readouterr().out
    run(robot)
    assert read(tmp_path) == {"inside the table": (0, 0)}


def test_a_file_without_points_is_refused(make: Make) -> None:
    with pytest.raises(UserError, match=r"sim.return_points=.*p.json has no point. Store some"):
        make()
    with pytest.raises(UserError, match=r"sim.return_points=nowhere/p.json: .*folder nowhere"):
        describe_robot(RobotSimulatorConfig(return_points="nowhere/p.json"))  # as a dry run does


ANY = (np.inf,) * 4
NEAR = ReturnSettings(tolerance=(0.01, 0.01, 0.01, np.inf), tracking_error=(0.1, 0.1, 0.1, np.inf))


@pytest.fixture
def robot(make_robot: Callable[..., RobotSimulator]) -> RobotSimulator:
    return make_robot(simulated={"horizon": 400})


def test_a_robot_goes_to_a_return_point(robot: RobotSimulator) -> None:
    robot.reset([Episode(0, 0, 3)])
    point = ReturnPoint("high", "", (0.5, 0.1, 0.2, None))
    said = robot.follow(ReturnMotion(point, robot.robot.limits, NEAR))
    assert said == "the return is done"
    assert robot._in_process is not None and robot._in_process.servoed.read().tool[0] == pytest.approx(
        [0.5, 0.1, 0.2], abs=0.011
    )


@pytest.mark.thorough
def test_a_point_that_cannot_be_reached_is_given_up_in_words(robot: RobotSimulator) -> None:
    robot.reset([Episode(0, 0, 3)])
    below = ReturnPoint("inside the table", "", (0.5, 0.1, -0.015, None))
    said = robot.follow(ReturnMotion(below, robot.robot.limits, NEAR))
    assert said.startswith("the return was given up: 'move_z' did not arrive, and is away by 0.03")
    with pytest.raises(UserError, match="call reset first"):
        robot.reset([None])
        robot.follow(ReturnMotion(below, robot.robot.limits, NEAR))


@pytest.mark.thorough
@pytest.mark.parametrize("task", [1, 6])
def test_a_recorded_episode_is_replayed_to_its_success(robot: RobotSimulator, tmp_path: Path, task: int) -> None:
    episode, simulator = Episode(2, task, 40 + task), Tabletop(TabletopConfig(), 1)
    seen, operator = simulator.reset([episode]), simulator.expert()
    states, actions = list[Array](), list[Array]()
    while True:
        states.append(seen.state[0])
        actions.append(operator()[0])
        result = simulator.step(actions[-1][None, None], [None])
        if len(result.ended):
            break
        seen = result.observation
    assert result.success.any()
    file = write_episode(tmp_path / "episode.npz", robot.spec.body, np.array(actions), np.array(states))
    told = read_demonstration(file, robot.robot.body, (0, 1, 2, -1))
    robot.reset([episode])
    far = (0.02, 0.02, 0.02, np.inf)
    robot.follow(Replay(told, robot.robot.limits, far, far, 0.08, "episode.npz"))
    end = robot._episodes.end  # type: ignore[union-attr]
    assert end is not None and end.success


def test_a_replay_on_another_scene_s_start_is_refused(robot: RobotSimulator, tmp_path: Path) -> None:
    file = write_episode(tmp_path / "far.npz", robot.spec.body, np.zeros((5, 4), "f4"), np.full((5, 7), 0.5, "f4"))
    told = read_demonstration(file, robot.robot.body, (0, 1, 2, -1))
    robot.reset([Episode(0, 0, 3)])
    said = robot.follow(Replay(told, robot.robot.limits, ANY, (0.05, 0.05, 0.05, np.inf), 0.08, "far.npz"))
    assert said.startswith("the replay was refused: 'move_")
