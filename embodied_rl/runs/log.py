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
    """Log of a run; without parts, as on all ranks but the first, it writes nothing."""

    def __init__(self, parts: tuple[MetricsWriter, Progress, Logger] | None = None, iteration: int = 0) -> None:
        self._parts, self._iteration = parts, iteration

    def write(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Record the metrics of one iteration."""
        if self._parts is not None:
            metrics, progress, logger = self._parts
            self._iteration = iteration
            row = metrics.write(iteration, figures)
            progress.update(iteration, figures)
            numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
            del numbers["iteration"]
            logger.write(iteration, numbers)

    def note(self, text: str) -> None:
        """Show one line of text to the user."""
        if self._parts is not None:
            self._parts[1].note(text)
            self._parts[2].write_text(self._iteration, text)

    def write_films(self, paths: Sequence[Path]) -> None:
        """Pass films of episodes to the logger."""
        if self._parts is not None:
            for path in paths:
                self._parts[2].write_film(self._iteration, path)

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        """Show the current phase of the run; see `Progress.begin_phase`."""
        if self._parts is not None:
            self._parts[1].begin_phase(phase, announce=announce)

    def begin_iterations(self, closing: float) -> None:
        """Start the clock of the iterations; see `Progress.begin_iterations`."""
        if self._parts is not None:
            self._parts[1].begin_iterations(closing)


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
                yield RunLog((metrics, progress, logger), start)
        except BaseException:
            logger.close(success=False)
            raise
        logger.close(success=True)
