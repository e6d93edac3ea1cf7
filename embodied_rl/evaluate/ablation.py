"""Policies that are shown black images or wrong instructions, to see whether they look and listen."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl.processes.handle import Handle, WorkerDied, revive
from embodied_rl.rollout.runner import split_into_batches


@dataclass(frozen=True)
class AblatedPolicy:
    """A policy that is shown what `alter` makes of an observation."""

    policy: DeployedPolicy
    alter: Callable[[Observation, NoiseKeys], Observation]

    def infer(self, observation: Observation, keys: NoiseKeys) -> np.ndarray:
        """See `DeployedPolicy`."""
        return self.policy.infer(self.alter(observation, keys), keys)


def blank_images(observation: Observation, keys: NoiseKeys) -> Observation:
    """The observation with black images."""
    return replace(observation, images={name: np.zeros_like(image) for name, image in observation.images.items()})


def replace_instructions(shown: Mapping[int, str], observation: Observation, keys: NoiseKeys) -> Observation:
    """The observation with the instructions of `shown`, by the episode's index."""
    return replace(observation, instruction=tuple(shown[int(index)] for index in keys.episode))


def read_instructions(handle: Handle, episodes: Sequence[Episode], envs: int) -> dict[int, str]:
    """Episode index → what the simulator asks for in it, known only once it starts."""
    found: dict[int, str] = {}
    for batch in split_into_batches(episodes, envs):
        padded = [*batch, *[None] * (envs - len(batch))]
        try:
            observation: Observation = handle.submit("reset", padded).result()
        except WorkerDied:
            observation, _ = revive(handle, padded)
        found.update({episode.index: observation.instruction[row] for row, episode in enumerate(batch)})
    return found


def exchange_instructions(episodes: Sequence[Episode], own: Mapping[int, str], seed: int) -> dict[int, str]:
    """Give each episode the instruction of another one, of another task; every instruction is used once.

    Args:
        episodes: the list that is evaluated.
        own: episode index → its own instruction.
        seed: fixes who gets which.

    Returns:
        Episode index → the instruction to show.

    Raises:
        UserError: one task has more than half of the episodes, so that there are too few others.
    """
    tasks = [episode.task for episode in episodes]
    task, most = Counter(tasks).most_common(1)[0]
    if 2 * most > len(tasks):
        message = f"ablate=instruction needs instructions of other tasks, but task {task} has {most} of {len(tasks)}"
        raise UserError(f"{message} episodes. Evaluate all tasks, without task=….")
    source = np.random.default_rng(seed).permutation(len(tasks))
    for row in range(len(tasks)):
        if tasks[source[row]] == tasks[row]:
            other = _partner(row, source, tasks)
            source[[row, other]] = source[[other, row]]
    return {episode.index: own[episodes[source[row]].index] for row, episode in enumerate(episodes)}


def _partner(row: int, source: np.ndarray, tasks: Sequence[int]) -> int:
    """Whom `row` can swap with, so that both end up with another task.

    It exists: at most twice `most` - 1 rows are unfit, those of this task and those holding one, `row` being both.
    """
    return next(other for other in range(len(tasks)) if tasks[row] not in (tasks[other], tasks[source[other]]))
