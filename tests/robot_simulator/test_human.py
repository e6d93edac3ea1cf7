"""A human at the joystick of a robot that learns: who did what is told exactly, and nobody learns from the human's."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, Source, StepResult
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

STILL = np.tile(np.float32([0, 0, 0, 1]), (1, 4, 1))


@pytest.fixture
def robot(make_robot: Callable[..., RobotSimulator]) -> RobotSimulator:
    return make_robot(human="scripted", simulated={"progress": True, "horizon": 120})


def run(robot: RobotSimulator, episode: Episode) -> list[StepResult]:
    """The results of an episode of a policy that does nothing."""
    robot.reset([episode])
    results = []
    while not results or not len(results[-1].ended):
        results.append(robot.step(STILL, [None]))
    return results


@pytest.mark.parametrize("task", [0, 6])
def test_a_human_who_takes_over_brings_a_helpless_policy_to_its_goal(robot: RobotSimulator, task: int) -> None:
    results = run(robot, Episode(3, task, 50 + task))
    sources = np.concatenate([each.source[0, : each.steps[0]] for each in results])
    assert results[-1].success[0].any() and results[-1].terminated[0] and results[-1].failures == ("",)
    assert sources[0] == Source.POLICY, "the policy began"
    assert set(sources) >= {Source.POLICY, Source.HUMAN}
    driven = np.concatenate([each.executed[0, : each.steps[0]] for each in results])[sources == Source.HUMAN]
    assert np.abs(driven[:, :3]).max() > 0.02, "the human moved the arm"
    assert robot._joystick is not None and robot._joystick.human.takeovers >= 1


def test_what_was_executed_is_what_the_simulation_did(robot: RobotSimulator) -> None:
    """The executed actions, whoever decided them, lead the simulator itself through the same states."""
    episode = Episode(3, 1, 77)
    simulator = Tabletop(TabletopConfig(horizon=120), 1)
    simulator.reset([episode])
    for ours in run(robot, episode):
        steps = int(ours.steps[0])
        theirs = simulator.step(ours.executed[:, :steps], [None])
        if not len(ours.ended):
            assert ours.observation.state == pytest.approx(theirs.observation.state, abs=1e-5)
    assert np.array_equal(ours.ended, theirs.ended) and ours.success[0, steps - 1] == theirs.success[0, -1]


def test_a_takeover_does_not_jump(robot: RobotSimulator) -> None:
    results = run(robot, Episode(3, 1, 77))
    sources = np.concatenate([each.source[0, : each.steps[0]] for each in results])
    moves = np.concatenate([each.executed[0, : each.steps[0]] for each in results])[:, :3]
    first = int(np.argmax(sources == Source.HUMAN))
    assert np.abs(moves[first]).max() < 0.5 * np.abs(moves[sources == Source.HUMAN]).max()


def test_a_human_needs_an_operator_that_shows_progress() -> None:
    with pytest.raises(UserError, match="progress"):
        RobotSimulator(RobotSimulatorConfig(human="scripted"), 1)
