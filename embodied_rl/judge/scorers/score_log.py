"""The log of scores: JSON lines, one for each request, from which a run's rewards can be made again bit for bit."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind
from embodied_rl.runs.other_files import PICKLE_STARTS
from embodied_rl.system.untrusted_files import check_inside, read_whole

FOLDER = "scores"
"""Folder of the logs in a run folder: <number of the collector>.jsonl."""


def describe_score(
    episode: int,
    decision: int,
    kind: ScoreKind,
    instruction: str,
    score: Score,
    seconds: float,
    used: bool,
    counted: int | None = None,
) -> dict[str, Any]:
    """Return a line of the log.

    Args:
        episode, decision, kind, instruction: of the request.
        score: the answer.
        seconds: from the request to the answer.
        used: whether the reward was made with it; a valid score that came too late was not used.
        counted: decision of the episode before which it was used first, where potentials are made of scores.
    """
    return {
        "episode": episode, "decision": decision, "kind": kind, "instruction": instruction, "reason": score.reason,
        "value": None if math.isnan(score.value) else score.value, "done": score.done, "confidence": score.confidence,
        "detail": score.detail, "seconds": round(seconds, 4), "used": used, "counted": counted,
    }  # fmt: skip


class ScoreLog:
    """Append-only log file, written by a separate thread.

    Args:
        file: log file; its folder is created.
        identity: of the scorer, written into the first line of each process that writes.

    Raises:
        UserError: the file is a symbolic link out of its folder.
    """

    def __init__(self, file: Path, identity: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        check_inside(file.parent, file)  # a received run folder could contain a link to any file
        self._lines: SimpleQueue[list[dict[str, Any]] | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, args=(file,), name="score log", daemon=True)
        self._thread.start()
        self.write([{"scorer": identity}])

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append lines, without waiting.

        Raises:
            UserError: earlier lines could not be written.
            TypeError, ValueError: they hold what JSON does not: a scorer's mistake.
        """
        if isinstance(self._failure, OSError):
            raise UserError(f"the log of scores cannot be written: {self._failure}", code="score-log-not-writable")
        if self._failure is not None:
            raise self._failure
        self._lines.put(list(lines))

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._lines.put(None)
        self._thread.join(10.0)

    def _run(self, file: Path) -> None:
        try:
            with file.open("a", encoding="utf-8") as out:
                while (lines := self._lines.get()) is not None:
                    out.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
                    out.flush()
        except (OSError, TypeError, ValueError) as error:
            self._failure = error


def read_scores(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log, or of all logs in a folder or run folder; an incomplete last line is skipped.

    Raises:
        UserError: no log was found, or a line is invalid; the message names file and line.
    """
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    if not files or not files[0].is_file():
        raise UserError(
            f"{path} holds no scores: a run with a reward writes them into {FOLDER}/ of its folder.",
            code="score-log-missing",
        )
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[dict[str, Any]]:
    content = read_whole(file)
    if content.startswith(PICKLE_STARTS):
        raise UserError(
            f"{file} is a pickle, which can run any code when it is opened, and is not read.",
            code="score-log-is-pickle",
        )
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line break was not written to its end
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{file}, line {number}, is not JSON.", code="score-log-damaged") from None
        if not isinstance(found, dict):
            raise UserError(f"{file}, line {number}, is not a score record.", code="score-log-damaged")
        if "scorer" not in found:
            yield _check_line(found, f"{file}, line {number}")


def _check_line(line: dict[str, Any], where: str) -> dict[str, Any]:
    kinds = {"episode": int, "decision": int, "used": bool, "confidence": float | int}
    kinds |= dict.fromkeys(("instruction", "kind", "reason"), str)
    for key, kind in kinds.items():
        if not isinstance(line.get(key), kind):
            raise UserError(f"{where}: '{key}' is missing, or of another type.", code="score-log-damaged")
    for key, types in {"value": float | int | None, "done": float | int | None, "counted": int | None}.items():
        if not isinstance(line.get(key), types):
            raise UserError(f"{where}: '{key}' is not a number.", code="score-log-damaged")
    return line
