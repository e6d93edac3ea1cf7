"""Ablations of a policy's inputs: black images or wrong instructions, to test whether the policy uses them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl.rollout.runner import split_into_batches
from embodied_rl.runtime.processes.handle import Handle, WorkerDied, restart_and_reset


@dataclass(frozen=True)
class AblatedPolicy:
    """A policy that receives observations changed by `alter`."""

    policy: DeployedPolicy
    alter: Callable[[Observation, NoiseKeys], Observation]

    @property
    def observations(self) -> int:
        """Return how many observations the policy reads; see `Actor.observations`."""
        return getattr(self.policy, "observations", 1)

    def infer(self, observation: Observation, keys: NoiseKeys, *continued: Any, **options: Any) -> np.ndarray:
        """Return chunks for the altered observation, and altered earlier ones; see `DeployedPolicy`."""
        if "earlier" in options:
            options["earlier"] = tuple(self.alter(each, keys) for each in options["earlier"])
        return self.policy.infer(self.alter(observation, keys), keys, *continued, **options)


def blank_images(observation: Observation, keys: NoiseKeys) -> Observation:
    """Return the observation with black images."""
    return replace(observation, images={name: np.zeros_like(image) for name, image in observation.images.items()})


def replace_instructions(shown: Mapping[int, str], observation: Observation, keys: NoiseKeys) -> Observation:
    """Return the observation with instructions from `shown`, looked up by the episode's index."""
    return replace(observation, instruction=tuple(shown[int(index)] for index in keys.episode))


def read_instructions(handle: Handle, episodes: Sequence[Episode], envs: int) -> dict[int, str]:
    """Start each episode and return episode index → its instruction."""
    found: dict[int, str] = {}
    for batch in split_into_batches(episodes, envs):
        padded = [*batch, *[None] * (envs - len(batch))]
        try:
            observation: Observation = handle.submit("reset", padded).result()
        except WorkerDied:
            observation, _ = restart_and_reset(handle, padded)
        found.update({episode.index: observation.instruction[row] for row, episode in enumerate(batch)})
    return found


def exchange_instructions(episodes: Sequence[Episode], own: Mapping[int, str], seed: int) -> dict[int, str]:
    """Return episode index → instruction to show: that of an episode of another task; each instruction is used once.

    `own` is episode index → its own instruction.

    Raises:
        UserError: one task has more than half of the episodes, so that no such exchange exists.
    """
    tasks = [episode.task for episode in episodes]
    task, most = Counter(tasks).most_common(1)[0]
    if 2 * most > len(tasks):
        message = f"ablate=instruction needs instructions of other tasks, but task {task} has {most} of {len(tasks)}"
        raise UserError(f"{message} episodes. Evaluate all tasks, without task=….", code="ablation-too-few-tasks")
    source = np.random.default_rng(seed).permutation(len(tasks))
    for row in range(len(tasks)):
        if tasks[source[row]] == tasks[row]:
            # a partner for a swap exists: at most 2 `most` - 1 rows are of this task, or hold its instruction
            other = next(i for i in range(len(tasks)) if tasks[row] not in (tasks[i], tasks[source[i]]))
            source[[row, other]] = source[[other, row]]
    return {episode.index: own[episodes[source[row]].index] for row, episode in enumerate(episodes)}
