"""Results of finished episodes on disk, so that an interrupted evaluation can be continued.

`episodes.jsonl` in the evaluation's folder has one line per finished episode, the fields of its `EpisodeResult`. Lines
are only appended, each in one write. `kill -9` may leave an incomplete last line, which is removed.
"""

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from embodied_rl.config.freeze import freeze_config
from embodied_rl.evaluate.protocol import Results
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import check_ends, check_inside, shorten

FILE = "episodes.jsonl"


class ResultFile(Results):
    """The results of an evaluation, in memory and on disk; a context manager that locks and closes the file.

    Args:
        path: the file; it is read, and new results are appended.
        episodes: those of the evaluation.

    Attributes:
        torn: whether the file ended in an incomplete line.

    Raises:
        UserError: another process writes to the file, its folder holds a link out of it, or a line is damaged or of
            another evaluation.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, episodes: Sequence[Episode]) -> None:
        super().__init__()
        self._path = path
        folder = path.parent  # it may come from an untrusted source, and is written to from now on
        for entry in (*folder.glob("*"), *folder.glob("part_*/*")):
            check_inside(folder, entry)
        check_ends(path)
        with explain_errors(path, "out"):
            self._file = path.open("a+b")
        try:
            try:
                with suppress(NotImplementedError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{folder} is in use: another process evaluates there. Wait for it.", code="folder-in-use"
                ) from None
            except OSError:
                pass  # the file system has no locks
            self.torn = self._read({episode.index: episode for episode in episodes})
        except BaseException:
            self._file.close()
            raise

    def add(self, result: EpisodeResult) -> None:
        """Keep the result of one more episode; it is with the operating system when this returns.

        Raises:
            StorageError: the disk is full, or the file is gone.
        """
        super().add(result)
        with explain_errors(self._path, "out"):
            self._path.stat()  # the system writes to a removed file without an error
            self._file.write(json.dumps(asdict(result)).encode() + b"\n")
            self._file.flush()

    def __enter__(self) -> "ResultFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self, expected: Mapping[int, Episode]) -> bool:
        """Read all whole lines; remove an incomplete last one, and return whether there was one."""
        self._file.seek(0)
        *lines, torn = self._file.read().split(b"\n")
        for number, line in enumerate(lines, start=1):
            where = f"{self._path}, line {number},"
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError("it holds no keys.", code="results-damaged")
                result = freeze_config(EpisodeResult, row)
            except (ValueError, RecursionError) as error:
                remedy = "Remove that line, and its episode runs again."
                raise UserError(f"{where} is damaged: {shorten(error)}. {remedy}", code="results-damaged") from None
            episode = expected.get(result.index)
            identity = (result.task, result.seed, result.split, result.initial_state)
            if episode is None or identity != (episode.task, episode.seed, episode.split, episode.initial_state):
                raise UserError(
                    f"{where} is of an episode that this evaluation does not have. Is the file of another one?",
                    code="results-of-another-evaluation",
                )
            if result.index in self.found:
                raise UserError(
                    f"{where} has episode {result.index} once more. Remove one of the two lines.",
                    code="results-damaged",
                )
            self.found[result.index] = result
        if torn:
            with explain_errors(self._path, "out"):
                self._file.truncate(sum(len(line) + 1 for line in lines))
        return bool(torn)
