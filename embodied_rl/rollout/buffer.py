"""The rollout buffer: the tensors that one round of collection fills, allocated once and reused.

Shapes: T decisions, N environments, Hx executed actions, D' elements of an action's log-probability.
"""

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.writer import select_outcome

_WHOLE = ("trace", "last_value", "finished", "delay")
"""What of a rollout has no axis of decisions, or several tensors."""


@dataclass
class Rollout:
    """A buffer of T decisions of N environments. Make one with `allocate`.

    Only rows with `valid` may be learned from: the others belong to a parked environment, or to an episode that was
    lost with its worker. Entries [.., j] with j ≥ steps are zero (False, HOLD) and mean nothing.

    Attributes:
        trace: the inputs of `Actor.evaluate`, [T, N, ...] each.
        log_prob: float32 [T, N, Hx, D'], computed when the action was chosen.
        value: float32 [T, N] of the observation before the decision.
        version: int64 [T, N], version of the weights that chose the action.
        decision: int64 [T, N], number of earlier decisions in the same episode.
        reward: float32 [T, N, Hx], the simulator's reward of each control step.
        shaping: float32 [T, N], potential-based reward: changes the speed of learning, not the optimal policy.
        potential: float32 [T, N], settled for the observation before the decision; `shaping` was made of it.
        bonus: float32 [T, N], any other added reward: may change the optimal policy.
        set_aside: bool [T, N], whether `reward` counts for nothing in learning, because a scorer judges in its place.
        success: bool [T, N, Hx].
        steps: int64 [T, N], control steps executed.
        source: uint8 [T, N, Hx], a `Source` each.
        terminated: bool [T, N].
        truncated: bool [T, N]; never true where `terminated` is.
        final_value: float32 [T, N], value of the episode's final observation where truncated, else zero.
        valid: bool [T, N].
        episode, group, task: int64 [T, N].
        last_value: float32 [N], value of the observation that follows the last decision.
        finished: the episodes that ended, in the order of rows, then environments.
        delay: d, how many control steps after its observation a row's first action is executed; see
            `embodied_rl.rollout.plans`.
    """

    trace: Trace
    log_prob: Tensor
    value: Tensor
    version: Tensor
    decision: Tensor
    reward: Tensor
    shaping: Tensor
    potential: Tensor
    bonus: Tensor
    set_aside: Tensor
    success: Tensor
    steps: Tensor
    source: Tensor
    terminated: Tensor
    truncated: Tensor
    final_value: Tensor
    valid: Tensor
    episode: Tensor
    group: Tensor
    task: Tensor
    last_value: Tensor
    finished: list[EpisodeRecord] = field(default_factory=list)
    delay: int = 0
    final_pictures: ClassVar[bool] = False

    @staticmethod
    def allocate(actor: Actor, decisions: int, num_envs: int, device: torch.device | str = "cpu") -> "Rollout":
        """Allocate a rollout of T `decisions` of N environments for the tensors that an actor records."""
        executed = actor.log_prob_shape()[0]

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(decisions, num_envs, *shape, dtype=dtype, device=device)

        return Rollout(
            trace={name: zeros(*shape, dtype=dtype) for name, (shape, dtype) in actor.trace_spec().items()},
            log_prob=zeros(*actor.log_prob_shape()),
            value=zeros(),
            version=zeros(dtype=torch.int64),
            decision=zeros(dtype=torch.int64),
            reward=zeros(executed),
            shaping=zeros(),
            potential=zeros(),
            bonus=zeros(),
            set_aside=zeros(dtype=torch.bool),
            success=zeros(executed, dtype=torch.bool),
            steps=zeros(dtype=torch.int64),
            source=zeros(executed, dtype=torch.uint8),
            terminated=zeros(dtype=torch.bool),
            truncated=zeros(dtype=torch.bool),
            final_value=zeros(),
            valid=zeros(dtype=torch.bool),
            episode=zeros(dtype=torch.int64),
            group=zeros(dtype=torch.int64),
            task=zeros(dtype=torch.int64),
            last_value=torch.zeros(num_envs, device=device),
            delay=actor.delay,
        )

    def segments(self, count: int) -> list["Rollout"]:
        """Return views of the decisions in `count` equal parts, each with its own `last_value` and `finished`."""
        if count == 1:
            return [self]
        each = self.decisions // count
        assert each * count == self.decisions, f"{self.decisions} decisions do not make {count} equal parts"
        return [self._segment(slice(first, first + each)) for first in range(0, self.decisions, each)]

    def _segment(self, rows: slice) -> "Rollout":
        views = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in _WHOLE}
        trace = {name: tensor[rows] for name, tensor in self.trace.items()}
        return replace(self, trace=trace, last_value=torch.zeros_like(self.last_value), finished=[], **views)

    @property
    def decisions(self) -> int:
        """Return T, the number of decisions of each environment."""
        return self.valid.shape[0]

    @property
    def num_envs(self) -> int:
        """Return N, the number of environments."""
        return self.valid.shape[1]

    @property
    def executed(self) -> int:
        """Return Hx, the number of executed actions of a chunk."""
        return self.reward.shape[2]

    def clear(self) -> None:
        """Invalidate all rows, so that no data of an earlier round is taken for data of this round."""
        for name, tensor in self.tensors().items():
            if not name.startswith("trace/"):
                tensor.fill_(int(Source.HOLD) if name == "source" else 0)
        self.finished = []

    def check_sizes(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Check that the rollout fits the environments and chunks; see `Writer`."""
        if (self.num_envs, self.executed) != (num_envs, executed):
            raise UserError(
                f"a rollout of {self.num_envs} environments and {self.executed} executed actions was given {num_envs} "
                f"environments and {executed} actions"
            )

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Store the decisions of environments `columns` (int64 [n]), which run `episodes`, in one row or a row each.

        The trace holds what is needed of the observation; of the keys, only the decision numbers are stored.
        """
        for name, tensor in decision.trace.items():
            self.trace[name][row, columns] = tensor.to(self.log_prob.device)
        self.log_prob[row, columns] = decision.log_prob.to(self.log_prob.device)
        self.value[row, columns] = decision.value.to(self.log_prob.device)
        self.version[row, columns] = decision.version.to(self.log_prob.device)
        self.episode[row, columns] = self._long([episode.index for episode in episodes])
        self.group[row, columns] = self._long([episode.group for episode in episodes])
        self.decision[row, columns] = self._long([int(number) for number in keys.decision])
        self.task[row, columns] = self._long([episode.task for episode in episodes])

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: np.ndarray) -> None:
        """Store `rows` of a result for the environments `columns`, and mark their entries of `row` as valid."""
        for name, values in select_outcome(result, rows).items():
            tensor: Tensor = getattr(self, name)
            tensor[row, columns] = self._like(tensor, values)
        self.valid[row, columns] = True

    def lose_episodes(self, row: int, columns: Tensor, first_rows: np.ndarray) -> None:
        """Invalidate rows `first_rows` (int64 [n]) to `row` of the environments `columns`."""
        for column, first in zip(columns.tolist(), first_rows.tolist(), strict=True):
            self.valid[first : row + 1, column] = False

    def end_at_time_limit(self) -> None:
        """Treat the time limit as a failed end of the task: turn truncations into terminations."""
        self.terminated |= self.truncated
        self.truncated.zero_()

    def batch(self) -> dict[str, Tensor]:
        """Return views of all tensors but `last_value` as [T·N, ...]; the trace's entries as "trace/<name>"."""
        return {name: tensor.flatten(0, 1) for name, tensor in self.tensors().items() if name != "last_value"}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; the trace's entries as "trace/<name>"."""
        apart = ("trace", "finished", "delay")
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        return named | {f"trace/{name}": tensor for name, tensor in self.trace.items()}

    def _long(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.log_prob.device)

    def _like(self, tensor: Tensor, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(tensor)
