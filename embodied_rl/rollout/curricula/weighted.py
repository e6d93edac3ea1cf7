"""A curriculum that draws families and tasks by fixed weights."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.curriculum import Curriculum
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import Text
from embodied_rl.rollout.curricula.uniform import make_uniform_weights


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
