"""What tests of the tabletop share: simulators that are closed again, and hands that move objects."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

SMALL = 8
"""Pixels on each side where a test does not look at pictures."""

Make = Callable[..., Tabletop]


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds tabletops with small pictures: `make(num_envs, **settings)`."""
    built: list[Tabletop] = []

    def build(num_envs: int = 1, **settings: Any) -> Tabletop:
        built.append(Tabletop(TabletopConfig(**{"image_size": SMALL, **settings}), num_envs))
        return built[-1]

    yield build
    for simulator in built:
        simulator.close()


@pytest.fixture
def put() -> Callable[..., None]:
    """Moves an object by hand: `put(simulator, row, number, position)` with [3] metres, at rest."""

    def move(simulator: Tabletop, row: int, number: int, position: Array) -> None:
        model, data = simulator._bodies.model, simulator._bodies.data[row]
        joint = model.body(f"object{number}").jntadr[0]
        start, speed = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
        data.qpos[start : start + 7] = [*position, 1, 0, 0, 0]
        data.qvel[speed : speed + 6] = 0

    return move


@pytest.fixture
def still() -> Array:
    """A chunk of one control step, [1, 1, 4], that leaves the arm where it is with the gripper open."""
    return np.array([[[0, 0, 0, 1]]], np.float32)
