"""What a collector writes to, decision by decision: a rollout, a replay storage, or both.

Shapes: n environments of one call, Hx executed actions of a chunk, A action dimensions.
"""

from typing import Protocol

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult


class Writer(Protocol):
    """Takes decisions, then what came of them; `columns` (int64 [n]) are environments, `row` is one of a rollout.

    Attributes:
        final_pictures: whether it looks at the last observation of episodes that terminated.
    """

    final_pictures: bool

    def check_sizes(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Find out whether it has room for what so many environments of a simulator do.

        Args:
            spec: of the simulator.
            num_envs: columns.
            executed: Hx.

        Raises:
            UserError: it was made for something else.
        """
        ...

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Store decisions of the environments `columns`, which run `episodes`, in one row or a row each.

        Args:
            row: of the rollout; int64 [n] for a row each.
            columns: environments.
            decision: n rows.
            episodes: n of them.
            observation: n rows, what was decided on. Its images may be views that change later: copy them.
            keys: of these decisions, n of them.
        """
        ...

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Store what `rows` (int64 [n]) of a result say of the environments `columns`."""
        ...

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Forget the episodes that `columns` run: a worker died with them, and nothing of them may be learned from.

        Args:
            row: of the rollout, the last one they reached; -1 between two rollouts.
            columns: environments.
            first_rows: int64 [n], the first row of the rollout that holds something of them.
        """
        ...


def select_outcome(result: StepResult, rows: Array) -> dict[str, Array]:
    """What `rows` of a result say, as "reward", "success", "source", "steps", "terminated" and "truncated".

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
