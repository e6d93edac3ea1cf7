"""Format of the audit of a robot, `<run>/audit/*.jsonl`: what was executed, and by whom, a line of JSON for each event.

A line is in its file as soon as its event is over, so that it survives `kill -9`. Nothing is ever removed: what a run
executes again after a restart is there twice. Each line has `time` (of the event's end; ISO 8601, UTC) and `event`:

- "start": the run began, or went on after a stop: `iteration`, how many it had learned from. Weights of a greater
  `version`, in lines above, are lost.
- "chunk": control steps of an episode: `purpose` ("training"; "select" and "report" are evaluations), `episode`, its
  `task` and `seed`; `decision`, counted from the episode's begin; `version` of the weights that decided; `by`;
  `success`, whether the goal held after one of the steps; and `end`: "terminated", "truncated", "lost" with the process
  that ran the episode, or null while the episode goes on.
- "between": `by`, of control steps since the line above that are in no chunk: motions to the start of the `episode`
  that comes next, and what a human did while the policy learned.

`by` has pairs of a source (`embodied_rl.interfaces.sim.Source`, in lower case) and its number of control steps.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.sim import Source
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import check_ends, check_inside, read_whole

FOLDER = "audit"
"""In a run's folder."""
TRAINING = "training"
"""The purpose of chunks that are learned from."""
_SOURCES = {source.name.lower() for source in Source}


class AuditFile:
    """Appends events to a file of an audit.

    Raises:
        UserError: the path leads to no ordinary file. StorageError: it cannot be written, or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        check_ends(path)
        self._path = path
        with explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            if self._file.tell() and not path.read_bytes().endswith(b"\n"):  # a full disk left half a line
                self._file.write(b"\n")

    def append(self, event: str, what: Mapping[str, Any]) -> None:
        """Append a line, at once."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **what}
        with explain_errors(self._path):
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_audit(run: Path) -> tuple[list[list[dict[str, Any]]], int]:
    """Return the events of each file of a run's audit, and the number of damaged lines; no files without an audit."""
    found, damaged = list[list[dict[str, Any]]](), 0
    for path in sorted((run / FOLDER).glob("*.jsonl")):
        check_inside(run, path)
        events = [_read_event(line) for line in read_whole(path).splitlines()]
        found.append([event for event in events if event is not None])
        damaged += len(events) - len(found[-1])
    return found, damaged


def _read_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, or None if the line is damaged."""
    try:
        event = json.loads(line)
        whole = {"start": ("iteration",), "chunk": ("episode", "decision"), "between": ()}[event["event"]]
        sound = isinstance(event["time"], str) and all(type(event[name]) is int for name in whole)
        sound &= event["event"] != "chunk" or event.keys() >= {"purpose", "end"}
        return event if sound and all(_check_pairs(event)) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _check_pairs(event: Mapping[str, Any]) -> Iterator[bool]:
    """Yield whether each pair of `by` is a source and a count."""
    if event["event"] != "start":
        for source, steps in event["by"]:
            yield source in _SOURCES and type(steps) is int and steps >= 0
