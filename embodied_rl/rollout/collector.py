"""Collector of rollouts: while the policy infers for one slice of environments, the others simulate.

Shapes: T decisions, N environments of this collector, n of one handle, Hx executed actions of a chunk.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys, Policy
from embodied_rl.interfaces.sim import Array, NotFinite, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.action_queue import ActionQueue
from embodied_rl.rollout.buffer import EpisodeRecord, Rollout
from embodied_rl.rollout.environments import (
    Environments,
    FinalObservation,
    HandlePart,
    Order,
    check_division,
    take_ready_first,
)
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.timeline import INFER, SIMULATE, VALUE, WAIT, Timeline
from embodied_rl.rollout.writer import Writer
from embodied_rl.runtime.processes.handle import Future, Handle, WorkerDied, WorkerRestart, wait_for_any
from embodied_rl.runtime.processes.process import read_resident_bytes

log = logging.getLogger(__name__)


class Collector:
    """Runs the environments of several handles and fills the same rollout in every round.

    Episodes carry over from one rollout to the next, unless `fresh`. Environment e of all N runs the episodes e, e + N,
    e + 2N, …; noise is keyed by episode and decision, and slices take turns in a fixed order. So a rollout depends on
    neither timing nor, for a row-wise actor, on the number of slices and handles. For an actor with a `delay`, see
    `embodied_rl.rollout.action_queue`.

    A worker that dies is replaced. The episodes it ran are lost: their rows become invalid, all other rows stay valid.

    Args:
        handles: simulators with equally many environments each.
        envs_per_slice: environments that are inferred together; a slice is one or several handles.
        sampler: index → episode.
        rollout: T × N, with N = envs_per_slice × slices.
        seed: of the run; keys the noise.
        env_offset, env_total: number of the first environment among those of all collectors, and their number.
        fresh: start a new episode in every environment at each `collect`, and park it when it has ended, so that a
            rollout holds whole episodes, as group-relative methods need.
        order: "exact" infers the slices in turn; "ready" infers the handles whose chunk is done, at most one slice's
            worth, so that a slow simulator, or one whose worker is being replaced, does not delay the others. Then
            timing decides which rows make a batch, and so it changes the last bits of a network's output.
        writers: further writers of the same data, such as a replay storage, with a column for each environment.
        explore: whether the exploring policy collects, or the deployed one.

    Attributes:
        timeline: of the last `collect`.
        memory: resident bytes after the last `collect`, of this process and of each handle's (0 for none).
        restarts, lost_episodes: workers replaced since the run began, and the episodes that were lost with them.

    Raises:
        UserError: the sizes do not fit each other or a writer, a `fresh` rollout is too short for a whole episode, or
            it is unknown how the robot holds still under a delay.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        spec: SimulatorSpec,
        envs_per_slice: int,
        sampler: EpisodeSampler,
        rollout: Rollout,
        seed: int,
        env_offset: int = 0,
        env_total: int | None = None,
        fresh: bool = False,
        order: Order = "exact",
        writers: Sequence[Writer] = (),
        explore: bool = True,
    ):
        total = rollout.num_envs if env_total is None else env_total
        envs, per_handle = rollout.num_envs, rollout.num_envs // len(handles)
        check_division(len(handles), envs_per_slice, envs, total, sampler.group_size)
        if fresh and rollout.decisions * rollout.executed < spec.horizon:
            raise UserError(
                f"{rollout.decisions} decisions of {rollout.executed} steps do not hold an episode of {spec.horizon}; "
                f"whole episodes need train.decisions ≥ {-(-spec.horizon // rollout.executed)}",
                code="rollout-too-short",
            )
        self.spec, self.rollout, self._fresh, self._order, self._explore = spec, rollout, fresh, order, explore
        for writer in writers:
            writer.prepare(spec, envs, rollout.executed)
        self.writers = tuple(writers)
        self._writers = [rollout, *writers]
        pictured = any(writer.final_pictures for writer in self._writers)
        self._envs = Environments(sampler, env_offset + np.arange(envs), total, seed, pictured, rollout.executed)
        self._queue = ActionQueue(spec, envs, rollout.delay)
        columns = np.split(np.arange(envs), len(handles))
        self._parts = [HandlePart(handle, mine) for handle, mine in zip(handles, columns, strict=True)]
        size = envs_per_slice // per_handle
        self._slices = [self._parts[first : first + size] for first in range(0, len(handles), size)]
        self._finals: list[FinalObservation] = []
        self._finished: list[tuple[int, int, EpisodeRecord]] = []
        self._begun, self.timeline = False, Timeline()
        self.memory: tuple[int, tuple[int, ...]] = (0, ())
        self.restarts = self.lost_episodes = 0
        self._notes: list[str] = []

    def collect(self, policy: Policy) -> Rollout:
        """Fill the rollout with T decisions of each environment, and return it.

        Raises:
            FloatingPointError: the simulator or the policy returned NaN or infinity; the message says where.
            WorkerDied: a worker died more often than its budget of restarts allows.
            WorkerError: a simulator raised an exception.
        """
        for _ in self.collect_in_turns(policy):
            pass
        return self.rollout

    @torch.no_grad()
    def collect_in_turns(self, policy: Policy) -> Iterator[None]:
        """Collect as `collect` does, and yield after each turn of a slice; the rollout is complete at the end."""
        self._begin()
        decisions = self.rollout.decisions
        turns: Iterable[list[HandlePart]] = chain.from_iterable(repeat(self._slices, decisions))
        if self._order == "ready":
            turns = take_ready_first(self._parts, decisions, len(self._slices[0]), self._wait_for_any)
        for parts in turns:
            self._receive(parts, wait=self._order == "exact")
            if ready := [part for part in parts if part.future is None]:
                self._decide(policy, ready)
            yield
        self._receive(self._parts)
        for parts in self._slices if self.writers else ():
            observation, columns = self._pending_observation(parts)
            if observation is not None:
                for writer in self.writers:
                    writer.write_last(columns, observation, self._envs.keys(columns))
        self._evaluate_ends(policy)
        self.rollout.finished = [record for _, _, record in sorted(self._finished, key=lambda item: item[:2])]
        for writer in self.writers:
            with self.timeline.record(WAIT):
                writer.finish_rollout(self.rollout)
        self.timeline.finish()
        self.memory = read_resident_bytes(os.getpid()), tuple(part.handle.memory() for part in self._parts)

    def pop_warnings(self) -> tuple[str, ...]:
        """Return the warnings for the user since the last call."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def state(self) -> dict[str, Array]:
        """Return the arrays that `load` needs to continue bit for bit; call it between two calls of `collect`.

        If simulators cannot take snapshots, `load` restarts their current episodes.
        """
        arrays: dict[str, Array] = {}
        if self._begun and not self._fresh and self.spec.can_snapshot:
            for number, part in enumerate(self._parts):  # first, because it may find a dead worker and count a loss
                try:
                    snapshot = part.handle.submit("snapshot").result()
                except WorkerDied as death:
                    self._lose(part, -1, death)
                    snapshot = part.handle.submit("snapshot").result()
                arrays |= {f"simulator/{number}/{name}": array for name, array in snapshot.items()}
        counters = {"begun": self._begun, "restarts": self.restarts, "lost_episodes": self.lost_episodes}
        written = {f"writer/{n}/{name}": x for n, each in enumerate(self.writers) for name, x in each.state().items()}
        arrays |= self._envs.state() | self._queue.state() | written
        return arrays | {name: np.array(value, np.int64) for name, value in counters.items()}

    def load(self, state: dict[str, Array]) -> None:
        """Restore a `state` of a collector with the same handles, sampler and sizes.

        Raises:
            UserError: the state has another number of environments or simulators.
        """
        self._envs.load(state)
        self._queue.load(state)
        for number, writer in enumerate(self.writers):
            writer.load(_select_part(state, f"writer/{number}/"))
        self._begun = bool(state["begun"])
        self.restarts, self.lost_episodes = int(state["restarts"]), int(state["lost_episodes"])
        if not self._begun or self._fresh:
            return
        numbers = {int(name.split("/", 2)[1]) for name in state if name.startswith("simulator/")}
        saved = [_select_part(state, f"simulator/{number}/") for number in sorted(numbers)]
        if len(saved) not in (0, len(self._parts)):
            message = f"the saved collector has {len(saved)} simulators, this one {len(self._parts)}"
            raise UserError(message, code="checkpoint-state-mismatch")
        if saved:
            futures = [part.handle.submit("restore", each) for part, each in zip(self._parts, saved, strict=True)]
            for part, future in zip(self._parts, futures, strict=True):
                try:
                    observation: Observation = future.result()
                    if (found := len(observation)) != (expected := len(part.columns)):
                        message = f"{part.handle.name}: a restored snapshot gives {found} environments, not {expected}"
                        raise UserError(message, code="checkpoint-state-mismatch")
                    part.observation = observation
                except WorkerDied as death:
                    part.acting = np.flatnonzero(self._envs.active[part.columns])
                    self._lose(part, -1, death)
        else:
            log.warning("the simulator has no snapshots: the episodes that were running are restarted")
            self._envs.restart()
            self._queue.reset(np.arange(self.rollout.num_envs))
            self._start()

    def restart_episodes(self) -> None:
        """Let the next `collect` restart the present episodes, because the simulators have run other episodes."""
        if self._begun and not self._fresh:
            self._envs.restart()
            self._queue.reset(np.arange(self.rollout.num_envs))
            self._begun = False

    def _begin(self) -> None:
        self.timeline = Timeline()
        self.rollout.clear()
        self._finals, self._finished = [], []
        self._envs.begin_rollout()
        for part in self._parts:
            part.decided = 0
        everything = np.arange(self.rollout.num_envs)
        if self._fresh and self._begun:
            self._envs.advance(everything)
        if self._fresh or not self._begun:
            self._envs.active[:] = True
            self._start()
        self._begun = True

    def _start(self) -> None:
        futures = [part.handle.submit("reset", self._envs.to_start(part.columns)) for part in self._parts]
        for part, future in zip(self._parts, futures, strict=True):
            try:
                part.observation = self._wait(part, future)
            except WorkerDied as death:
                self._replace(part, death)

    def _decide(self, policy: Policy, parts: list[HandlePart]) -> None:
        observation, columns = self._pending_observation(parts)
        rows = np.concatenate([np.full(len(part.acting), part.decided) for part in parts])
        for part in parts:
            part.decided += 1
        if observation is None:
            return
        keys, plan = self._envs.keys(columns), self._queue.read(columns)
        where = torch.from_numpy(rows), torch.from_numpy(columns)
        for writer in self.writers:
            writer.write_observation(*where, observation, keys)
        with self.timeline.record(INFER, len(columns)):
            decision = policy.act(observation, keys, explore=self._explore, **plan)
        self._envs.check("the policy's actions", decision.actions, columns)
        if plan:
            decision = replace(decision, actions=self._queue.push(columns, decision.actions))
        for writer in self._writers:
            writer.write_decision(*where, decision, self._envs.episodes(columns), observation, keys)
        offset = 0
        for part in (part for part in parts if len(part.acting)):
            actions = np.zeros((len(part.columns), *decision.actions.shape[1:]), np.float32)
            actions[part.acting] = decision.actions[offset : offset + len(part.acting)]
            offset += len(part.acting)
            following = [None] * len(part.columns) if self._fresh else self._envs.following(part.columns)
            with self._annotate_errors(part):
                part.future = part.handle.submit("step", actions, following)

    def _receive(self, parts: list[HandlePart], wait: bool = True) -> None:
        for part in parts:
            if isinstance(part.future, WorkerRestart):
                self._revived(part)
            future, part.future = part.future, None
            if future is None:
                continue
            row = part.decided - 1
            try:
                with self._annotate_errors(part):
                    result = self._wait(part, future)
            except WorkerDied as death:
                self._lose(part, row, death, wait)
            else:
                self._record(part, row, result)

    def _record(self, part: HandlePart, row: int, result: StepResult) -> None:
        rows, columns = part.acting, part.columns[part.acting]
        executed = np.arange(result.reward.shape[1]) < result.steps[:, None]
        self._envs.check("the simulator's reward", np.where(executed, result.reward, 0)[rows], columns)
        part.observation = result.observation
        self._envs.add(columns, result, rows)
        expected = np.flatnonzero(result.terminated | result.truncated)
        if not np.array_equal(result.ended, expected) or not np.isin(expected, rows).all():
            raise UserError(
                f"the simulator says that rows {result.ended.tolist()} ended, its flags say {expected.tolist()}, and "
                f"rows {rows.tolist()} were running; check it with embodied_rl.testing.contract.check_simulator",
                code="simulator-wrong-ends",
            )
        for position, ended in enumerate(result.ended):
            column = int(part.columns[ended])
            self._finished.append((row, column, self._envs.record(column, result, ended)))
            if result.truncated[ended] and not result.terminated[ended]:
                assert result.final_observation is not None
                observation, own = result.final_observation.select([position]), np.array([column])
                self._envs.check_observation(observation, own)
                final = FinalObservation(row, column, observation, self._envs.keys(own), self._queue.read(own))
                self._finals.append(final)
        for writer in self._writers:  # after the checks: a storage cannot undo a write
            writer.write_result(row, torch.from_numpy(columns), result, rows)
        self._advance_episode(part.columns[result.ended], row)

    def _advance_episode(self, columns: Array, row: int) -> None:
        """Park environments after the end of their episode (if `fresh`), or move them to their next episode."""
        self._queue.reset(columns)
        if self._fresh:
            self._envs.active[columns] = False
        else:
            self._envs.advance(columns)
            self._envs.first_row[columns] = row + 1

    def _lose(self, part: HandlePart, row: int, death: WorkerDied, wait: bool = True) -> None:
        columns = part.columns[part.acting]
        for writer in self._writers:
            writer.lose_episodes(row, torch.from_numpy(columns), self._envs.first_row[columns])
        self.lost_episodes += len(columns)
        self._advance_episode(columns, row)
        self._replace(part, death, wait)

    def _replace(self, part: HandlePart, death: WorkerDied, wait: bool = True) -> None:
        self._notes.append(f"{death}\nIts episodes are lost; a new worker takes over.")
        log.warning("%s", self._notes[-1])
        part.future = WorkerRestart(part.handle, self._envs.to_start(part.columns))
        if wait:
            self._revived(part)

    def _revived(self, part: HandlePart) -> None:
        with self.timeline.record(WAIT, len(part.columns)):
            revival, part.future = part.future, None
            assert isinstance(revival, WorkerRestart)
            part.observation = revival.result()
            self.restarts += revival.restarts

    def _evaluate_ends(self, policy: Policy) -> None:
        """Compute the values of truncated episodes' last observations and of the observations after the last row."""
        rollout, most = self.rollout, sum(len(part.columns) for part in self._slices[0])
        for first in range(0, len(self._finals), most):
            finals = self._finals[first : first + most]
            with self.timeline.record(VALUE, len(finals)):
                observation = Observation.concatenate([final.observation for final in finals])
                episode = np.concatenate([final.keys.episode for final in finals])
                decision = np.concatenate([final.keys.decision for final in finals])
                plan = {name: np.concatenate([final.plan[name] for final in finals]) for name in finals[0].plan}
                values = policy.value(observation, NoiseKeys(finals[0].keys.seed, episode, decision), **plan)
            where = [final.row for final in finals], [final.column for final in finals]
            rollout.final_value[where] = values.to(rollout.value)
        for parts in self._slices:
            observation, columns = self._pending_observation(parts)
            if observation is not None:
                with self.timeline.record(VALUE, len(columns)):
                    values = policy.value(observation, self._envs.keys(columns), **self._queue.read(columns))
                rollout.last_value[columns] = values.to(rollout.value)

    def _pending_observation(self, parts: list[HandlePart]) -> tuple[Observation | None, Array]:
        """Return the acting rows of a slice as one observation (None if all are parked), and their columns."""
        for part in parts:
            part.acting = np.flatnonzero(self._envs.active[part.columns])
        observations: list[Observation] = []
        for part in (part for part in parts if len(part.acting)):
            assert part.observation is not None
            everyone = len(part.acting) == len(part.columns)  # then nothing is copied
            observations.append(part.observation if everyone else part.observation.select(part.acting))
        columns = np.concatenate([part.columns[part.acting] for part in parts])
        if not observations:
            return None, columns
        observation = observations[0] if len(observations) == 1 else Observation.concatenate(observations)
        self._envs.check_observation(observation, columns)
        return observation, columns

    @contextmanager
    def _annotate_errors(self, part: HandlePart) -> Iterator[None]:
        """Add the environment and the episode to a `NotFinite` error raised in the `with` block."""
        try:
            yield
        except NotFinite as error:
            column = int(part.columns[error.row])
            raise FloatingPointError(f"{error}: {self._envs.name(column)}") from None

    def _wait(self, part: HandlePart, future: Future) -> Any:
        with self.timeline.record(WAIT, len(part.columns)):
            value = future.result()
        self.timeline.add(part.handle.name, SIMULATE, future.began, future.seconds, len(part.columns))
        return value

    def _wait_for_any(self, futures: Sequence[Future]) -> None:
        with self.timeline.record(WAIT):
            wait_for_any(futures)


def _select_part(state: dict[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
