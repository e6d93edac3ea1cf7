"""The audit of a robot: who executed what in collectors and evaluations; `runs/audit_file.py` defines the format.

Shapes: n environments of one call, Hx executed actions of a chunk.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.runner import Observer, RunningEpisode
from embodied_rl.rollout.writer import Writer, WriterFactory, select_outcome
from embodied_rl.runs.audit_file import TRAINING, AuditFile

INTERVENTIONS = "interventions"
_STEPS = "executed/"
"""Prefix of the counts of control steps, by source."""


class AuditWriter(Writer):
    """Appends what was executed to a file, and counts the control steps of each source and a human's interventions.

    An intervention is a sequence of control steps of a human in one episode; it may span chunks.
    """

    final_pictures = False

    def __init__(self, path: Path) -> None:
        self._file = AuditFile(path)
        self._counts: Counter[str] = Counter()
        self._decided: dict[int, dict[str, Any]] = {}
        self._last: dict[int, Source] = {}
        self._tasks: list[str] = []

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Note the names of the tasks."""
        self._tasks = [task.name for task in spec.tasks]

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Note who decided what, until it has been executed; see `Writer`."""
        for position, (column, episode) in enumerate(zip(columns.tolist(), episodes, strict=True)):
            number = int(keys.decision[position])
            if not number:
                self._last.pop(column, None)
            known = _describe_episode(TRAINING, episode, self._tasks)
            self._decided[column] = known | {"decision": number, "version": int(decision.version[position])}

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Write a line for each environment, and count its control steps; see `Writer`."""
        outcome = select_outcome(result, rows)
        for position, column in enumerate(columns.tolist()):
            sources = _list_sources(outcome, position)
            before = self._last.get(column)
            for source in sources:
                self._counts[_STEPS + source.name.lower()] += 1
                self._counts[INTERVENTIONS] += source == Source.HUMAN != before
                before = source
            self._last[column] = sources[-1]
            decided = self._decided.pop(column)
            _append_between(self._file, result, int(rows[position]), decided["episode"])
            self._file.append("chunk", decided | _describe_chunk(outcome, position))

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Write that episodes were lost during the last decision; what it executed is unknown; see `Writer`."""
        for column in columns.tolist():
            if decided := self._decided.pop(column, None):
                self._file.append("chunk", decided | {"by": [], "success": False, "end": "lost"})

    def figures(self) -> Mapping[str, float]:
        """Return the counts since the last call, which ends a rollout."""
        counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EvaluationAudit(Observer):
    """Appends what an evaluation executes to a file.

    Args:
        file: of the rank that evaluates. spec: of the simulators.
        purpose: of the episodes. version: of the weights.
    """

    def __init__(self, file: AuditFile, spec: SimulatorSpec, purpose: str, version: int) -> None:
        self._file, self._purpose, self._version = file, purpose, version
        self._tasks = [task.name for task in spec.tasks]

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        """Write a line for each episode; see `Observer`."""
        outcome = select_outcome(result, np.arange(len(result.steps)))
        for each in running:
            _append_between(self._file, result, each.row, each.episode.index)
            known = _describe_episode(self._purpose, each.episode, self._tasks)
            decided = known | {"decision": each.decisions - 1, "version": self._version}
            self._file.append("chunk", decided | _describe_chunk(outcome, each.row))


def _describe_episode(purpose: str, episode: Episode, tasks: Sequence[str]) -> dict[str, Any]:
    return {"purpose": purpose, "episode": episode.index, "task": tasks[episode.task], "seed": episode.seed}


def _describe_chunk(outcome: Mapping[str, Array], row: int) -> dict[str, Any]:
    """Return what a line says of `row` of a `select_outcome`."""
    by = [[source.name.lower(), len([*steps])] for source, steps in groupby(_list_sources(outcome, row))]
    ended = [name for name in ("terminated", "truncated") if outcome[name][row]]
    return {"by": by, "success": bool(outcome["success"][row].any()), "end": ended[0] if ended else None}


def _list_sources(outcome: Mapping[str, Array], row: int) -> list[Source]:
    return [Source(number) for number in outcome["source"][row, : outcome["steps"][row]]]


def _append_between(file: AuditFile, result: StepResult, row: int, episode: int) -> None:
    """Write the control steps of environment `row` that are in no chunk, if there are any."""
    if result.between is not None and result.between[row]:
        by = [[Source(number).name.lower(), steps] for number, steps in result.between[row]]
        file.append("between", {"episode": episode, "by": by})


def make_audit_factory(folder: Path) -> WriterFactory:
    """Return the factory that opens a file in `folder` for each collector."""
    return WriterFactory(f"{__name__}:{open_audit.__name__}", folder)


def open_audit(folder: Path, number: int) -> AuditWriter:
    """Open the audit of collector `number`; for a `WriterFactory`."""
    return AuditWriter(folder / f"collector_{number}.jsonl")


def summarise_sources(counts: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics of an iteration from the summed counts of its collectors; empty without an audit.

    `rollout/by_<source>` is a source's share of the control steps; `rollout/interventions` counts those of a human.
    """
    steps = {name.removeprefix(_STEPS): count for name, count in counts.items() if name.startswith(_STEPS)}
    if not steps:
        return {}
    shares = {f"rollout/by_{source}": count / sum(steps.values()) for source, count in steps.items()}
    return shares | {"rollout/interventions": counts.get(INTERVENTIONS, 0.0)}
