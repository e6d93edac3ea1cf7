"""Returns and replays of a whole robot: through its controller, its filter, its topics."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.deployment.execution.demonstration import Replay, read_demonstration
from embodied_rl.deployment.execution.return_points import ReturnMotion, ReturnPoint, ReturnSettings
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.demonstrations import write_episode

ANY = (np.inf,) * 4
NEAR = ReturnSettings(tolerance=(0.01, 0.01, 0.01, np.inf), tracking_error=(0.1, 0.1, 0.1, np.inf))


@pytest.fixture
def robot() -> Iterator[RobotSimulator]:
    robot = RobotSimulator(RobotSimulatorConfig(simulated={"horizon": 400}), 1)
    yield robot
    robot.close()


def test_a_robot_goes_to_a_return_point(robot: RobotSimulator) -> None:
    robot.reset([Episode(0, 0, 3)])
    point = ReturnPoint("high", "", (0.5, 0.1, 0.2, None))
    said = robot.follow(ReturnMotion(point, robot.robot.limits, NEAR))
    assert said == "the return is done"
    assert robot._in_process is not None and robot._in_process.servoed.read().tool[0] == pytest.approx(
        [0.5, 0.1, 0.2], abs=0.011
    )


def test_a_point_that_cannot_be_reached_is_given_up_in_words(robot: RobotSimulator) -> None:
    robot.reset([Episode(0, 0, 3)])
    below = ReturnPoint("inside the table", "", (0.5, 0.1, -0.015, None))
    said = robot.follow(ReturnMotion(below, robot.robot.limits, NEAR))
    assert said.startswith("the return was given up: 'move_z' did not arrive, and is away by 0.03")
    with pytest.raises(UserError, match="call reset first"):
        robot.reset([None])
        robot.follow(ReturnMotion(below, robot.robot.limits, NEAR))


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
