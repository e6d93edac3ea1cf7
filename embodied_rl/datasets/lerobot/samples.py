"""Frames of a dataset in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.interfaces.sim import Array, Observation


@dataclass
class DatasetSamples:
    """n frames of a dataset, each with the actions that follow.

    Attributes:
        observation: n rows.
        actions: float32 [n, H, A], from the frame's own on; past the episode's end the last one is repeated.
        padding: bool [n, H], where it is.
        row, episode: int64 [n], the frame's number in the dataset, and its episode's.
        extra: the other numeric features by name, [n, *shape].
    """

    observation: Observation
    actions: Array
    padding: Array
    row: Array
    episode: Array
    extra: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row)

    def select(self, rows: Sequence[int] | Array) -> "DatasetSamples":
        """The given rows, in the given order."""
        chosen = np.asarray(rows, np.int64)
        extra = {name: array[chosen] for name, array in self.extra.items()}
        return DatasetSamples(
            self.observation.select(chosen), self.actions[chosen], self.padding[chosen],
            self.row[chosen], self.episode[chosen], extra,
        )  # fmt: skip

    @staticmethod
    def concatenate(parts: Sequence["DatasetSamples"]) -> "DatasetSamples":
        """Several as one, rows in order."""
        if len(parts) == 1:
            return parts[0]
        return DatasetSamples(
            observation=Observation.concatenate([part.observation for part in parts]),
            actions=np.concatenate([part.actions for part in parts]),
            padding=np.concatenate([part.padding for part in parts]),
            row=np.concatenate([part.row for part in parts]),
            episode=np.concatenate([part.episode for part in parts]),
            extra={name: np.concatenate([part.extra[name] for part in parts]) for name in parts[0].extra},
        )
