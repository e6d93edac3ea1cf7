"""Writer and reader of metrics.jsonl, with one JSON object per iteration.

Keys have the form `<group>/<metric>`. Values that depend on the clock are under `time/`; all others are equal in two
runs with the same seed. Names that reports and the live table use:

    iteration, total/control_steps, total/episodes,
    rollout/success, rollout/return, update/kl, update/clip_share, update/entropy, update/value_loss,
    eval/success, eval/low, eval/high, time/elapsed (s, evaluations included), time/steps_per_second
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.system.atomic_write import explain_errors, write_text
from embodied_rl.system.untrusted_files import check_inside

Value = float | int | str | bool | None


class MetricsWriter:
    """A writer that appends iterations to `metrics.jsonl`; usable as a context manager.

    Args:
        path: the file.
        resumed: last iteration to keep when a run resumes; later lines and an incomplete line are removed, and a
            warning lists missing iterations. None: a new run starts with an empty file.
    """

    def __init__(self, path: Path, resumed: int | None = None) -> None:
        self._path = path
        check_inside(path.parent, path)  # a run from someone else could hold a link to any file
        rows, damaged = _parse(path)
        last = -1 if resumed is None else resumed
        kept = {step: row for row in rows if isinstance(step := row.get("iteration"), int) and step <= last}
        if lost := sorted(set(range(1, last + 1)) - kept.keys()):
            where = "was cut or removed: it"
            if damaged:
                where = f"is damaged: skipped line {', '.join(map(str, damaged))}. It"
            message = (
                f"{path} {where} lacks {len(lost)} of {last} iterations, from {lost[0]} to {lost[-1]}. The run "
                "continues without them: restore these lines from a copy of the file when it has ended."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)  # checkpoints hold no metrics
        if path.is_file():
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept.values()))
        with explain_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def write(self, iteration: int, values: Mapping[str, Any]) -> dict[str, Value]:
        """Append one iteration; return it as plain values.

        Values are numbers, 0-d arrays or tensors, or short strings; NaN and infinities become null.

        Raises:
            StorageError: the disk is full, or the file is gone.
        """
        row: dict[str, Value] = {"iteration": iteration}
        for name, value in values.items():
            plain = value.item() if hasattr(value, "item") else value
            row[name] = plain if not isinstance(plain, float) or math.isfinite(plain) else None
        with explain_errors(self._path):
            self._path.stat()  # the system writes to a removed file without an error
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        return row

    def close(self) -> None:
        """Close the file; failed writes are tried once more, and raise as in `write`."""
        with explain_errors(self._path):
            self._file.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Value]]:
    """Return all complete lines of a metrics file; none if the file is missing.

    Raises:
        UserError: the file is a link that leads out of its folder.

    An incomplete last line, which a killed process leaves, is skipped. A damaged line is skipped with a warning.
    """
    rows, damaged = _parse(path)
    if damaged:
        message = f"{path} is damaged: skipped line {', '.join(map(str, damaged))}."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return rows


LARGEST = 1e100
"""Numbers of this size and above are shown by no table and no chart."""


def read_number(value: Value) -> float | None:
    """Return a number of a row as float; None for anything else, and for what no chart can show."""
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def find_first_reached(rows: Sequence[Mapping[str, Value]], success: float) -> tuple[int, float] | None:
    """Return iteration and elapsed seconds of the first evaluation with at least this success rate, or None."""
    for row in rows:
        found, iteration, seconds = row.get("eval/success"), row.get("iteration"), row.get("time/elapsed")
        if isinstance(found, float) and isinstance(iteration, int) and isinstance(seconds, float) and found >= success:
            return iteration, seconds
    return None


def _parse(path: Path) -> tuple[list[dict[str, Value]], list[int]]:
    """Return the complete rows of a metrics file, and the numbers of its damaged lines."""
    if not path.is_file():
        return [], []
    check_inside(path.parent, path)
    *lines, last = path.read_bytes().split(b"\n")
    rows = [_read_row(line) for line in lines]
    damaged = [number for number, row in enumerate(rows, start=1) if row is None]
    return [row for row in (*rows, _read_row(last)) if row is not None], damaged


def _read_row(line: bytes) -> dict[str, Value] | None:
    """Return the row of a line, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(isinstance(value, Value) for value in row.values()):
        return None
    return row if all(_is_ordinary(value) for value in row.values()) else None


def _is_ordinary(value: Value) -> bool:
    """Return whether a number is finite, and a whole one fits into 64 bits."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return not isinstance(value, float) or math.isfinite(value)
