"""The interface of heads, and the labels they learn from.

Shapes: n observations, D bytes of their inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.head_inputs import HeadInputs


@dataclass(frozen=True)
class Labels:
    """What a judge said of observations.

    Attributes:
        inputs: uint8 [n, D], see `HeadInputs`.
        value: float64 [n], scores within 0 … 1.
        episode, decision: int64 [n]; together they name an observation.
    """

    inputs: Array
    value: Array
    episode: Array
    decision: Array

    def __len__(self) -> int:
        return len(self.value)

    def select(self, which: Array) -> "Labels":
        """Return some of the labels, by places or by a mask."""
        return Labels(self.inputs[which], self.value[which], self.episode[which], self.decision[which])

    def sort(self) -> "Labels":
        """Return the labels sorted by episode and decision."""
        return self.select(np.lexsort((self.value, self.decision, self.episode)))

    @staticmethod
    def join(parts: "list[Labels]") -> "Labels":
        """Concatenate labels."""
        names = ("inputs", "value", "episode", "decision")
        return Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class HeadOptions:
    """What a head is made with.

    Attributes:
        inputs: how observations are packed.
        seed: of the run.
        steps: gradient steps whenever labels have come; batch: labels, or pairs of them, of each.
        rate: of learning.
        entries: of a table, at most.
    """

    inputs: HeadInputs
    seed: int
    steps: int = 32
    batch: int = 256
    rate: float = 1e-3
    entries: int = 25_000


class Head(Protocol):
    """Predicts scores. It is trained by `learn` alone; equal calls give equal bits.

    Attributes:
        calibrated: whether its predictions mean the same as the scores; else only their order does.
    """

    calibrated: bool

    def predict(self, inputs: Array) -> Array:
        """Return predictions within 0 … 1, float64 [n]; NaN where it has nothing to say."""
        ...

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        """Learn, and return the mean loss; NaN where there is none.

        Args:
            fresh: labels that have just come, each observation once.
            kept: all labels that are kept, with the fresh ones.
            version: of the head until now; what is drawn depends on it.
        """
        ...

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue exactly."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        ...
