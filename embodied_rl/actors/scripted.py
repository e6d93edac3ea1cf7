"""Policies without a network: the simulator's operator, and random actions. For `collect`, `play` and baselines."""

from collections.abc import Callable

import numpy as np

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec

Operator = Callable[[], Array]
"""Returns the actions of all environments of a simulator, float32 [n, A]."""


class OperatorPolicy:
    """The scripted operator of one simulator as a policy, one control step per decision.

    The operator, which is replaced together with the simulator, sees the simulator and not the observation, so a row is
    identified by its episode: `row_of` maps an episode's index to its environment.
    """

    def __init__(self, operator: Operator, row_of: Callable[[int], int]) -> None:
        self.operator, self._row_of = operator, row_of

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        """Return the operator's actions, float32 [n, 1, A]; see `DeployedPolicy`."""
        return self.operator()[[self._row_of(int(index)) for index in keys.episode], None]


class RandomPolicy:
    """A policy of uniform actions within the limits, one control step per decision, drawn from the noise keys."""

    def __init__(self, spec: SimulatorSpec) -> None:
        self._low, self._high = np.array(spec.action_low), np.array(spec.action_high)

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        """Return random actions, float32 [n, 1, A]; see `DeployedPolicy`."""
        drawn = [
            np.random.default_rng([keys.seed, int(index), int(decision)]).uniform(self._low, self._high)
            for index, decision in zip(keys.episode, keys.decision, strict=True)
        ]
        return np.stack(drawn).astype(np.float32)[:, None]
