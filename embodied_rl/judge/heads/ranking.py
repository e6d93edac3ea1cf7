"""Head trained on the order of pairs (the ranking of ONI, arXiv:2410.23022).

The model is that of Bradley and Terry (1952): the first of two observations is the better one with probability
σ(u₁ - u₂). Only the order of two scores is used, not their difference, so a drifting or nonlinear scale has no effect.
Utilities u are unbounded and defined up to a constant: a prediction is σ of the standardised utility, with mean and
deviation over the kept labels.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.base import HeadOptions, Labels
from embodied_rl.judge.heads.head_network import Forward, HeadNetwork

TIE = 1e-6
"""Scores that differ by less are equal: each is the better one with probability one half."""


class RankingHead:
    """Minimises the Bradley-Terry loss over random pairs of the kept labels.

    Args:
        options: of the head.
    """

    calibrated = False

    def __init__(self, options: HeadOptions) -> None:
        self._network, self._batch = HeadNetwork(options), options.batch
        self._scale = np.full(2, np.nan)
        """Mean and standard deviation of the utilities; NaN until something was learned."""

    def predict(self, inputs: Array) -> Array:
        """Return σ of the standardised utilities; NaN until something was learned. See `Head`."""
        mean, deviation = self._scale
        return 1 / (1 + np.exp((mean - self._network.evaluate(inputs)) / deviation))

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        """Take the steps of a version; see `Head`."""

        def measure(random: np.random.Generator, forward: Forward) -> Tensor:
            one, other = (kept.select(random.integers(len(kept), size=self._batch)) for _ in range(2))
            utility, other_utility = forward(np.concatenate([one.inputs, other.inputs])).chunk(2)
            better = torch.from_numpy(compare(one.value, other.value)).float()
            return binary_cross_entropy_with_logits(utility - other_utility, better)

        loss = self._network.train(measure, version)
        utility = self._network.evaluate(kept.inputs)
        self._scale = np.array([utility.mean(), max(utility.std(), TIE)])
        return loss

    def state(self) -> dict[str, Array]:
        """Return weights, moments, and the scale of the utilities."""
        return self._network.state() | {"scale": self._scale.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self._scale = state["scale"].copy()
        self._network.load({name: array for name, array in state.items() if name != "scale"})


def compare(one: Array, other: Array) -> Array:
    """Return the probability that the first of two scores is the better one: 1, 0, or 0.5 of equal ones."""
    return np.where(np.abs(one - other) <= TIE, 0.5, one > other)
