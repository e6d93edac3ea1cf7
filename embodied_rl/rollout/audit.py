"""The audit of a robot: what was executed, by whom, a line of JSON for each chunk in `<run>/audit/collector_<n>.jsonl`.

Each line is written to the file when its chunk is over, so that it survives `kill -9`; nothing is ever removed. Keys:
`time` of the end of the chunk (ISO 8601, UTC); `episode`, its `task` and `seed`; `decision`, counted from the episode's
begin; `version` of the weights that decided; `by`, pairs of a source ("policy", "human", "replay", "safety" or "hold")
and its control steps, in their order; `success`, whether the goal held after one of them; and `end`: "terminated",
"truncated", "lost" with the process that ran the episode, or null while the episode goes on.

Shapes: n environments of one call, Hx executed actions of a chunk.
"""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.writer import Writer, WriterFactory, select_outcome
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import check_ends

INTERVENTIONS = "interventions"
_STEPS = "executed/"
"""Prefix of the counts of control steps, by source."""


class AuditWriter(Writer):
    """Appends what was executed to a file, and counts the control steps of each source and a human's interventions.

    An intervention is a sequence of control steps of a human in one episode; it may span chunks.
    """

    final_pictures = False

    def __init__(self, path: Path) -> None:
        check_ends(path)
        self._path = path
        with explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            if self._file.tell() and not path.read_bytes().endswith(b"\n"):  # a full disk left half a line
                self._file.write(b"\n")
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
            self._decided[column] = {
                "episode": episode.index,
                "task": self._tasks[episode.task],
                "seed": episode.seed,
                "decision": number,
                "version": int(decision.version[position]),
            }

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Write a line for each environment, and count its control steps; see `Writer`."""
        outcome = select_outcome(result, rows)
        for position, column in enumerate(columns.tolist()):
            sources = [Source(number) for number in outcome["source"][position, : outcome["steps"][position]]]
            by = [(source, len(list(steps))) for source, steps in groupby(sources)]
            before = self._last.get(column)
            for source, steps in by:
                self._counts[_STEPS + source.name.lower()] += steps
                self._counts[INTERVENTIONS] += source == Source.HUMAN != before
                before = source
            self._last[column] = sources[-1]
            ended = [name for name in ("terminated", "truncated") if outcome[name][position]]
            named = [[source.name.lower(), steps] for source, steps in by]
            success = bool(outcome["success"][position].any())
            self._append(column, {"by": named, "success": success, "end": ended[0] if ended else None})

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Write that episodes were lost during the last decision; what it executed is unknown; see `Writer`."""
        for column in columns.tolist():
            if column in self._decided:
                self._append(column, {"by": [], "success": False, "end": "lost"})

    def _append(self, column: int, what: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with explain_errors(self._path):
            self._file.write(json.dumps({"time": now} | self._decided.pop(column) | what).encode() + b"\n")
            self._file.flush()

    def figures(self) -> Mapping[str, float]:
        """Return the counts since the last call, which ends a rollout."""
        counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
