"""Running given episodes with a policy: one loop for evaluation, collecting, filming and demonstrations.

The runner decides and steps; observers keep what they want to know. All that a result depends on follows from the
episode: its seed in the simulator, its index in the policy's noise. So results do not depend on how many simulators
there are, or on which of them ran what; but for rounding, because a network computes a small batch by other operations
than a large one.

Shapes: n environments of one handle, m ≤ n rows that decide, h actions of a chunk, A action dimensions.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, SimulatorSpec, StepResult
from embodied_rl.processes.handle import Future, Handle, WorkerDied, respawn

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunningEpisode:
    """An episode under way.

    Attributes:
        row: its environment, among those of its simulator.
        episode: what runs there.
        decisions: chunks that the policy has chosen for it.
        steps: control steps that it has taken.
        pending: float32 [≤ h, A], chosen actions that have not been handed to the simulator yet.
    """

    row: int
    episode: Episode
    decisions: int = 0
    steps: int = 0
    pending: Array | None = None


class Observer:
    """What the runner tells of the episodes of one simulator; a subclass overrides what it wants to know.

    Observations and results hold all n rows, and later calls of the simulator may overwrite them: observers copy what
    they keep.
    """

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        """Episodes began, with their first observation. They begin anew where a simulator's worker died."""

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        """The simulator executed actions for these episodes; `before` is what was seen before them."""

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        """Episodes ended in the step that `on_step` told of last."""


@dataclass(frozen=True)
class EpisodeRunner:
    """A policy, and how it runs episodes; without exploration.

    Attributes:
        policy: it never gets privileged state.
        spec: of the simulators.
        seed: of the policy's noise, together with an episode's index and the decision's number.
        executed: execute only so many actions of a chunk; None executes all that the policy returns.
        stepwise: hand a chunk to the simulator one control step at a time, so that observers see each of them. A
            simulator that waits before each call, for the delay of a slow policy, therefore waits more often.
        longest: control steps after which an episode is cut, or None. The simulator is not told, so that such an
            environment runs no second episode in the same `run`.
    """

    policy: DeployedPolicy
    spec: SimulatorSpec
    seed: int
    executed: int | None = None
    stepwise: bool = False
    longest: int | None = None

    @torch.no_grad()
    def run(
        self, handles: Sequence[Handle], envs_per_handle: int, episodes: Sequence[Episode], observer: Observer
    ) -> None:
        """Run each episode once; while one simulator's rows are inferred, the others simulate.

        Episodes start in the order given, in rows from 0 on; an environment that finds no next episode is parked. A
        simulator whose worker dies is restarted, and its unfinished episodes start again.

        Args:
            handles: each with `envs_per_handle` environments.
            envs_per_handle: n.
            episodes: with indices that differ.
            observer: is told what happens.

        Raises:
            UserError: indices that repeat, or NaN from the policy or the simulator, saying in which episode.
            WorkerDied: a worker died more often than its handle restarts it.
        """
        if len({episode.index for episode in episodes}) != len(episodes):
            raise UserError("Two of the episodes to run share an index; noise and results are keyed by it.")
        share = min(envs_per_handle, -(-len(episodes) // len(handles)))
        assert self.longest is None or share * len(handles) >= len(episodes), "a cut environment runs no second episode"
        queue = deque(episodes)
        slices = [_Slice(self, handle, envs_per_handle, share, queue, observer) for handle in handles]
        while any(part.busy for part in slices):
            for part in slices:
                if part.busy:
                    part.advance()

    def decide(self, observation: Observation, running: Sequence[RunningEpisode]) -> None:
        """Choose a chunk for each of m episodes, into `pending`; `observation` holds their m rows.

        Raises:
            UserError: the simulator's state or the policy's actions are not finite, saying in which episode.
        """
        keys = NoiseKeys(
            self.seed,
            episode=np.array([each.episode.index for each in running], np.int64),
            decision=np.array([each.decisions for each in running], np.int64),
        )
        self._check(observation.state, running, "The simulator's state has", "The policy is not to blame")
        actions = self.policy.infer(observation.without_privileged(), keys)[:, : self.executed]
        self._check(actions, running, "The policy chose", "Its checkpoint is of no use")
        for each, chunk in zip(running, actions, strict=True):
            each.pending, each.decisions = chunk, each.decisions + 1

    def _check(self, values: Array, running: Sequence[RunningEpisode], who: str, meaning: str) -> None:
        """Raise `UserError` where `values` [m, ...], the rows of `running`, are not finite."""
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not finite.all():
            bad = running[int(np.argmin(finite))]
            name = self.spec.tasks[bad.episode.task].name
            where = f"episode {bad.episode.index} ({name}, seed {bad.episode.seed}), decision {bad.decisions}"
            raise UserError(f"{who} NaN or infinity in {where}. {meaning}.")


class _Slice:
    """One simulator: what runs in each of its environments, what runs next there, and the call under way."""

    def __init__(
        self, runner: EpisodeRunner, handle: Handle, envs: int, share: int, queue: deque[Episode], observer: Observer
    ) -> None:
        self._runner, self._handle, self._queue, self._observer = runner, handle, queue, observer
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
        """Wait for the simulator, tell what it did, and send it the next actions."""
        assert self._call is not None, "a busy slice has a call under way"
        try:
            self._receive(self._call.result())
            if self.busy:
                self._call = self._step()
        except WorkerDied as death:
            log.warning("%s\nIts episodes start again in a new worker.", death)
            respawn(self._handle)
            self._call = self._reset()
        except NotFinite as error:
            bad = self._running[error.row]
            what = "" if bad is None else f" in episode {bad.episode.index} (seed {bad.episode.seed})"
            raise UserError(f"{error}{what}. The simulator is to blame, or actions that it cannot take.") from None

    def _reset(self) -> Future:
        self._observation = None
        self._running = [None if each is None else RunningEpisode(each.row, each.episode) for each in self._running]
        return self._handle.submit("reset", [None if each is None else each.episode for each in self._running])

    def _receive(self, answer: Observation | StepResult) -> None:
        if isinstance(answer, StepResult):
            started = self._count(answer)
            self._observation = answer.observation
        else:
            started, self._observation = self._active(), answer
        if started:
            self._observer.on_start(started, self._observation)

    def _count(self, result: StepResult) -> list[RunningEpisode]:
        """Tell what was executed and which episodes ended; returns those that began in their place."""
        assert self._observation is not None, "a step follows an observation"
        running = self._active()
        for each in running:
            each.steps += int(result.steps[each.row])
        self._observer.on_step(running, self._observation, result)
        over, longest = result.terminated | result.truncated, self._runner.longest
        ended = [each for each in running if over[each.row] or (longest is not None and each.steps >= longest)]
        self._observer.on_end(ended)
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
        size = 1 if self._runner.stepwise else len(chunks[0])
        actions = np.zeros((len(self._running), size, chunks[0].shape[1]), np.float32)
        for each, chunk in zip(running, chunks, strict=True):
            actions[each.row] = chunk[:size]
            each.pending = chunk[size:] if len(chunk) > size else None
            if self._next[each.row] is None and self._queue:
                self._next[each.row] = self._queue.popleft()
        return self._handle.submit("step", actions, list(self._next))

    def _active(self) -> list[RunningEpisode]:
        return [each for each in self._running if each is not None]


def split_into_batches(episodes: Sequence[Episode], size: int) -> Iterator[Sequence[Episode]]:
    """At most `size` episodes at a time, for those that have to start together."""
    for start in range(0, len(episodes), size):
        yield episodes[start : start + size]
