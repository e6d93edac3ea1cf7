"""Log of a run: metrics.jsonl, TensorBoard and the live table on rank 0; nothing on the other ranks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import MetricsWriter
from embodied_rl.runs.progress import Progress


class RunLog:
    """Log that writes nothing, for all ranks but the first."""

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Record the metrics of one iteration."""

    def note(self, text: str) -> None:
        """Show one line of text to the user."""

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        """Show the current phase of the run; see `Progress.begin_phase`."""

    def begin_iterations(self, closing: float) -> None:
        """Start the clock of the iterations; see `Progress.begin_iterations`."""


class _WritingLog(RunLog):
    def __init__(self, metrics: MetricsWriter, progress: Progress) -> None:
        self._metrics, self._progress = metrics, progress

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        self._metrics.write(iteration, figures)
        self._progress.update(iteration, figures)

    def note(self, text: str) -> None:
        self._progress.note(text)

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        self._progress.begin_phase(phase, announce=announce)

    def begin_iterations(self, closing: float) -> None:
        self._progress.begin_iterations(closing)


@contextmanager
def open_log(
    folder: RunFolder, iterations: int, start: int, *, speaks: bool, tensorboard: bool, live: bool
) -> Iterator[RunLog]:
    """Yield the log of a run; a context manager.

    Args:
        folder: folder of the run.
        iterations: number of iterations of the whole run.
        start: iterations already done; later lines of metrics.jsonl are removed.
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
        yield _WritingLog(metrics, progress)
