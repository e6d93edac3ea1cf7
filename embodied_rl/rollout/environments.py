"""The state that a collector keeps for each environment and each handle between two chunks.

Shapes: N environments of a collector, n of one call or one handle, Hx executed actions of a chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.handle import Future, Handle, wait_for_any

Order = Literal["exact", "ready"]
"""Order in which a collector infers its simulators: in turn, or those that are ready."""

_DRAWN = ("task", "seed")
"""Entries of a running episode that do not follow from its index once weights have changed; below 2^63."""


class Environments:
    """The current episode and progress of each of N environments. `columns` (int64 [n]) select environments.

    Args:
        sampler: index → episode.
        numbers: int64 [N], numbers of these environments among all `total` environments of a run.
        final_pictures: whether simulators draw the last observation of every episode.
        executed: Hx, for late starts.

    Attributes:
        active: bool [N], false while parked.
        first_row: int64 [N], row of the present rollout in which its episode began; 0 where it began earlier.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        numbers: Array,
        total: int,
        seed: int,
        final_pictures: bool = False,
        executed: int = 1,
    ) -> None:
        self._sampler, self._numbers, self._total, self._seed = sampler, numbers, total, seed
        self._final_pictures = final_pictures
        size = len(numbers)
        self.active = np.ones(size, bool)
        self.first_row = np.zeros(size, np.int64)
        self._finished = np.zeros(size, np.int64)
        self._decision = np.zeros(size, np.int64)
        self._steps = np.zeros(size, np.int64)
        self._reward = np.zeros(size, np.float64)
        self._success = np.zeros(size, bool)
        self._episodes = [sampler.begin(self._index(column)) for column in range(size)]
        self._next: dict[int, Episode] = {}
        self._late = sampler.make_late_starts(size, executed)

    def begin_rollout(self) -> None:
        """Prepare for a new rollout: drop next episodes that were drawn, because weights may have changed."""
        self.first_row[:] = 0
        self._next.clear()

    def episodes(self, columns: Array) -> list[Episode]:
        """Return the current episodes, or the last ones of parked environments."""
        return [self._episodes[column] for column in columns]

    def to_start(self, columns: Array) -> list[Episode | None]:
        """Return the episodes that a simulator should start: None for parked environments."""
        return [self._with_pictures(self._episodes[column]) if self.active[column] else None for column in columns]

    def following(self, columns: Array) -> list[Episode]:
        """Return the episodes that the environments run next if they begin them in this rollout."""
        for column in columns.tolist():
            if column not in self._next:  # drawn once for all chunks of an episode
                self._next[column] = self._choose_start(column, self._sampler.episode(self._index(column, 1)))
        return [self._with_pictures(self._next[column]) for column in columns.tolist()]

    def _choose_start(self, column: int, episode: Episode) -> Episode:
        """Return the episode as it begins in an environment, which may be in mid-episode."""
        if self._late is None:
            return episode
        return self._late.choose(column, episode, self._sampler.draw_late_start(episode.group))

    def _with_pictures(self, episode: Episode) -> Episode:
        """Return the episode as it is sent to simulators, with `final_picture` set where pictures are needed."""
        return replace(episode, final_picture=True) if self._final_pictures else episode

    def keys(self, columns: Array) -> NoiseKeys:
        """Return the noise keys of the next decision."""
        indices = np.array([self._episodes[column].index for column in columns], np.int64)
        return NoiseKeys(self._seed, indices, self._decision[columns])

    def advance(self, columns: Array) -> None:
        """Move the environments to their next episode."""
        self._finished[columns] += 1
        for column in columns.tolist():
            begun, drawn = self._sampler.begin(self._index(column)), self._next.pop(column, None)
            self._episodes[column] = drawn or self._choose_start(column, begun)
            if self._late is not None:
                self._late.begin(column, self._episodes[column])
        for array in (self._decision, self._steps, self._reward, self._success):
            array[columns] = 0

    def add(self, columns: Array, result: StepResult, rows: Array) -> None:
        """Add a chunk, `rows` of `result`, to the progress of `columns`."""
        used = np.arange(result.reward.shape[1]) < result.steps[rows, None]
        self._decision[columns] += 1
        self._steps[columns] += result.steps[rows]
        self._reward[columns] += np.where(used, result.reward[rows], 0).sum(axis=1, dtype=np.float64)
        self._success[columns] |= (result.success[rows] & used).any(axis=1)
        if self._late is not None:
            self._late.add(columns, result.executed[rows])

    def record(self, column: int, result: StepResult, row: int) -> EpisodeRecord:
        """Return the record of the episode that ended in this result; call it once, after `add`."""
        episode, steps = self._episodes[column], int(result.steps[row])
        if self._late is not None:
            self._late.end(column, episode, bool(self._success[column]))
        return EpisodeRecord(
            episode.index,
            episode.task,
            episode.group,
            episode.split,
            success_once=bool(self._success[column]),
            success_at_end=bool(steps > 0 and result.success[row, steps - 1]),
            steps=int(self._steps[column]),
            reward=float(self._reward[column]),
            late=episode.history is not None,
        )

    def name(self, column: int) -> str:
        """Return the environment, episode and decision as text for an error message."""
        episode = self._episodes[column]
        return (
            f"environment {self._numbers[column]}, decision {self._decision[column]} "
            f"of episode {episode.index} (task {episode.task}, seed {episode.seed})"
        )

    def check_observation(self, observation: Observation, columns: Array) -> None:
        """Raise `FloatingPointError` when an observation of `columns` is not finite; the message says which one."""
        self.check("the simulator's state", observation.state, columns)
        if observation.privileged is not None:
            self.check("the simulator's privileged state", observation.privileged, columns)

    def check(self, what: str, values: Array, columns: Array) -> None:
        """Raise `FloatingPointError` when `values` [n, ...] are not finite; the message says where."""
        if np.isfinite(values).all():
            return
        bad = ~np.isfinite(values.reshape(len(columns), -1)).all(axis=1)
        raise FloatingPointError(f"NaN or infinity in {what}: {self.name(int(columns[bad][0]))}")

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays that `load` needs, including those of the sampler."""
        drawn = {name: [getattr(episode, name) for episode in self._episodes] for name in _DRAWN}
        arrays = self._arrays() | {name: np.array(values, np.int64) for name, values in drawn.items()}
        return self._sampler.state() | {f"environments/{name}": array.copy() for name, array in arrays.items()}

    def load(self, state: dict[str, Array]) -> None:
        """Restore a `state`. Raises `UserError` when it has another number of environments."""
        for name, array in self._arrays().items():
            saved = state[f"environments/{name}"]
            if saved.shape != array.shape:
                message = f"the saved collector has {len(saved)} environments, this one {len(array)}"
                raise UserError(message, code="checkpoint-state-mismatch")
            if saved.dtype != array.dtype or (saved.dtype == np.int64 and (saved < 0).any()):
                message = f"the saved {name} is {saved.dtype}, not {array.dtype}, or below 0"
                raise UserError(message, code="checkpoint-state-mismatch")
            array[:] = saved
        self._sampler.load(state)
        for column in range(len(self._numbers)):
            drawn = {name: int(state[f"environments/{name}"][column]) for name in _DRAWN}
            history = None if self._late is None else self._late.history(column)
            self._episodes[column] = replace(self._sampler.episode(self._index(column)), **drawn, history=history)

    def restart(self) -> None:
        """Reset the progress of the current episodes, because their simulators restart them."""
        for array in (self._decision, self._steps, self._reward, self._success):
            array[:] = 0
        if self._late is not None:
            self._late.restart()

    def _arrays(self) -> dict[str, Array]:
        late = {} if self._late is None else self._late.arrays()
        return late | {
            "active": self.active,
            "finished": self._finished,
            "decision": self._decision,
            "steps": self._steps,
            "reward": self._reward,
            "success": self._success,
        }

    def _index(self, column: int, later: int = 0) -> int:
        return int(self._numbers[column] + (self._finished[column] + later) * self._total)


@dataclass
class HandlePart:
    """The environments of one handle.

    Attributes:
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

    `plan` is of `ActionQueue.read`: the actions that would have been executed next, under an inference delay.
    """

    row: int
    column: int
    observation: Observation
    keys: NoiseKeys
    plan: dict[str, Array]


def check_division(handles: int, envs_per_slice: int, num_envs: int, total: int, group_size: int) -> None:
    """Raise `UserError` unless environments divide into handles, slices and groups."""
    problem = ""
    if num_envs % handles:
        problem = f"sim.num_envs: {num_envs} environments cannot be shared equally by {handles} simulators"
    elif num_envs % envs_per_slice or envs_per_slice % (num_envs // handles):
        each = num_envs // handles
        problem = (
            f"plan.slices: slices of {envs_per_slice} of {num_envs} environments are not whole simulators of {each}"
        )
    elif num_envs % group_size or total % group_size:
        problem = f"sim.num_envs: {num_envs} environments cannot be split into groups of {group_size}"
    if problem:
        raise UserError(problem, code="envs-not-divisible")
