"""The log of scores, JSON lines, and the scorer that repeats them, so that a run gets the same rewards bit for bit."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, get_args

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import FilePath
from embodied_rl.runs.other_files import PICKLE_STARTS
from embodied_rl.system.untrusted_files import check_inside, read_whole

FOLDER = "scores"
"""Folder of the logs in a run folder: <number of the collector>.jsonl."""
_TYPES: dict[str, Any] = {
    "episode": int,
    "decision": int,
    "used": bool,
    "confidence": float | int,
    "instruction": str,
    "kind": str,
    "reason": str,
    "value": float | int | None,
    "done": float | int | None,
    "counted": int | None,
}
"""Types of the keys of a line."""


def describe_score(
    request: ScoreRequest, score: Score, seconds: float, used: bool, counted: int | None = None
) -> dict[str, Any]:
    """Return a line of the log.

    Args:
        request, score: with its answer.
        seconds: from the request to the answer.
        used: whether the reward was computed with it; a valid score that came too late was not used.
        counted: decision of the episode before which it was used first, in modes with potentials.
    """
    return {
        "episode": request.episode, "decision": request.decision, "kind": request.kind,
        "instruction": request.instruction, "reason": score.reason,
        "value": None if math.isnan(score.value) else score.value, "done": score.done, "confidence": score.confidence,
        "detail": score.detail, "seconds": round(seconds, 4), "used": used, "counted": counted,
    }  # fmt: skip


class ScoreLog:
    """Append-only log file, written by a separate thread; its first line has the scorer's identity.

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
        content = read_whole(file)
        if content.startswith(PICKLE_STARTS):
            raise UserError(
                f"{file} is a pickle, which can run any code when it is opened, and is not read.",
                code="score-log-is-pickle",
            )
        lines = content.split(b"\n")
        for number, line in enumerate(lines[:-1], 1):  # an incomplete line follows the last line break
            where = f"{file}, line {number}"
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{where}, is not JSON.", code="score-log-damaged") from None
            if not isinstance(found, dict):
                raise UserError(f"{where}, is not a score record.", code="score-log-damaged")
            if "scorer" in found:
                continue
            for key, kind in _TYPES.items():
                if not isinstance(found.get(key), kind):
                    raise UserError(f"{where}: '{key}' is missing, or of another type.", code="score-log-damaged")
            yield found


@dataclass(frozen=True)
class ReplayConfig:
    """The settings of `ReplayScorer`."""

    log: FilePath = ""
    """run folder or score log to replay."""


class ReplayScorer(Scorer):
    """Repeats logged scores by episode and decision, including their delays.

    A score that came too late is not used, and one that counted from a later decision on counts from there on. A run
    with equal settings and seed gets the same rewards. Observations that are not in the log get no score.

    Raises:
        UserError: the log is missing or damaged.
    """

    Config = ReplayConfig

    def __init__(self, config: ReplayConfig, spec: SimulatorSpec) -> None:
        if not config.log:
            raise UserError("reward.log is missing: the run folder to replay.", code="key-missing")
        lines = list(read_scores(Path(config.log)))
        if not lines:
            raise UserError(f"reward.log={config.log} holds no complete line of a score.", code="score-log-empty")
        self._scores = {(line["episode"], line["decision"], line["instruction"]): line for line in lines}
        kinds = tuple(kind for kind in get_args(ScoreKind) if any(line["kind"] == kind for line in lines))
        done = any(line.get("done") is not None for line in lines)
        self.traits = ScorerTraits(
            kinds, f"replay of {config.log}", batch=256, cacheable=False, judges_done=done, reads_instruction=False
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Return the scores of the log."""
        return [self._find(request) for request in requests]

    def _find(self, request: ScoreRequest) -> Score:
        line = self._scores.get((request.episode, request.decision, request.instruction))
        if line is None:
            return Score.invalid("unavailable", "the log has no score of this observation")
        if not line["used"] or line["value"] is None:
            return Score.invalid("late" if line["reason"] == "ok" else line["reason"])
        return Score(
            float(line["value"]), line.get("done"), float(line["confidence"]), counts_from=line.get("counted") or 0
        )
