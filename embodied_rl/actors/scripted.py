"""Actors that are no policies: the simulator's operator, and random actions. For `collect`, `play` and baselines."""

from collections.abc import Callable

import numpy as np
import torch

from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec


class OperatorActor(Actor):
    """The scripted operator of one simulator, one control step a decision.

    The operator sees the simulator, not the observation, so rows are told apart by their episode: `row_of` maps an
    episode's index to its environment.
    """

    def __init__(self, operator: Callable[[], Array], row_of: Callable[[int], int]) -> None:
        super().__init__()
        self._operator, self._row_of = operator, row_of

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        rows = [self._row_of(int(index)) for index in keys.episode]
        return _decision(self._operator()[rows, None])


class RandomActor(Actor):
    """Uniform actions within the limits, one control step a decision, a function of the noise keys."""

    def __init__(self, spec: SimulatorSpec) -> None:
        super().__init__()
        self._low, self._high = np.array(spec.action_low), np.array(spec.action_high)

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        drawn = [
            np.random.default_rng([keys.seed, int(index), int(decision)]).uniform(self._low, self._high)
            for index, decision in zip(keys.episode, keys.decision, strict=True)
        ]
        return _decision(np.stack(drawn).astype(np.float32)[:, None])


def _decision(actions: Array) -> Decision:
    rows = len(actions)
    return Decision(actions, {}, torch.zeros(rows, 1, 1), torch.zeros(rows), torch.zeros(rows, dtype=torch.int64))
