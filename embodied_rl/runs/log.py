"""Log of a run: metrics.jsonl, the chosen logger and the live table on rank 0; nothing on the other ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.logger import Logger
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import MetricsWriter
from embodied_rl.runs.progress import Progress


class RunLog:
    """Log that writes nothing, for all ranks but the first."""

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Record the metrics of one iteration."""

    def note(self, text: str) -> None:
        """Show one line of text to the user."""

    def write_films(self, paths: Sequence[Path]) -> None:
        """Pass films of episodes to the logger."""

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        """Show the current phase of the run; see `Progress.begin_phase`."""

    def begin_iterations(self, closing: float) -> None:
        """Start the clock of the iterations; see `Progress.begin_iterations`."""


class _WritingLog(RunLog):
    def __init__(self, metrics: MetricsWriter, progress: Progress, logger: Logger, iteration: int) -> None:
        self._metrics, self._progress, self._logger, self._iteration = metrics, progress, logger, iteration

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        self._iteration = iteration
        row = self._metrics.write(iteration, figures)
        self._progress.update(iteration, figures)
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        del numbers["iteration"]
        self._logger.write(iteration, numbers)

    def note(self, text: str) -> None:
        self._progress.note(text)
        self._logger.write_text(self._iteration, text)

    def write_films(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._logger.write_film(self._iteration, path)

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        self._progress.begin_phase(phase, announce=announce)

    def begin_iterations(self, closing: float) -> None:
        self._progress.begin_iterations(closing)


@contextmanager
def open_log(
    folder: RunFolder, iterations: int, start: int, *, writes: bool, live: bool, make_logger: Callable[[], Logger]
) -> Iterator[RunLog]:
    """Yield the log of a run; without `writes`, as on every rank but 0, it writes nothing.

    `start` counts the iterations already done; later lines of metrics.jsonl are removed. With `live`, a terminal shows
    a table that redraws itself.
    """
    if not writes:
        yield RunLog()
        return
    with MetricsWriter(folder.metrics, start or None) as metrics:
        logger = make_logger()
        try:
            with Progress(iterations, start, live=live) as progress:
                yield _WritingLog(metrics, progress, logger, start)
        except BaseException:
            logger.close(success=False)
            raise
        logger.close(success=True)
