"""Interface of the objects that a collector writes to for each decision: a rollout, a replay storage, or both.

Shapes: n environments of one call, Hx executed actions of a chunk, A action dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult


class Writer(Protocol):
    """Stores decisions, then their results; `columns` (int64 [n]) are environments, `row` is a row of a rollout.

    A writer derives from this class and inherits the methods below that it does not need.

    Attributes:
        final_pictures: whether the writer reads the last observation of episodes that terminated.
    """

    final_pictures: bool

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Prepare for the data of N environments and chunks of Hx actions; called once, before anything is written.

        Raises:
            UserError: the writer was made for other sizes or for another simulator.
        """
        ...

    def write_observation(self, row: Tensor | int, columns: Tensor, observation: Observation, keys: NoiseKeys) -> None:
        """Read the observations of environments `columns` before the policy infers; see `write_decision`."""

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Store the decisions of n environments `columns`, which run `episodes`.

        Args:
            row: of the rollout; int64 [n] for a row each.
            columns, decision, episodes: n of each.
            observation: n rows, the inputs of the decisions. Its images may be views that change later: copy them.
            keys: n noise keys of these decisions.
        """
        ...

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Store `rows` (int64 [n]) of a result for the environments `columns`."""
        ...

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Discard the running episodes of `columns`: their worker died, and nothing may be learned from them.

        `row` is the last row of the rollout that they reached, -1 between two rollouts; `first_rows` int64 [n] the
        first one that holds data of each episode.
        """
        ...

    def write_last(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Read the observations after the last row of a rollout, of the environments `columns` that are active.

        `keys` are those of the decisions that follow. Images may be views that change later: copy them.
        """

    def finish_rollout(self, rollout: Any) -> None:
        """Complete a filled `embodied_rl.rollout.buffer.Rollout` before it is handed over."""

    def figures(self) -> Mapping[str, float]:
        """Return counts of the last rollout, for the log of the run; those of all collectors are added up."""
        return {}

    def trouble(self) -> str:
        """Return one line about a present problem, such as an unreachable server; empty if there is none."""
        return ""

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue between two rollouts."""
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state that `state` returned."""

    def clear(self) -> None:
        """Discard what an earlier process wrote, because the run starts again without a checkpoint."""

    def close(self) -> None:
        """Release all resources."""


@dataclass(frozen=True)
class WriterFactory:
    """Makes a writer in each collecting process, e.g. a replay storage, or a writer that requests scores.

    Attributes:
        path: "module:function", called with `options` and the number of the collector among all collectors.
        options: picklable options of the writer.
    """

    path: str
    options: Any = None

    def make(self, number: int) -> Writer:
        """Return the writer of collector `number`."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)(self.options, number)


def select_outcome(result: StepResult, rows: Array) -> dict[str, Array]:
    """Return `rows` of a result as "reward", "success", "source", "steps", "terminated" and "truncated".

    Entries j ≥ steps are zero (False, HOLD), and a termination wins over a truncation.
    """
    unused = np.arange(result.reward.shape[1]) >= result.steps[rows, None]
    return {
        "reward": np.where(unused, 0, result.reward[rows]),
        "success": result.success[rows] & ~unused,
        "source": np.where(unused, Source.HOLD, result.source[rows]),
        "steps": result.steps[rows],
        "terminated": result.terminated[rows],
        "truncated": result.truncated[rows] & ~result.terminated[rows],
    }
