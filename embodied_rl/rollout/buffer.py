"""Rollout buffer: the tensors that one round of collection fills, allocated once and reused.

Shapes: T decisions, N environments, Hx executed actions, D' elements of an action's log-probability.
"""

from collections.abc import Mapping
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

OF_ENVIRONMENTS = ("last_value", "extras/last")
"""Tensors that have no axis of decisions before that of environments."""
_NUMBERS = ("version", "decision", "steps", "episode", "group", "task")
_FLAGS = ("ignore_env_reward", "terminated", "truncated", "valid")
_DICTS, _PLAIN = ("trace", "extras"), ("finished", "delay")
Columns = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name → shape of an entry, and dtype."""


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
        ignore_env_reward: bool [T, N], whether learning ignores `reward`, because a scorer replaces it.
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
        extras: further columns that writers fill for learners, [T, N, ...] each; "last" is [N, ...].
        delay: d, control steps from an observation to the execution of the row's first action; see
            `embodied_rl.rollout.action_queue`.
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
    ignore_env_reward: Tensor
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
    extras: dict[str, Tensor] = field(default_factory=dict)
    delay: int = 0
    final_pictures: ClassVar[bool] = False

    @staticmethod
    def allocate(
        actor: Actor,
        decisions: int,
        num_envs: int,
        device: torch.device | str = "cpu",
        extras: Columns | None = None,
    ) -> "Rollout":
        """Allocate a rollout of T `decisions` of N environments for the tensors that an actor records.

        `extras` are columns that writers fill.
        """
        executed = actor.log_prob_shape()[0]

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(decisions, num_envs, *shape, dtype=dtype, device=device)

        return Rollout(
            trace={name: zeros(*shape, dtype=dtype) for name, (shape, dtype) in actor.trace_spec().items()},
            log_prob=zeros(*actor.log_prob_shape()),
            reward=zeros(executed),
            success=zeros(executed, dtype=torch.bool),
            source=zeros(executed, dtype=torch.uint8),
            **{name: zeros() for name in ("value", "shaping", "potential", "bonus", "final_value")},
            **{name: zeros(dtype=torch.int64) for name in _NUMBERS},
            **{name: zeros(dtype=torch.bool) for name in _FLAGS},
            last_value=torch.zeros(num_envs, device=device),
            finished=[],
            extras={
                name: torch.zeros(num_envs, *shape, dtype=dtype, device=device)
                if f"extras/{name}" in OF_ENVIRONMENTS
                else zeros(*shape, dtype=dtype)
                for name, (shape, dtype) in (extras or {}).items()
            },
            delay=actor.delay,
        )

    def segments(self, count: int) -> list["Rollout"]:
        """Return views of `count` equal parts of the decisions, each with separate entries for its end."""
        if count == 1:
            return [self]
        each = self.decisions // count
        assert each * count == self.decisions, f"{self.decisions} decisions do not make {count} equal parts"
        parts: list[Rollout] = []
        for first in range(0, self.decisions, each):
            views: dict[str, Tensor] = {}
            nested: dict[str, dict[str, Tensor]] = {kind: {} for kind in _DICTS}
            for name, tensor in self.tensors().items():
                view = torch.zeros_like(tensor) if name in OF_ENVIRONMENTS else tensor[first : first + each]
                kind, _, entry = name.partition("/")
                (nested[kind] if entry else views)[entry or name] = view
            parts.append(replace(self, finished=[], **nested, **views))
        return parts

    @property
    def actions(self) -> Tensor:
        """Return the actions that the decisions chose, float32 [T, N, Hx, D], in the model's units, before clipping.

        A view of the trace, for algorithms that learn from actions. `embodied_rl.training.algorithms.batch.find_scored`
        returns which of them were executed as chosen; the `valid` of a row holds for all of its actions.

        Raises:
            UserError: the actor does not record its actions as the trace's entry "actions".
        """
        if "actions" not in self.trace:
            raise UserError("the actor's trace has no entry 'actions'", code="actor-without-actions")
        return self.trace["actions"]

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
        """Return Hx, the executed actions of a chunk."""
        return self.reward.shape[2]

    def clear(self) -> None:
        """Invalidate all rows, so that no data of an earlier round is taken for data of this round."""
        for name, tensor in self.tensors().items():
            if not name.startswith("trace/"):
                tensor.fill_(int(Source.HOLD) if name == "source" else 0)
        self.finished = []

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Check that the rollout fits the environments and chunks; see `Writer`."""
        if (self.num_envs, self.executed) != (num_envs, executed):
            raise UserError(
                f"a rollout of {self.num_envs} environments and {self.executed} executed actions was given {num_envs} "
                f"environments and {executed} actions",
                code="rollout-shape-mismatch",
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
        device = self.log_prob.device
        for name, tensor in decision.trace.items():
            self.trace[name][row, columns] = tensor.to(device)
        for name in ("log_prob", "value", "version"):
            getattr(self, name)[row, columns] = getattr(decision, name).to(device)
        numbers = {
            "episode": [episode.index for episode in episodes],
            "group": [episode.group for episode in episodes],
            "task": [episode.task for episode in episodes],
            "decision": keys.decision.tolist(),
        }
        for name, values in numbers.items():
            getattr(self, name)[row, columns] = torch.tensor(values, dtype=torch.int64, device=device)

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: np.ndarray) -> None:
        """Store `rows` of a result for the environments `columns`, and mark their entries of `row` as valid."""
        for name, values in select_outcome(result, rows).items():
            tensor: Tensor = getattr(self, name)
            tensor[row, columns] = torch.from_numpy(np.ascontiguousarray(values)).to(tensor)
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
        """Return views of all tensors [T, N, ...] but the extras, as [T·N, ...]; the trace's as "trace/<name>"."""
        left_out = (*OF_ENVIRONMENTS, *(f"extras/{name}" for name in self.extras))
        return {name: tensor.flatten(0, 1) for name, tensor in self.tensors().items() if name not in left_out}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; the entries of the trace as "trace/<name>", the extras as "extras/<name>"."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*_DICTS, *_PLAIN)}
        return named | {f"{kind}/{name}": tensor for kind in _DICTS for name, tensor in getattr(self, kind).items()}
