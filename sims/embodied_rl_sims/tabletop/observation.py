"""Observations of the tabletop except pictures, for n environments at once: state, privileged state, sensor noise."""

from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop import operator
from embodied_rl_sims.tabletop.bodies import Bodies
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import FAMILIES, KINDS, Layout
from embodied_rl_sims.tabletop.settings import MOVE

_MIDDLE = np.array([0.48, 0.0, 0.05])
_NOISE_STREAM = 1002  # far from task numbers, which seed the layout


@dataclass
class Truth:
    """The true positions in n scenes, in metres.

    Attributes:
        tool, command, target: [n, 3]. width: [n]. goal: [n, 2]. objects: [n, 3, 3].
    """

    tool: Array
    command: Array
    width: Array
    target: Array
    goal: Array
    objects: Array

    @staticmethod
    def from_bodies(bodies: Bodies, goals: Goals, command: Array) -> "Truth":
        """Read the truth from the bodies' last `gather`."""
        objects = bodies.objects
        target = goals.targets(objects, bodies.caps)
        return Truth(bodies.tool, command, bodies.width, target, goals.places(target), objects)

    def scene(self, row: int, family: str) -> operator.OperatorView:
        """Return one environment's data for the scripted operator."""
        tool, command, width = self.tool[row], self.command[row], float(self.width[row])
        return operator.OperatorView(family, tool, command, width, self.target[row], self.goal[row], MOVE)

    def state(self) -> Array:
        """Return the proprioception, float64 [n, 7]."""
        return np.concatenate([self.tool, self.width[:, None], self.command - self.tool], axis=1)


class Privileged:
    """The simulator's privileged state for critics, scaled to about one."""

    def __init__(self, num_envs: int) -> None:
        self._family = np.zeros((num_envs, len(FAMILIES)))
        self._others = np.zeros((num_envs, 2), np.int64)
        self._rows = np.arange(num_envs)[:, None]

    def begin(self, row: int, layout: Layout) -> None:
        """Set a row's task family, and the two objects that are not its target."""
        self._family[row] = [layout.family == family for family in FAMILIES]
        others = [i for i in range(len(KINDS)) if layout.family == "press" or i != layout.target]
        self._others[row] = others[:2]

    def of(self, truth: Truth, clock: Array) -> Array:
        """Return float64 [n, P]: positions from the table's middle per 12.5 cm, distances per 7 cm, clock [n] 0…1."""
        others = truth.objects[self._rows, self._others, :2]
        return np.concatenate([
            (truth.tool - _MIDDLE) * 8, truth.width[:, None] * 25 - 1,
            (truth.target - _MIDDLE) * 8, (truth.target - truth.tool) * 14,
            (truth.goal - _MIDDLE[:2]) * 8, (truth.goal - truth.target[:, :2]) * 10,
            ((others - _MIDDLE[:2]) * 8).reshape(len(others), -1), self._family, clock[:, None],
        ], axis=1)  # fmt: skip


def add_noise(
    episode: Episode, clock: int, state: Array, picture: Array | None, state_noise: float, image_noise: float
) -> None:
    """Add an environment's sensor noise in place; the noise depends on its episode and control step only.

    Args:
        state: float32 [S]. picture: uint8 [h, w, 3], or None if no picture was drawn.
        state_noise, image_noise: standard deviations, in metres and in 0…255.
    """
    rng = np.random.default_rng([episode.seed, _NOISE_STREAM, clock])
    state += state_noise * rng.standard_normal(state.shape)
    if picture is not None:
        picture[:] = np.clip(picture + image_noise * rng.standard_normal(picture.shape), 0, 255)
