"""A head that classifies observations by a small network (the classification of ONI, arXiv:2410.23022).

A score of 0 or 1 is a class; one between them is the probability of the second class, so that the prediction is the
score that is to be expected. ONI thresholds it at one half: a potential needs no threshold.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.base import HeadOptions, Labels
from embodied_rl.judge.heads.head_network import Forward, HeadNetwork


class ClassifierHead:
    """Minimises the cross entropy between scores and predictions, over random batches of the kept labels.

    Args:
        options: of the head.
    """

    calibrated = True

    def __init__(self, options: HeadOptions) -> None:
        self._network, self._batch, self._learned = HeadNetwork(options), options.batch, False

    def predict(self, inputs: Array) -> Array:
        """Return the expected scores; NaN until something was learned. See `Head`."""
        if not self._learned:
            return np.full(len(inputs), np.nan)
        return 1 / (1 + np.exp(-self._network.evaluate(inputs)))

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        """Take the steps of a version; see `Head`."""

        def measure(random: np.random.Generator, forward: Forward) -> Tensor:
            drawn = kept.select(random.integers(len(kept), size=self._batch))
            return binary_cross_entropy_with_logits(forward(drawn.inputs), torch.from_numpy(drawn.value).float())

        self._learned = True
        return self._network.train(measure, version)

    def state(self) -> dict[str, Array]:
        """Return weights, moments, and whether anything was learned."""
        return self._network.state() | {"learned": np.array(self._learned)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self._learned = bool(state["learned"])
        self._network.load({name: array for name, array in state.items() if name != "learned"})
