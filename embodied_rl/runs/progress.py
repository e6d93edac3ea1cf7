"""Show the progress of a run: a live table on a terminal, one plain line per iteration elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

_ROWS_SHOWN = 12


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, its metric, and its number format."""

    heading: str
    metric: str
    form: str

    def text(self, metrics: Mapping[str, Any]) -> str:
        """Return the formatted metric, or a dash if this iteration has none."""
        value = metrics.get(self.metric)
        return "–" if value is None else format(float(value), self.form)


COLUMNS = (
    Column("success", "rollout/success", ".1%"),
    Column("return", "rollout/return", ".3f"),
    Column("KL", "update/kl", ".4f"),
    Column("clip share", "update/clip_share", ".1%"),
    Column("entropy", "update/entropy", ".3f"),
    Column("eval", "eval/success", ".1%"),
    Column("env-steps/s", "time/steps_per_second", ",.0f"),
)


class Progress:
    """A display of each iteration; a context manager, so that the terminal is restored after an error, too.

    Args:
        iterations: number of iterations of the whole run.
        start: iterations done before, when a run resumes.
        columns: the columns to show.
        console: output; standard output by default.
        clock: returns seconds; replaced in tests.
        live: whether a terminal gets a table that redraws itself; False shows plain lines on a terminal, too.
    """

    def __init__(
        self,
        iterations: int,
        start: int = 0,
        columns: tuple[Column, ...] = COLUMNS,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        live: bool = True,
    ) -> None:
        self._iterations, self._start, self._columns, self._clock = iterations, start, columns, clock
        self._console = console or Console(highlight=False)
        self._began = clock()
        self._rows: deque[tuple[str, ...]] = deque(maxlen=_ROWS_SHOWN)
        self._live = Live(console=self._console, auto_refresh=False) if live and self._console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Show one iteration.

        Args:
            done: iterations done, including this one.
            metrics: metrics of the iteration, as for `MetricsWriter.write`.
        """
        figures = [column.text(metrics) for column in self._columns]
        remaining = format_duration(self.remaining(done))
        if self._live is None:
            named = [f"{column.heading} {figure}" for column, figure in zip(self._columns, figures, strict=True)]
            self.note("  ".join([f"iteration {done}/{self._iterations}", *named, f"ETA {remaining}"]))
            return
        self._rows.append((f"{done}/{self._iterations}", *figures, remaining))
        self._live.update(self._table(), refresh=True)

    def note(self, text: str) -> None:
        """Print one plain line, above the live table if there is one."""
        self._console.print(text, markup=False, soft_wrap=True)

    def remaining(self, done: int) -> float:
        """Estimate the seconds to the end from the mean pace of this process; infinite before its first iteration."""
        here = done - self._start
        return (self._clock() - self._began) / here * (self._iterations - done) if here > 0 else float("inf")

    def _table(self) -> Table:
        table = Table()
        for heading in ("iteration", *(column.heading for column in self._columns), "ETA"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        return table


def format_duration(seconds: float) -> str:
    """Format a duration, such as 1h02m, 3m07s or 12s; infinity becomes a dash."""
    if seconds == float("inf"):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes_left:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
