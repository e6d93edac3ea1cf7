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
    "learning_progress": "embodied_rl.rollout.curricula:LearningProgress",
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


NEGLIGIBLE = 0.01
"""Learning progress, as a share of the most that one outcome makes, that is only the fading rest of earlier changes."""


@dataclass(frozen=True)
class LearningProgressConfig:
    """The settings of `LearningProgress`."""

    uniform_share: float = 0.2
    """share of uniform draws, so that no task is forgotten; above 0, at most 1."""
    rate: float = 0.05
    """share of a new episode in a task's running means, which thus look back about 1 / rate episodes; in (0, 1)."""


class LearningProgress(Curriculum):
    """Draw tasks more often whose success changes, in either direction: what is being learned, or forgotten.

    The absolute learning progress of Portelas et al. (2019, arXiv:1910.07224), measured as in Kanitscheider et al.
    (2021, arXiv:2106.14876) by a fast and a slow running mean of success, the slow one a running mean of the fast one:

        fast ← fast + r (success − fast), then slow ← slow + r (fast − slow), r = max(rate, 1/n) at its n-th episode
        share of draws = u × uniform + (1 − u) × (uniform weight × |fast − slow|, normalised), u = uniform_share

    So the first 1 / rate episodes of a task count alike, and neither mean has a start value that looks like progress.
    Draws are uniform while the progress of all tasks is `NEGLIGIBLE`, as when all were learned long ago. Left out are
    the Gaussian mixture over parameters of tasks (Portelas), and the higher weight of rare successes and the bound on
    the largest share (Kanitscheider). Chance alone moves the means, most at p = 1/2: a lower rate has less of it.

    Raises:
        UserError: uniform_share or rate is out of bounds.
    """

    Config = LearningProgressConfig

    def __init__(self, config: LearningProgressConfig, spec: SimulatorSpec) -> None:
        if not 0 < config.uniform_share <= 1:
            message = f"curriculum.uniform_share must be above 0 and at most 1, not {config.uniform_share}."
            raise UserError(message, code="curriculum-setting-invalid")
        if not 0 < config.rate < 1:
            message = f"curriculum.rate must be above 0 and below 1, where both means are equal, not {config.rate}."
            raise UserError(message, code="curriculum-setting-invalid")
        uniform = make_uniform_weights(spec)
        self.config, self._uniform = config, uniform / uniform.sum()
        self._fast, self._slow = np.zeros(len(uniform)), np.zeros(len(uniform))
        self._episodes = np.zeros(len(uniform), np.int64)

    def weights(self) -> NDArray[np.float64]:
        """Return the weights, float64 [tasks]; they add up to 1."""
        progress = np.abs(self._fast - self._slow)
        if progress.max() < NEGLIGIBLE * self.config.rate:
            return self._uniform
        share, weighted = self.config.uniform_share, self._uniform * progress
        return share * self._uniform + (1 - share) * weighted / weighted.sum()

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Update the running means with the finished episodes, one by one."""
        for record in finished:
            task = record.task
            self._episodes[task] += 1
            rate = max(self.config.rate, 1 / self._episodes[task])
            self._fast[task] += rate * (record.success_once - self._fast[task])
            self._slow[task] += rate * (self._fast[task] - self._slow[task])

    def state(self) -> dict[str, Array]:
        """Return copies of the running means and of the numbers of episodes."""
        return {"fast": self._fast.copy(), "slow": self._slow.copy(), "episodes": self._episodes.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        self._fast[:], self._slow[:], self._episodes[:] = state["fast"], state["slow"], state["episodes"]
