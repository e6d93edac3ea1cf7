"""What a run reports while it goes: metrics.jsonl, TensorBoard and the live table, on one rank and silent on others."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import MetricsWriter
from embodied_rl.runs.progress import Progress


class RunLog:
    """Says nothing; `open_log` gives the one that speaks."""

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Record one iteration."""

    def note(self, text: str) -> None:
        """Tell the user one line."""


class _SpeakingLog(RunLog):
    def __init__(self, metrics: MetricsWriter, progress: Progress) -> None:
        self._metrics, self._progress = metrics, progress

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        self._metrics.write(iteration, figures)
        self._progress.update(iteration, figures)

    def note(self, text: str) -> None:
        self._progress.note(text)


@contextmanager
def open_log(
    folder: RunFolder, iterations: int, start: int, *, speaks: bool, tensorboard: bool, live: bool
) -> Iterator[RunLog]:
    """The log of a run of `iterations`, of which `start` are done.

    Args:
        folder: of the run.
        iterations: of the whole run.
        start: iterations done before; lines of metrics.jsonl beyond them go.
        speaks: False on every rank but the first.
        tensorboard: write TensorBoard events too.
        live: show a table that redraws itself, on a terminal.
    """
    if not speaks:
        yield RunLog()
        return
    board = folder.path / "tensorboard" if tensorboard else None
    with (
        MetricsWriter(folder.metrics, start or None, board) as metrics,
        Progress(iterations, start, live=live) as progress,
    ):
        yield _SpeakingLog(metrics, progress)
