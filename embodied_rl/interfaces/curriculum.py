"""The interface of curricula, which set how often each task is drawn in training. NumPy and standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array, SimulatorSpec


@dataclass(frozen=True)
class EpisodeRecord:
    """The outcome of an episode that ended.

    Attributes:
        index, task, group, split: as in `Episode`.
        success_once: whether the goal held after any step of the episode.
        success_at_end: whether the goal held after the last step.
        steps: number of control steps.
        reward: sum of its rewards.
        late: whether it began in mid-episode (`Episode.history`); curricula do not get such episodes.
    """

    index: int
    task: int
    group: int
    split: str
    success_once: bool
    success_at_end: bool
    steps: int
    reward: float
    late: bool = False


class Curriculum(Protocol):
    """A rule for how often each task is drawn. A curriculum that never changes defines only `weights`.

    `Config` is a frozen dataclass of the settings, the keys `curriculum.<key>`. The constructor raises `ValueError` for
    settings that do not fit the simulator.

    Weights may depend only on the settings, the simulator, and the arguments of `update`: every rank has its own
    curriculum, and all of them must agree bit for bit.
    """

    Config: ClassVar[Any]

    def __init__(self, config: Any, spec: SimulatorSpec) -> None: ...

    def weights(self) -> NDArray[np.float64]:
        """Return float64 [tasks] in the order of `spec.tasks`: finite, not negative, not all zero; any scale."""
        ...

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Update the curriculum with the training episodes of all ranks that ended in a rollout, in the order of ranks.

        Called once between two rollouts; new weights take effect in the next rollout.
        """

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue bit for bit."""
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state that `state` returned."""
