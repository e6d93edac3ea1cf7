"""Which episodes an evaluation runs, and running each of them exactly once.

Everything a result depends on follows from the episode: its seed in the simulator, its index in the policy's noise. So
the results do not depend on how many simulators there are, or on which of them ran what; but for rounding, because a
network computes a small batch by other operations than a large one.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from embodied_rl.config.freeze import did_you_mean
from embodied_rl.evaluate.ablation import foreign_instructions
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, SimulatorSpec, StepResult
from embodied_rl.processes.handle import Future, Handle, WorkerDied, respawn, revive
from embodied_rl.rollout.episodes import Purpose, episode_seed

log = logging.getLogger(__name__)

Ablation = Literal["none", "image", "instruction"]
IN_DISTRIBUTION = "eval"
"""The split with the conditions of training, on seeds that training never sees."""


@dataclass(frozen=True)
class EpisodeResult:
    """How one episode went.

    Attributes:
        success: whether the goal held after any control step; success_at_end: after the last one.
        steps: control steps.
        reward: their sum, undiscounted.
        smoothness: mean square of the second difference of the executed actions, in the simulator's units; 0 is smooth.
    """

    index: int
    task: int
    seed: int
    split: str
    success: bool
    success_at_end: bool
    steps: int
    reward: float
    smoothness: float
    initial_state: int | None = None


def enumerate_episodes(
    spec: SimulatorSpec, split: str, episodes: int, task: str | None = None, purpose: Purpose = "report", seed: int = 0
) -> list[Episode]:
    """Exactly `episodes` episodes: families in turn, and the tasks of a family in turn, so that all shares are equal.

    Args:
        spec: of the simulator.
        split: "eval", or a held-out split of the simulator.
        episodes: how many; a shorter list is the beginning of a longer one.
        task: only this task, or this family.
        purpose: "select" while training, to choose a checkpoint; "report" for figures. Their seeds never meet.
        seed: equal seeds give equal episodes.

    Raises:
        UserError: unknown split or task.
    """
    families = _families(spec, task)
    conditions = _conditions(spec, split)
    listed: list[Episode] = []
    for index in range(episodes):
        turn, family = divmod(index, len(families))
        chosen = families[family][turn % len(families[family])]
        drawn = episode_seed(purpose, split, seed, index)
        listed.append(Episode(index=index, task=chosen, seed=drawn, split=conditions))
    return listed


def evaluate(
    actor: Actor,
    handles: Sequence[Handle],
    spec: SimulatorSpec,
    episodes: Sequence[Episode],
    seed: int,
    envs_per_handle: int,
    executed: int | None,
    ablate: Ablation = "none",
) -> list[EpisodeResult]:
    """Run each episode once, without exploration; while one simulator's rows are inferred, the others simulate.

    A simulator whose worker dies is restarted, and its unfinished episodes start again.

    Args:
        actor: the policy; it never gets privileged state.
        handles: one per slice, each with `envs_per_handle` environments.
        spec: of the simulator.
        episodes: with indices that differ.
        seed: of the policy's noise, together with an episode's index and the decision's number.
        executed: execute only so many actions of a chunk; None executes all that the actor returns.
        ablate: "image" blanks all images; "instruction" shows each row the instruction of an episode of another task,
            while the simulator keeps its own goal.

    Returns:
        One result per episode, in the order of `episodes`.

    Raises:
        UserError: indices that repeat, or NaN from the policy or the simulator, saying in which episode.
        WorkerDied: a worker died more often than its handle restarts it.
    """
    if len({episode.index for episode in episodes}) != len(episodes):
        raise UserError("Two episodes of an evaluation share an index; noise and results are keyed by it.")
    instructions = None
    if ablate == "instruction":
        own = _instructions(handles, episodes, envs_per_handle)
        instructions = foreign_instructions(episodes, own, seed)
    chooser = _Chooser(actor, spec, seed, executed, ablate == "image", instructions)
    queue = deque(episodes)
    share = min(envs_per_handle, -(-len(episodes) // len(handles)))
    slices = [_Slice(handle, envs_per_handle, share, queue) for handle in handles]
    results: dict[int, EpisodeResult] = {}
    with torch.no_grad():
        while any(part.busy for part in slices):
            for part in slices:
                if part.busy:
                    for result in part.advance(chooser):
                        assert result.index not in results, f"episode {result.index} was counted twice"
                        results[result.index] = result
    return [results[episode.index] for episode in episodes]


class _Chooser:
    """The policy as a function of an observation and who it belongs to; blanks or swaps inputs where asked."""

    def __init__(
        self,
        actor: Actor,
        spec: SimulatorSpec,
        seed: int,
        executed: int | None,
        blank_images: bool,
        instructions: dict[int, str] | None,
    ) -> None:
        self._actor, self._spec, self._seed, self._executed = actor, spec, seed, executed
        self._blank_images, self._instructions = blank_images, instructions

    def __call__(self, observation: Observation, running: Sequence["_Running"]) -> Array:
        """float32 [n, Hx, A] for the n rows of `observation`, which are those of `running`."""
        index = np.array([row.episode.index for row in running], np.int64)
        decision = np.array([row.decisions for row in running], np.int64)
        shown = self._shown(observation.without_privileged(), index)
        self._check(shown.state, running, "The simulator's state has", "The policy is not to blame")
        actions = self._actor.act(shown, NoiseKeys(self._seed, index, decision), explore=False).actions
        actions = actions[:, : self._executed]
        self._check(actions, running, "The policy chose", "Its checkpoint is of no use")
        return actions

    def _check(self, values: Array, running: Sequence["_Running"], who: str, meaning: str) -> None:
        """Raise `UserError` where `values` [n, ...], the rows of `running`, are not finite."""
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not finite.all():
            bad = running[int(np.argmin(finite))]
            name = self._spec.tasks[bad.episode.task].name
            where = f"episode {bad.episode.index} ({name}, seed {bad.episode.seed}), decision {bad.decisions}"
            raise UserError(f"{who} NaN or infinity in {where}. {meaning}.")

    def _shown(self, observation: Observation, index: Array) -> Observation:
        if self._blank_images:
            blank = {name: np.zeros_like(image) for name, image in observation.images.items()}
            observation = replace(observation, images=blank)
        if self._instructions is not None:
            observation = replace(observation, instruction=tuple(self._instructions[int(i)] for i in index))
        return observation


class _Running:
    """One episode under way."""

    def __init__(self, episode: Episode) -> None:
        self.episode, self.decisions, self.steps, self.reward = episode, 0, 0, 0.0
        self.success = self.success_at_end = False
        self._executed: list[Array] = []

    def add(self, result: StepResult, row: int) -> None:
        """Count the steps of one chunk that were really executed."""
        valid = int(result.steps[row])
        self.decisions += 1
        self.steps += valid
        self.reward += float(np.sum(result.reward[row, :valid], dtype=np.float64))
        if valid:
            self.success |= bool(result.success[row, :valid].any())
            self.success_at_end = bool(result.success[row, valid - 1])
        self._executed.append(np.array(result.executed[row, :valid], np.float64))

    def finish(self) -> EpisodeResult:
        return EpisodeResult(
            index=self.episode.index,
            task=self.episode.task,
            seed=self.episode.seed,
            split=self.episode.split,
            success=self.success,
            success_at_end=self.success_at_end,
            steps=self.steps,
            reward=self.reward,
            smoothness=smoothness(np.concatenate(self._executed)),
            initial_state=self.episode.initial_state,
        )


class _Slice:
    """One simulator: what runs in each of its environments, what runs next there, and the call under way.

    An environment that finds no next episode is parked, and its row is never inferred again.
    """

    def __init__(self, handle: Handle, envs: int, share: int, queue: deque[Episode]) -> None:
        self._handle, self._queue = handle, queue
        self._running = [_Running(queue.popleft()) if row < share and queue else None for row in range(envs)]
        self._next: list[Episode | None] = [None] * envs
        self._observation: Observation | None = None
        self._call = self._reset() if self.busy else None

    @property
    def busy(self) -> bool:
        return any(row is not None for row in self._running)

    def advance(self, chooser: _Chooser) -> list[EpisodeResult]:
        """Wait for the simulator, count what it did, and send it the next actions. Returns the episodes that ended."""
        assert self._call is not None, "a busy slice has a call under way"
        finished: list[EpisodeResult] = []
        try:
            answer = self._call.result()
            if isinstance(answer, StepResult):
                finished = self._count(answer)
                answer = answer.observation
            if self.busy:
                self._call = self._step(answer, chooser)
        except WorkerDied as death:
            log.warning("%s\nIts episodes start again in a new worker.", death)
            respawn(self._handle)
            self._call = self._reset()
        except NotFinite as error:
            running = self._running[error.row]
            what = "" if running is None else f" in episode {running.episode.index} (seed {running.episode.seed})"
            raise UserError(f"{error}{what}. The simulator is to blame, or actions that it cannot take.") from None
        return finished

    def _reset(self) -> Future:
        self._running = [None if row is None else _Running(row.episode) for row in self._running]
        return self._handle.submit("reset", [None if row is None else row.episode for row in self._running])

    def _step(self, observation: Observation, chooser: _Chooser) -> Future:
        active = np.array([row for row, running in enumerate(self._running) if running is not None], np.int64)
        chosen = chooser(observation.select(active), [row for row in self._running if row is not None])
        actions = np.zeros((len(self._running), *chosen.shape[1:]), np.float32)
        actions[active] = chosen
        for row in active:
            if self._next[row] is None and self._queue:
                self._next[row] = self._queue.popleft()
        return self._handle.submit("step", actions, list(self._next))

    def _count(self, result: StepResult) -> list[EpisodeResult]:
        finished: list[EpisodeResult] = []
        for row, running in enumerate(self._running):
            if running is None:
                continue
            running.add(result, row)
            if result.terminated[row] or result.truncated[row]:
                finished.append(running.finish())
                following, self._next[row] = self._next[row], None
                self._running[row] = None if following is None else _Running(following)
        return finished


def smoothness(actions: Array) -> float:
    """Mean over steps and dimensions of (aₜ₊₁ - 2 aₜ + aₜ₋₁)², for actions [steps, A]; 0 below three steps."""
    if len(actions) < 3:
        return 0.0
    return float(np.mean(np.square(np.diff(actions, n=2, axis=0))))


def chosen_tasks(spec: SimulatorSpec, task: str | None) -> list[int]:
    """Numbers of the tasks of this name or family; of all for null.

    Raises:
        UserError: unknown task.
    """
    if task is not None and task not in (known := [*spec.families, *(item.name for item in spec.tasks)]):
        raise UserError(f"task: unknown task '{task}'.{did_you_mean(task, known)}")
    return [number for number, item in enumerate(spec.tasks) if task in (None, item.name, item.family)]


def _families(spec: SimulatorSpec, task: str | None) -> list[list[int]]:
    """Task numbers of each family, restricted to one task or family where asked."""
    wanted = chosen_tasks(spec, task)
    grouped = [[number for number in wanted if spec.tasks[number].family == family] for family in spec.families]
    return [family for family in grouped if family]


def _conditions(spec: SimulatorSpec, split: str) -> str:
    """The simulator's word for a split: it draws "eval" as it draws "train", unless it has an "eval" of its own."""
    known = ["train", IN_DISTRIBUTION, *(name for name in spec.splits if name != IN_DISTRIBUTION)]
    if split not in known:
        raise UserError(f"split: unknown split '{split}'.{did_you_mean(split, known)}")
    return split if split in spec.splits else "train"


def _instructions(handles: Sequence[Handle], episodes: Sequence[Episode], envs: int) -> dict[int, str]:
    """Episode index → what the simulator asks for in it, known only once it starts."""
    found: dict[int, str] = {}
    handle = handles[0]
    for start in range(0, len(episodes), envs):
        batch = episodes[start : start + envs]
        padded = [*batch, *[None] * (envs - len(batch))]
        try:
            observation: Observation = handle.submit("reset", padded).result()
        except WorkerDied:
            observation, _ = revive(handle, padded)
        found.update({episode.index: observation.instruction[row] for row, episode in enumerate(batch)})
    return found
