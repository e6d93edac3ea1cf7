"""A curriculum: tasks are drawn by how often they failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.sim import Array, SimulatorSpec


@dataclass(frozen=True)
class HardestConfig:
    """Settings of the curriculum."""

    start: float = 1.0
    """failures of each task that are assumed at first."""


class Hardest(Curriculum):
    """Tasks by how often they failed."""

    Config = HardestConfig

    def __init__(self, config: HardestConfig, spec: SimulatorSpec) -> None:
        self.failures = np.full(len(spec.tasks), config.start)

    def weights(self) -> NDArray[np.float64]:
        return self.failures

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        for record in finished:
            self.failures[record.task] += not record.success_once

    def state(self) -> dict[str, Array]:
        return {"failures": self.failures.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        self.failures[:] = state["failures"]
