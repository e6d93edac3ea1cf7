"""Conversion of a robot's recording to a replay storage: proposed and executed actions, and their source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.deployment.recording.alignment import EpisodePart
from embodied_rl.deployment.recording.conversion import UNNAMED_TASK, Conversion, describe_part
from embodied_rl.interfaces.sim import Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.replay_files import check_new
from embodied_rl.rollout.replay.storage import ReplayStorage


def write_replay(conversion: Conversion, out: Path) -> Iterator[dict[str, Any]]:
    """Write a recording into a replay storage in control steps; yield the line of the index of each part of an episode.

    `action` is the proposed action, or the executed one without a proposal. The last step before a gap of an episode
    cannot be sampled. Raises ReplayError if the folder is not new, StorageError without room.
    """
    check_new(out)
    spec = conversion.make_spec()
    layout = ReplayFormat.of_simulator(spec, tracks=1, capacity=conversion.steps + 2, executed=1)
    storage = ReplayStorage(layout, out)
    try:
        for part in conversion.read_parts():
            _write_part(storage, part, spec)
            yield describe_part(part)
        storage.flush()
    finally:
        storage.close()


def _write_part(storage: ReplayStorage, part: EpisodePart, spec: SimulatorSpec) -> None:
    episode, observation = part.episode, Observation.concatenate([step.observation for step in part.steps])
    words = episode.instruction or UNNAMED_TASK
    task = next(position for position, each in enumerate(spec.tasks) if each.name == words)
    actions = np.stack([step.executed if step.proposed is None else step.proposed for step in part.steps])[:, None]
    last = np.zeros(len(part.steps), bool)
    last[-1] = part.ends
    success = last & (part.label == "success")
    result = StepResult(
        reward=success.astype(np.float32)[:, None],
        success=success[:, None],
        steps=np.ones(len(part.steps), np.int64),
        executed=np.stack([step.executed for step in part.steps])[:, None],
        source=np.array([[step.source] for step in part.steps], np.uint8),
        terminated=last & bool(part.label),
        truncated=last & (not part.label),
        observation=observation,
    )
    storage.write_episode(
        0, Episode(episode.index, task, episode.seed, split="recorded"), observation, actions, result,
        first_decision=part.steps[0].number,
    )  # fmt: skip
