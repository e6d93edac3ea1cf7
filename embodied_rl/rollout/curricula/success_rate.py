"""A curriculum that prefers tasks with an uncertain outcome.

With success probability p, p (1 − p) is the variance of the outcome, which an update can learn from. It is the score of
ProCuRL (Tzannetos et al. 2023, arXiv:2304.12877; there p (p* − p), with p* the best reachable probability, here 1) and
the "learnability" of Sampling For Learnability (Rutherford et al. 2024, arXiv:2408.15099).

We left out the softmax of ProCuRL and the search among random levels of Sampling For Learnability. A simulator has few
tasks, so each task has its own running mean of success, and a floor keeps every task in the draw:

    weight = uniform weight × (floor + p (1 − p))
    p = 1/2 at first, then p ← p + rate (success − p) after each episode
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.rollout.curricula.uniform import make_uniform_weights


@dataclass(frozen=True)
class SuccessRateConfig:
    """The settings of `SuccessRate`."""

    floor: float = 0.05
    """added to p (1 − p), which is 1/4 at most, so that no task is forgotten; above 0."""
    rate: float = 0.05
    """share of a new episode in a task's running mean, which thus looks back about 1 / rate episodes; in (0, 1]."""


class SuccessRate(Curriculum):
    """Draw tasks with an uncertain outcome more often: by floor + p (1 − p).

    Raises:
        UserError: floor or rate is out of bounds.
    """

    Config = SuccessRateConfig

    def __init__(self, config: SuccessRateConfig, spec: SimulatorSpec) -> None:
        if not 0 < config.floor < float("inf"):
            message = f"curriculum.floor must be above 0, not {config.floor}: a task may come back."
            raise UserError(message, code="curriculum-setting-invalid")
        if not 0 < config.rate <= 1:
            message = f"curriculum.rate must be above 0 and at most 1, not {config.rate}."
            raise UserError(message, code="curriculum-setting-invalid")
        self.config, self._uniform = config, make_uniform_weights(spec)
        self._success = np.full(len(spec.tasks), 0.5)

    def weights(self) -> NDArray[np.float64]:
        """Return the weights, float64 [tasks]."""
        return self._uniform * (self.config.floor + self._success * (1 - self._success))

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Update the running means with the finished episodes, one by one."""
        for record in finished:
            self._success[record.task] += self.config.rate * (record.success_once - self._success[record.task])

    def state(self) -> dict[str, Array]:
        """Return a copy of the running means."""
        return {"success": self._success.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore the running means that `state` returned."""
        self._success[:] = state["success"]
