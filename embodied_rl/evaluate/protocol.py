"""The episodes of an evaluation, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.reports.result import IN_DISTRIBUTION, EpisodeResult
from embodied_rl.rollout import ablation
from embodied_rl.rollout.delay import Delay
from embodied_rl.rollout.episode_sampler import Purpose, choose_tasks, derive_episode_seed, derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.runtime.processes.handle import Handle

Ablation = Literal["none", "image", "instruction"]
TIME_LIMIT = "time limit"
"""Kind of a failure for which the simulator gives no other reason."""


class Results:
    """The results of an evaluation so far.

    Attributes:
        found: episode index → its result; these episodes do not run again.
    """

    def __init__(self) -> None:
        self.found: dict[int, EpisodeResult] = {}

    def add(self, result: EpisodeResult) -> None:
        """Keep the result of one more episode."""
        assert result.index not in self.found, f"episode {result.index} was counted twice"
        self.found[result.index] = result


def enumerate_episodes(
    spec: SimulatorSpec, split: str, episodes: int, task: str | None = None, purpose: Purpose = "report", seed: int = 0
) -> list[Episode]:
    """List exactly `episodes` episodes: families in turn, and the tasks of a family in turn, for equal shares.

    A shorter list is the beginning of a longer one.

    Args:
        spec: of the simulator.
        split: "eval", or a held-out split of the simulator.
        episodes: their number.
        task: only this task, or this family.
        purpose: "select" during training, to choose a checkpoint; "report" for reports; "publish" for figures that are
            published. They never share a seed.
        seed: equal seeds give equal episodes.

    Raises:
        UserError: the split or task is unknown.
    """
    wanted = choose_tasks(spec, task)
    grouped = [[number for number in wanted if spec.tasks[number].family == family] for family in spec.families]
    families = [family for family in grouped if family]
    known = ["train", IN_DISTRIBUTION, *(name for name in spec.splits if name != IN_DISTRIBUTION)]
    if split not in known:
        raise UserError(f"split: unknown split '{split}'.{suggest_name(split, known)}", code="split-unknown")
    conditions = split if split in spec.splits else "train"  # of "eval", unless the simulator has its own
    listed: list[Episode] = []
    for index in range(episodes):
        turn, family = divmod(index, len(families))
        chosen = families[family][turn % len(families[family])]
        drawn = derive_episode_seed(purpose, split, seed, index)
        listed.append(Episode(index=index, task=chosen, seed=drawn, split=conditions))
    return listed


def evaluate_policy(
    actor: DeployedPolicy,
    handles: Sequence[Handle],
    spec: SimulatorSpec,
    episodes: Sequence[Episode],
    seed: int,
    envs_per_handle: int,
    executed: int | None,
    ablate: Ablation = "none",
    purpose: Purpose = "report",
    kept: Results | None = None,
    batch: int | None = None,
    delay: Delay | None = None,
    observers: Sequence[Observer] = (),
) -> list[EpisodeResult]:
    """Run each episode once, without exploration, and return the results in order; see `EpisodeRunner`.

    Args:
        actor: the policy; it never gets privileged state.
        handles: one per slice, each with `envs_per_handle` environments.
        spec: of the simulator.
        episodes: with different indices.
        seed: of the policy's noise, together with the purpose, the episode's index and the decision's number.
        envs_per_handle, batch, delay: see `EpisodeRunner`.
        executed: number of actions of a chunk to execute; None executes all that the actor returns.
        ablate: "image" blanks all images; "instruction" shows each row the instruction of another task, while the
            simulator keeps the goal.
        purpose: of the episodes; no two purposes share noise.
        kept: receives each result when its episode ends; episodes with results in it do not run.
        observers: further ones of the episodes.

    Raises:
        UserError: indices repeat, or the policy or simulator gives NaN; the message names the episode.
        WorkerDied: a worker died more often than its handle restarts it.
    """
    if ablate == "image":
        actor = ablation.AblatedPolicy(actor, ablation.blank_images)
    elif ablate == "instruction":
        own = ablation.read_instructions(handles[0], episodes, envs_per_handle)
        shown = ablation.exchange_instructions(episodes, own, seed)
        actor = ablation.AblatedPolicy(actor, partial(ablation.replace_instructions, shown))
    kept = kept or Results()
    missing = [episode for episode in episodes if episode.index not in kept.found]
    runner = EpisodeRunner(actor, spec, derive_noise_seed(purpose, seed), executed, batch=batch, delay=delay)
    runner.run(handles, envs_per_handle, missing, ResultCounter(kept), *observers)
    return [kept.found[episode.index] for episode in episodes]


class ResultCounter(Observer):
    """An observer that computes the results of episodes."""

    def __init__(self, kept: Results) -> None:
        self.results = kept
        self._tallies: dict[int, _Tally] = {}

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        self._tallies |= {each.episode.index: _Tally() for each in started}

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            tally, row = self._tallies[each.episode.index], each.row
            valid = int(result.steps[row])
            success = result.success[row, :valid]
            if tally.to_success is None and success.any():
                tally.to_success = sum(map(len, tally.executed)) + int(np.argmax(success)) + 1
            if valid:
                tally.success_at_end = bool(success[-1])
            tally.reward += float(np.sum(result.reward[row, :valid], dtype=np.float64))
            tally.executed.append(np.array(result.executed[row, :valid], np.float64))
            if result.terminated[row] or result.truncated[row]:
                tally.failure = name_failure(result, row)

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        for each in ended:
            episode = each.episode
            tally = self._tallies.pop(episode.index)
            self.results.add(
                EpisodeResult(
                    index=episode.index,
                    task=episode.task,
                    seed=episode.seed,
                    split=episode.split,
                    success=tally.to_success is not None,
                    success_at_end=tally.success_at_end,
                    steps=each.steps,
                    reward=tally.reward,
                    smoothness=measure_smoothness(np.concatenate(tally.executed)),
                    initial_state=episode.initial_state,
                    failure=tally.failure if tally.to_success is None else "",
                    steps_to_success=tally.to_success,
                )
            )


@dataclass
class _Tally:
    """The running totals of an episode; `executed` has the actions [steps, A] of each chunk."""

    reward: float = 0.0
    to_success: int | None = None
    success_at_end: bool = False
    failure: str | None = None
    executed: list[Array] = field(default_factory=list[Array])


def name_failure(result: StepResult, row: int) -> str | None:
    """Return the simulator's text on why the episode that ended in `row` failed; else "time limit"; None if unknown."""
    text = "" if result.failures is None else result.failures[int(np.flatnonzero(result.ended == row)[0])]
    return text or (None if result.terminated[row] else TIME_LIMIT)


def measure_smoothness(actions: Array) -> float:
    """Compute the mean of (aₜ₊₁ - 2 aₜ + aₜ₋₁)² over steps and dimensions of actions [steps, A]; 0 for < 3 steps."""
    if len(actions) < 3:
        return 0.0
    return float(np.mean(np.square(np.diff(actions, n=2, axis=0))))
