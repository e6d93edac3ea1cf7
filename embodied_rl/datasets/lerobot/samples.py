"""Frames of a dataset, loaded into memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.interfaces.sim import Array, Observation


@dataclass
class DatasetSamples:
    """n frames of a dataset, each with its chunk of actions.

    Attributes:
        observation: n rows.
        actions: float32 [n, H, A], beginning with the frame's own action; past the episode's end the last is repeated.
        padding: bool [n, H], true for repeated actions.
        row, episode: int64 [n], numbers of the frame and of its episode in the dataset.
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
        """Return the given rows, in the given order."""
        chosen = np.asarray(rows, np.int64)
        extra = {name: array[chosen] for name, array in self.extra.items()}
        return DatasetSamples(
            self.observation.select(chosen), self.actions[chosen], self.padding[chosen],
            self.row[chosen], self.episode[chosen], extra,
        )  # fmt: skip

    @staticmethod
    def concatenate(parts: Sequence["DatasetSamples"]) -> "DatasetSamples":
        """Concatenate several samples, with rows in order."""
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
