"""The built-in curricula. The entry point refers to `CURRICULA`: name → class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.interfaces.trust import Text

CURRICULA = {
    "uniform": "embodied_rl.rollout.curricula:Uniform",
    "weighted": "embodied_rl.rollout.curricula:Weighted",
    "success_rate": "embodied_rl.rollout.curricula:SuccessRate",
}


def make_uniform_weights(spec: SimulatorSpec) -> NDArray[np.float64]:
    """Return float64 [tasks]: 1 / (number of tasks in the family), so that the weights of each family add up to 1."""
    sizes = Counter(task.family for task in spec.tasks)
    return np.array([1 / sizes[task.family] for task in spec.tasks], np.float64)


@dataclass(frozen=True)
class UniformConfig:
    """The settings of `Uniform`, which has none."""


class Uniform(Curriculum):
    """Every family equally often, and the tasks of a family equally often."""

    Config = UniformConfig

    def __init__(self, config: UniformConfig, spec: SimulatorSpec) -> None:
        self._weights = make_uniform_weights(spec)

    def weights(self) -> NDArray[np.float64]:
        """Return the weights, float64 [tasks]."""
        return self._weights


@dataclass(frozen=True)
class WeightedConfig:
    """The settings of `Weighted`."""

    weights: dict[Text, float] = field(default_factory=dict)
    """how many times as often as in the uniform draw, by family or task; 1 for those left out."""


class Weighted(Curriculum):
    """Families, then tasks, by weights that stay as they are.

    A task's weight is its uniform weight times the weight of its family times its own weight. A name that belongs to
    both a family and a task means the family.

    Raises:
        UserError: a name is unknown to the simulator, a weight is negative, or all weights are 0.
    """

    Config = WeightedConfig

    def __init__(self, config: WeightedConfig, spec: SimulatorSpec) -> None:
        given, names = config.weights, [task.name for task in spec.tasks]
        known = list(dict.fromkeys([*spec.families, *names]))
        for name, weight in given.items():
            if name not in known:
                message = f"curriculum.weights: unknown family or task '{name}'.{suggest_name(name, known)}"
                raise UserError(message, code="curriculum-setting-invalid")
            if not 0 <= weight < float("inf"):
                message = f"curriculum.weights.{name} must be a number of at least 0, not {weight}."
                raise UserError(message, code="curriculum-setting-invalid")
        of_family = np.array([given.get(task.family, 1.0) for task in spec.tasks], np.float64)
        own = np.array([1.0 if name in spec.families else given.get(name, 1.0) for name in names], np.float64)
        self._weights = make_uniform_weights(spec) * of_family * own
        if not self._weights.any():
            message = "curriculum.weights leaves no task to draw: give one of them more than 0."
            raise UserError(message, code="curriculum-setting-invalid")

    def weights(self) -> NDArray[np.float64]:
        """Return the weights, float64 [tasks]."""
        return self._weights


@dataclass(frozen=True)
class SuccessRateConfig:
    """The settings of `SuccessRate`."""

    floor: float = 0.05
    """added to p (1 − p), which is 1/4 at most, so that no task is forgotten; above 0."""
    rate: float = 0.05
    """share of a new episode in a task's running mean, which thus looks back about 1 / rate episodes; in (0, 1]."""


class SuccessRate(Curriculum):
    """Draw tasks with an uncertain outcome more often.

    With success probability p, p (1 − p) is the variance of the outcome, which an update can learn from. It is the
    score of ProCuRL (Tzannetos et al. 2023, arXiv:2304.12877; there p (p* − p), with p* the best reachable probability,
    here 1) and the "learnability" of Sampling For Learnability (Rutherford et al. 2024, arXiv:2408.15099). Left out are
    the softmax of ProCuRL and the search among random levels. A simulator has few tasks, so each has its own running
    mean of success, and a floor keeps every task in the draw:

        weight = uniform weight × (floor + p (1 − p))
        p = 1/2 at first, then p ← p + rate (success − p) after each episode

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
