"""A curriculum that draws every family equally often, and the tasks of a family equally often."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.curriculum import Curriculum
from embodied_rl.interfaces.sim import SimulatorSpec


def make_uniform_weights(spec: SimulatorSpec) -> NDArray[np.float64]:
    """Return float64 [tasks]: 1 / (number of tasks in the family), so that the weights of each family add up to 1."""
    sizes = Counter(task.family for task in spec.tasks)
    return np.array([1 / sizes[task.family] for task in spec.tasks], np.float64)


@dataclass(frozen=True)
class UniformConfig:
    """The settings of `Uniform`, which has none."""


class Uniform(Curriculum):
    """Families equally often, then the tasks of a family."""

    Config = UniformConfig

    def __init__(self, config: UniformConfig, spec: SimulatorSpec) -> None:
        self._weights = make_uniform_weights(spec)

    def weights(self) -> NDArray[np.float64]:
        """Return the weights, float64 [tasks]."""
        return self._weights
