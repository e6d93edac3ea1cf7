"""Parts of the collector: the environments of one handle, the order of inference, and final observations.

Shapes: n environments of one handle, Hx executed actions of a chunk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, StepResult
from embodied_rl.rollout.action_queue import CommittedActions
from embodied_rl.runtime.processes.handle import Future, Handle, WorkerRestart, wait_for_any

Order = Literal["exact", "ready"]
"""Order in which a collector infers its simulators: in turn, or those that are ready."""


@dataclass
class HandlePart:
    """The environments of one handle.

    Attributes:
        handle: the simulator of these environments.
        columns: int64 [n], their columns in the rollout.
        observation: the latest one, all n rows.
        acting: the rows that decided last; the others are parked.
        future: the chunk that is being executed, or the worker that replaces a dead one, if any.
        decided: number of decided rows of the present rollout; the chunk that is being executed is the last of these.
    """

    handle: Handle
    columns: Array
    observation: Observation | None = None
    acting: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    future: Future | None = None
    decided: int = 0

    @property
    def is_ready(self) -> bool:
        """Return whether the next decision can be made without waiting."""
        return self.future is None or self.future.done()

    def revived(self) -> int:
        """Wait until the new worker is ready, and return the number of restarts that it took."""
        revival, self.future = self.future, None
        assert isinstance(revival, WorkerRestart)
        self.observation = revival.result()
        return revival.restarts

    def restored(self, observation: Observation) -> None:
        """Continue from the observation of a restored snapshot.

        Raises:
            UserError: it has a wrong number of rows.
        """
        found, expected = len(observation), len(self.columns)
        if found != expected:
            message = f"{self.handle.name}: a restored snapshot gives {found} environments, not {expected}"
            raise UserError(message, code="checkpoint-state-mismatch")
        self.observation = observation

    def acting_observation(self) -> Observation:
        """Return the acting rows of the observation; without a copy if all rows act."""
        assert self.observation is not None
        all_act = len(self.acting) == len(self.columns)
        return self.observation if all_act else self.observation.select(self.acting)


def take_in_turn(slices: Sequence[list[HandlePart]], decisions: int) -> Iterator[list[HandlePart]]:
    """Yield all slices in turn for each decision: the order does not depend on time."""
    for _ in range(decisions):
        yield from slices


def take_ready_first(
    parts: Sequence[HandlePart], decisions: int, most: int, wait: Callable[[Sequence[Future]], None] = wait_for_any
) -> Iterator[list[HandlePart]]:
    """Yield the handles that are ready, at most `most` at a time, those furthest behind first.

    More than half of all handles at a time would keep them in lockstep. Readiness is checked when the next turn is
    requested.
    """
    while left := sorted((part for part in parts if part.decided < decisions), key=lambda part: part.decided):
        ready = [part for part in left if part.is_ready]
        if not ready:
            wait([part.future for part in left if part.future is not None])
            ready = [part for part in left if part.is_ready] or left[:1]  # a hanging handle fails at its deadline
        yield ready[:most]


@dataclass
class FinalObservation:
    """The last observation (one row) of an episode that the time limit ended, and the rollout entry of its value.

    `plan` holds the actions that would have been executed next, under an inference delay.
    """

    row: int
    column: int
    observation: Observation
    keys: NoiseKeys
    plan: CommittedActions | None = None


def check_division(handles: int, envs_per_slice: int, num_envs: int, total: int, group_size: int) -> None:
    if num_envs % handles:
        raise UserError(
            f"sim.num_envs: {num_envs} environments cannot be shared equally by {handles} simulators",
            code="envs-not-divisible",
        )
    if num_envs % envs_per_slice or envs_per_slice % (num_envs // handles):
        raise UserError(
            f"plan.slices: slices of {envs_per_slice} of {num_envs} environments are not made of whole simulators "
            f"of {num_envs // handles}",
            code="envs-not-divisible",
        )
    if num_envs % group_size or total % group_size:
        raise UserError(
            f"sim.num_envs: {num_envs} environments cannot be split into groups of {group_size}",
            code="envs-not-divisible",
        )


def check_ended(result: StepResult, acting: Array) -> None:
    expected = np.flatnonzero(result.terminated | result.truncated)
    if not np.array_equal(result.ended, expected) or not np.isin(expected, acting).all():
        raise UserError(
            f"the simulator says that rows {result.ended.tolist()} ended, its flags say {expected.tolist()}, and rows "
            f"{acting.tolist()} were running; check it with embodied_rl.testing.contract.check_simulator",
            code="simulator-wrong-ends",
        )


def join_finals(finals: list[FinalObservation]) -> tuple[Observation, NoiseKeys, CommittedActions | None]:
    keys = [final.keys for final in finals]
    episode, decision = np.concatenate([k.episode for k in keys]), np.concatenate([k.decision for k in keys])
    plans = [final.plan for final in finals if final.plan is not None]
    observation = Observation.concatenate([final.observation for final in finals])
    return (
        observation,
        NoiseKeys(keys[0].seed, episode, decision),
        CommittedActions.concatenate(plans) if plans else None,
    )


def zero_unexecuted(values: Array, steps: Array) -> Array:
    """Return values [n, Hx] with zeros where no control step was executed."""
    return np.where(np.arange(values.shape[1]) < steps[:, None], values, 0)


def split_snapshots(state: dict[str, Array]) -> list[dict[str, Array]]:
    """Return the arrays saved as "simulator/<number>/<name>", one dictionary per simulator, in order."""
    result: dict[int, dict[str, Array]] = {}
    for key, array in state.items():
        if key.startswith("simulator/"):
            _, number, name = key.split("/", 2)
            result.setdefault(int(number), {})[name] = array
    return [result[number] for number in sorted(result)]


def select_part(state: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
