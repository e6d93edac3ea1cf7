"""What decides how often each task is drawn while training: NumPy and the standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array, SimulatorSpec


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode that ended.

    Attributes:
        index, task, group, split: as in `Episode`.
        success_once: whether the goal held after any of its steps.
        success_at_end: whether it held after the last one.
        steps: control steps it took.
        reward: sum of its rewards.
    """

    index: int
    task: int
    group: int
    split: str
    success_once: bool
    success_at_end: bool
    steps: int
    reward: float


class Curriculum(Protocol):
    """How often each task is drawn. One that never changes has nothing to add but `weights`.

    `Config` is a frozen dataclass of its settings, the keys `episodes.<key>`. The constructor raises `ValueError` for
    what does not fit the simulator.

    Weights may follow only from the settings, the simulator, and what `update` was given: every rank has a curriculum
    of its own, and they have to agree to the bit.
    """

    Config: ClassVar[Any]

    def __init__(self, config: Any, spec: SimulatorSpec) -> None: ...

    def weights(self) -> NDArray[np.float64]:
        """float64 [tasks], in the order of `spec.tasks`: finite, not negative, one of them positive; any scale."""
        ...

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Take in the training episodes that ended in a rollout, of all ranks, in the order of ranks.

        Called once between two rollouts; what changes counts from the next one on.
        """

    def state(self) -> dict[str, Array]:
        """What `load` needs to continue to the bit; copies."""
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
