"""The contract of a simulator's robot (`interfaces.servo`), as a check for its author's tests."""

from collections.abc import Callable

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.interfaces.sim import Array, Episode, Simulator
from embodied_rl.testing.simulator_contract import Build

LONGEST_S = 2.0
"""Seconds in which a braking robot must come to rest."""


def check_servo(build_robot: Callable[[], ServoedRobot], build: Build, *, tasks: int = 3, still: float = 0.02) -> None:
    """Check a robot against `interfaces.servo`, and in lockstep against its simulator, to the bit.

    Args:
        build_robot: returns a new robot.
        build: number of environments → a new simulator with the same settings; a small horizon is quicker.
        tasks: number of tasks of which one episode is run.
        still: joint speed below which the robot is at rest.
    """
    robot, simulator = build_robot(), build(1)
    assert robot.spec == simulator.spec, "the robot's spec is not its simulator's"
    for task in range(min(tasks, len(robot.spec.tasks))):
        _check_lockstep(robot, simulator, Episode(task, task, 40 + task, final_picture=True))
    robot.begin(Episode(0, 0, 1))
    names, reading = robot.joint_names, robot.read()
    assert len(set(names)) == len(names) == len(reading.position) == len(reading.velocity), "joints differ in number"
    assert set(robot.focal) == {camera.name for camera in robot.spec.cameras}, "a camera has no focal length"
    assert not np.any(reading.velocity), "an episode begins at rest"
    kept = reading.position.copy()
    for _ in range(10):
        robot.servo(np.array(robot.spec.action_high))
    assert np.array_equal(reading.position, kept), "a reading changes later: it must be a copy"
    assert not np.array_equal(robot.read().position, kept), "the robot does not move"
    _check_braking(robot, still)
    _check_refusal(robot)
    robot.close()
    simulator.close()


def _check_lockstep(robot: ServoedRobot, simulator: Simulator, episode: Episode) -> None:
    """Check that random actions give the same states and the same outcome in both."""
    random = np.random.default_rng(episode.seed)
    low, high = np.array(robot.spec.action_low), np.array(robot.spec.action_high)
    seen = simulator.reset([episode])
    robot.begin(episode)
    for step in range(1, robot.spec.horizon + 1):
        assert robot.outcome is None, f"the robot's episode ended before control step {step}, the simulator's goes on"
        assert robot.instruction == seen.instruction[0], f"before control step {step} the instructions differ"
        _check_pictures(robot, seen.images, step)
        action = random.uniform(low, high).astype(np.float32)
        result = simulator.step(action[None, None], [None])
        robot.control_step(action)
        seen = result.observation
        if len(result.ended):
            break
    outcome = robot.outcome
    assert outcome is not None, "the simulator's episode ended, the robot's goes on"
    assert outcome.steps == step and outcome.truncated == bool(result.truncated[0]), f"its outcome is {outcome}"
    assert result.final_observation is not None
    _check_pictures(robot, result.final_observation.images, step + 1)
    robot.control_step(np.array(robot.spec.action_high, np.float32))
    assert robot.outcome == outcome, "a control step after the end changes the outcome"


def _check_pictures(robot: ServoedRobot, images: dict[str, Array], step: int) -> None:
    for name, picture in robot.take_pictures().items():
        assert np.array_equal(picture, images[name][0]), f"before control step {step} the picture of {name} differs"


def _check_braking(robot: ServoedRobot, still: float) -> None:
    robot.begin(Episode(0, 0, 1))
    for _ in range(round(0.3 / robot.servo_s)):
        robot.servo(np.array(robot.spec.action_high))
    for _ in range(round(LONGEST_S / robot.servo_s)):
        robot.brake()
    speed = float(np.abs(robot.read().velocity).max())
    assert speed < still, f"{LONGEST_S:g} s after it began to brake a joint moves with {speed:.3g}"


def _check_refusal(robot: ServoedRobot) -> None:
    """Check that an unknown task raises `UserError` and changes nothing."""
    before = robot.instruction
    try:
        robot.begin(Episode(0, len(robot.spec.tasks), 0))
    except UserError:
        assert robot.instruction == before, "a refused episode changed the scene"
        return
    raise AssertionError("an episode of a task that does not exist is not refused")
