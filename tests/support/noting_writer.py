"""A writer that notes in a file what a collector tells it, and asks for the pictures of terminations."""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.writer import Writer


class NotingWriter(Writer):
    """One line a call, in `<folder>/<number of the collector>.jsonl`."""

    final_pictures = True

    def __init__(self, folder: str, number: int) -> None:
        self._file = Path(folder, f"{number}.jsonl")

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        self._note(sizes=[num_envs, executed], process=os.getpid())

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        pairs = zip((episode.index for episode in episodes), keys.decision.tolist(), strict=True)
        self._note(decided=[list(pair) for pair in pairs])

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        final = result.final_observation
        seen = [] if final is None else [bool(image.any()) for image in next(iter(final.images.values()))]
        self._note(steps=int(result.steps[rows].sum()), terminated=int(result.terminated.sum()), seen=seen)

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        self._note(lost=columns.tolist())

    def _note(self, **said: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(said) + "\n")


def make_writer(options: str, number: int) -> NotingWriter:
    """For a `WriterFactory`."""
    return NotingWriter(options, number)
