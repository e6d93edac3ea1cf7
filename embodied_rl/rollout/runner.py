"""Runner of given episodes with a policy, for evaluation, data collection, filming and demonstrations.

The runner decides and steps; observers record the data they need. A result depends only on the episode: on its seed in
the simulator and on its index in the policy's noise. So results do not depend on the number of simulators, or on which
simulator ran which episode, except for rounding: a network computes a small batch by other operations than a large
one.

Shapes: n environments of one handle, m ≤ n rows that decide, h actions of a chunk, A action dimensions.
"""

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from embodied_rl.actors.imitation import check_history
from embodied_rl.deployment.execution.messages import ChunkRequest, RobotCommand
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.delay import ContinuingPolicy, Delay, DelayedEpisode, infer_under_delay, stack_actions
from embodied_rl.runtime.processes.handle import Future, Handle, WorkerDied, restart_worker

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunningEpisode:
    """An episode that is running in environment `row` of its simulator.

    Attributes:
        decisions: number of chunks that the policy has chosen for it.
        steps: number of control steps that it has taken.
        pending: float32 [≤ h, A], chosen actions that have not been handed to the simulator yet.
        delayed: its executor, under an inference delay.
        commands: the last commands, one for each control step until the next decision, under an inference delay.
        earlier: the observations of the last control steps before the current one, of one row each, oldest first; as
            many as the policy reads.
    """

    row: int
    episode: Episode
    decisions: int = 0
    steps: int = 0
    pending: Array | None = None
    delayed: DelayedEpisode | None = None
    commands: Sequence[RobotCommand] = ()
    earlier: tuple[Observation, ...] = ()


class Observer:
    """Receives the events of one simulator's episodes; a subclass overrides the methods it needs.

    Observations and results hold all n rows, and later calls of the simulator may overwrite them: observers copy what
    they keep.
    """

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        """Handle episodes that began, with their first observation. They begin again if a simulator's worker died."""

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        """Handle a step of the simulator for these episodes; `before` is the observation before the step."""

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        """Handle episodes that ended in the step of the last call of `on_step`."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Runs episodes with a policy, without exploration.

    Attributes:
        policy: never receives privileged state. One that reads several observations (`Actor.observations`) gets those
            of the last control steps; the simulator then shows these, too, so that it executes a chunk in parts.
        spec: of the simulators.
        seed: of the policy's noise, with an episode's index and the decision's number.
        executed: number of actions of a chunk to execute; None executes all that the policy returns.
        stepwise: hand a chunk to the simulator one control step at a time, so that observers see each of them. A
            simulator that waits before each call, for the delay of a slow policy, therefore waits more often.
        longest: control steps after which an episode is cut, or None. The simulator does not end it, so such an
            environment runs no second episode in the same `run`.
        batch: number of rows to pad each inference to, at least the environments of a simulator; the actions of padded
            rows are not used. See `choose_batch`. None infers only the rows that decide.
        delay: inference delay; it needs a `ContinuingPolicy` and ignores `executed`. None: actions begin at once.
    """

    policy: DeployedPolicy
    spec: SimulatorSpec
    seed: int
    executed: int | None = None
    stepwise: bool = False
    longest: int | None = None
    batch: int | None = None
    delay: Delay | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` if a policy that reads several observations is to act under a delay."""
        if self.delay is not None:
            check_history(self.policy, "a policy under an inference delay")

    @torch.no_grad()
    def run(
        self, handles: Sequence[Handle], envs_per_handle: int, episodes: Sequence[Episode], *observers: Observer
    ) -> None:
        """Run each episode once; while the policy infers for one simulator, the others simulate.

        Episodes, whose indices differ, start in the order given, in rows from 0 on; an environment that finds no next
        episode is parked. A simulator whose worker dies is restarted, and its unfinished episodes start again.

        Raises:
            UserError: two episodes share an index, or the policy or the simulator returned NaN; the message says where.
            WorkerDied: a worker died more often than its handle restarts it.
        """
        if len({episode.index for episode in episodes}) != len(episodes):
            message = "Two of the episodes to run share an index; noise and results are keyed by it."
            raise UserError(message, code="episode-index-twice")
        share = min(envs_per_handle, -(-len(episodes) // len(handles)))
        assert self.longest is None or share * len(handles) >= len(episodes), "a cut environment runs no second episode"
        queue = deque(episodes)
        slices = [_Slice(self, handle, envs_per_handle, share, queue, observers) for handle in handles]
        while any(part.busy for part in slices):
            for part in slices:
                if part.busy:
                    part.advance()

    def decide(self, observation: Observation, running: Sequence[RunningEpisode]) -> None:
        """Choose a chunk for each of m episodes and store it in `pending`; `observation` holds their m rows.

        Raises:
            UserError: the simulator's state or the policy's actions are not finite; the message names the episode.
        """
        self._check(observation.state, running, "The simulator's state has", "The policy is not to blame")
        rows = [*range(len(running)), *[0] * ((self.batch or 0) - len(running))]
        keys = NoiseKeys(
            self.seed,
            episode=np.array([running[row].episode.index for row in rows], np.int64),
            decision=np.array([running[row].decisions for row in rows], np.int64),
        )
        shown = observation.without_privileged()
        shown = shown if len(rows) == len(running) else shown.select(rows)
        if self.delay is not None:
            return self._decide_under_delay(self.delay, shown, keys, running, rows)
        options = {"earlier": self._look_back(shown, running, rows)} if self.remembered else {}
        actions = self.policy.infer(shown, keys, **options)[: len(running), : self.executed]
        self._check(actions, running, "The policy chose", "Its checkpoint is of no use")
        for each, chunk in zip(running, actions, strict=True):
            each.pending, each.decisions = chunk, each.decisions + 1

    @property
    def remembered(self) -> int:
        """Return how many earlier observations the policy reads."""
        return getattr(self.policy, "observations", 1) - 1

    def _look_back(
        self, shown: Observation, running: Sequence[RunningEpisode], rows: Sequence[int]
    ) -> tuple[Observation, ...]:
        """Return the earlier observations of all rows, oldest first; where an episode has fewer, its oldest is used."""
        seen = [[*running[row].earlier, shown.select([place])] for place, row in enumerate(rows)]
        full = [[each[0]] * (self.remembered + 1 - len(each)) + each for each in seen]
        return tuple(Observation.concatenate([each[step] for each in full]) for step in range(self.remembered))

    def _decide_under_delay(
        self, delay: Delay, shown: Observation, keys: NoiseKeys, running: Sequence[RunningEpisode], rows: Sequence[int]
    ) -> None:
        """Store in `pending` the actions of m episodes until their next decision, under an inference delay."""
        episodes, requests = list[DelayedEpisode](), list[ChunkRequest]()
        for each in running:
            each.delayed = each.delayed or DelayedEpisode.begin(delay, self.spec)
            episodes.append(each.delayed)
            requests.append(each.delayed.ask())
        asked = [requests[row] for row in rows]
        actions = infer_under_delay(cast(ContinuingPolicy, self.policy), shown, keys, asked, delay)
        self._check(actions[: len(running)], running, "The policy chose", "Its checkpoint is of no use")
        for row, each in enumerate(running):
            each.commands = episodes[row].execute(requests[row], actions[row])
            each.pending, each.decisions = stack_actions(each.commands), each.decisions + 1

    def _check(self, values: Array, running: Sequence[RunningEpisode], who: str, meaning: str) -> None:
        """Raise `UserError` if `values` [m, ...], the rows of `running`, are not finite."""
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not finite.all():
            bad = running[int(np.argmin(finite))]
            name = self.spec.tasks[bad.episode.task].name
            where = f"episode {bad.episode.index} ({name}, seed {bad.episode.seed}), decision {bad.decisions}"
            raise UserError(f"{who} NaN or infinity in {where}. {meaning}.", code="not-finite")


class _Slice:
    """One simulator: the current and the next episode of each of its environments, and the pending call."""

    def __init__(
        self,
        runner: EpisodeRunner,
        handle: Handle,
        envs: int,
        share: int,
        queue: deque[Episode],
        observers: Sequence[Observer],
    ) -> None:
        self._runner, self._handle, self._queue, self._observers = runner, handle, queue, observers
        first = [queue.popleft() for _ in range(min(share, len(queue)))]
        self._running: list[RunningEpisode | None] = [None] * envs
        self._running[: len(first)] = [RunningEpisode(row, episode) for row, episode in enumerate(first)]
        self._next: list[Episode | None] = [None] * envs
        self._observation: Observation | None = None
        self._call = self._reset() if self.busy else None

    @property
    def busy(self) -> bool:
        return any(each is not None for each in self._running)

    def advance(self) -> None:
        """Wait for the simulator, report its result to the observers, and send it the next actions."""
        assert self._call is not None, "a busy slice has a call under way"
        try:
            answer = self._call.result()
            started = self._finish_step(answer) if isinstance(answer, StepResult) else self._active()
            observation: Observation = answer.observation if isinstance(answer, StepResult) else answer
            self._observation = observation
            if started:
                for observer in self._observers:
                    observer.on_start(started, observation)
            if self.busy:
                self._call = self._step()
        except WorkerDied as death:
            log.warning("%s\nIts episodes start again in a new worker.", death)
            restart_worker(self._handle)
            self._call = self._reset()
        except NotFinite as error:
            bad = self._running[error.row]
            what = "" if bad is None else f" in episode {bad.episode.index} (seed {bad.episode.seed})"
            message = f"{error}{what}. The simulator is to blame, or actions that it cannot take."
            raise UserError(message, code="not-finite") from None

    def _reset(self) -> Future:
        self._observation = None
        self._running = [None if each is None else RunningEpisode(each.row, each.episode) for each in self._running]
        return self._handle.submit("reset", [None if each is None else each.episode for each in self._running])

    def _finish_step(self, result: StepResult) -> list[RunningEpisode]:
        """Report executed steps and ended episodes to the observers; return the episodes that began in their place."""
        assert self._observation is not None, "a step follows an observation"
        running = self._active()
        for each in running:
            each.steps += int(result.steps[each.row])
            if kept := self._runner.remembered:
                shown = self._observation.without_privileged().select([each.row])
                each.earlier = (*each.earlier, shown)[-kept:]
        for observer in self._observers:
            observer.on_step(running, self._observation, result)
        over, longest = result.terminated | result.truncated, self._runner.longest
        ended = [each for each in running if over[each.row] or (longest is not None and each.steps >= longest)]
        for observer in self._observers:
            observer.on_end(ended)
        for row in (each.row for each in ended):
            following, self._next[row] = self._next[row], None
            self._running[row] = None if following is None else RunningEpisode(row, following)
        return [started for each in ended if (started := self._running[each.row]) is not None]

    def _step(self) -> Future:
        assert self._observation is not None, "a decision follows an observation"
        running = self._active()
        if deciding := [each for each in running if each.pending is None]:
            self._runner.decide(self._observation.select([each.row for each in deciding]), deciding)
        chunks = [each.pending for each in running if each.pending is not None]
        size = 1 if self._runner.stepwise else max(min(map(len, chunks)) - self._runner.remembered, 1)
        actions = np.zeros((len(self._running), size, chunks[0].shape[1]), np.float32)
        for each, chunk in zip(running, chunks, strict=True):
            actions[each.row] = chunk[:size]
            each.pending = chunk[size:] if len(chunk) > size else None
            if self._next[each.row] is None and self._queue:
                self._next[each.row] = self._queue.popleft()
        return self._handle.submit("step", actions, list(self._next))

    def _active(self) -> list[RunningEpisode]:
        return [each for each in self._running if each is not None]


def choose_batch(envs: int) -> int:
    """Return the number of rows that a policy infers at once: a multiple of 4, or 1.

    Matrix libraries compute the last rows of other numbers by other operations, so a row's bits would depend on its
    place, which depends on the episodes before it.
    """
    return envs if envs == 1 else 4 * math.ceil(envs / 4)


def split_into_batches(episodes: Sequence[Episode], size: int) -> Iterator[Sequence[Episode]]:
    """Yield at most `size` episodes at a time, for simulators whose episodes start together."""
    for start in range(0, len(episodes), size):
        yield episodes[start : start + size]
