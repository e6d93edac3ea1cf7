"""Robots as simulators, closed at the end of a test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator


@pytest.fixture
def make_robot() -> Iterator[Callable[..., RobotSimulator]]:
    """Make robots with these settings."""
    made: list[RobotSimulator] = []

    def make(**keys: Any) -> RobotSimulator:
        made.append(RobotSimulator(RobotSimulatorConfig(**keys), 1))
        return made[-1]

    yield make
    for robot in made:
        robot.close()


@pytest.fixture
def robot(make_robot: Callable[..., RobotSimulator]) -> RobotSimulator:
    """The tabletop in this process, in lockstep."""
    return make_robot()
