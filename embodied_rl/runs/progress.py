"""Display of the progress of a run: phase, bar and table on a terminal; else one plain line per iteration."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

HEALTHY = 0.9
"""Share of valid scores below which a scorer counts as degraded."""
_ROWS_SHOWN = 12
_BAR_WIDTH = 24
_REFRESHES = 4  # a second


class Column(NamedTuple):
    """A column of the table: its heading, its metric, and its number format.

    An `optional` column appears with its first value other than 0: fixed noise has no entropy to show.
    """

    heading: str
    metric: str
    form: str
    optional: bool = False


COLUMNS = (
    Column("success exploring", "rollout/success", ".1%"),
    Column("deployed", "eval/success", ".1%"),
    Column("return", "rollout/return", ".3f"),
    Column("KL", "update/kl", ".4f"),
    Column("clip share", "update/clip_share", ".1%"),
    Column("entropy", "update/entropy", ".3f", optional=True),
    Column("env-steps/s", "time/steps_per_second", ",.0f"),
)
"""Exploring: in training episodes, with exploration noise; deployed: in evaluations, without it."""


class Progress:
    """A display of each iteration; a context manager, which restores the terminal.

    Args:
        iterations: number of iterations of the whole run.
        start: iterations done before, when a run resumes.
        console: output; standard output by default.
        clock: returns seconds; replaced in tests.
        live: whether a terminal gets a table that redraws itself; False shows plain lines on a terminal, too.
    """

    def __init__(
        self,
        iterations: int,
        start: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        live: bool = True,
    ) -> None:
        self._iterations, self._start, self._clock = iterations, start, clock
        self._console = console or Console(highlight=False)
        self._began = clock()
        self._shown = [column for column in COLUMNS if not column.optional]
        self._done, self._closing = start, 0.0
        self._phase, self._phase_began, self._spinner = "starting", self._began, Spinner("dots")
        self._rows: deque[Mapping[str, str]] = deque(maxlen=_ROWS_SHOWN)
        self._scorer = ""
        self._live: Live | None = None
        if live and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=_REFRESHES, get_renderable=self._render)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def begin_phase(self, phase: str, *, announce: bool = False) -> None:
        """Show a new phase of the run; one that is announced is a plain line without a terminal."""
        self._phase, self._phase_began = phase, self._clock()
        if self._live is not None:
            self._live.refresh()
        elif announce:
            self.note(f"{phase} …")

    def begin_iterations(self, closing: float) -> None:
        """Start the clock of the iterations; `closing`: seconds of work after the last one."""
        self._began, self._closing = self._clock(), closing

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Show one iteration."""
        self._done = done
        self._shown = [each for each in COLUMNS if each in self._shown or metrics.get(each.metric)]
        row = {"iteration": f"{done}/{self._iterations}", "ETA": format_duration(self.remaining(done))}
        for column in COLUMNS:
            value = metrics.get(column.metric)
            row[column.heading] = "–" if value is None else format(float(value), column.form)
        self._scorer = describe_scorer(metrics)
        if self._live is None:
            scorer = {"scorer": self._scorer} if self._scorer else {}
            wanted = ["iteration", *(each.heading for each in self._shown), *scorer, "ETA"]
            self.note("  ".join(f"{name} {(row | scorer)[name]}" for name in wanted))
            return
        self._rows.append(row)
        self._live.refresh()

    def note(self, text: str) -> None:
        """Print one plain line, above the live table if there is one."""
        self._console.print(text, markup=False, soft_wrap=True)

    def remaining(self, done: int) -> float:
        """Estimate the seconds to the end, closing work included; infinite before this process's first iteration.

        The estimate uses the mean pace of this process.
        """
        here = done - self._start
        if here <= 0:
            return float("inf")
        return (self._clock() - self._began) / here * (self._iterations - done) + self._closing

    def _render(self) -> RenderableType:
        """Return the table of iterations, and a row of spinner, phase, bar of iterations, time and scorer."""
        table = Table()
        headings = ("iteration", *(column.heading for column in self._shown), "ETA")
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for texts in self._rows:
            table.add_row(*(texts[heading] for heading in headings))
        now = self._clock()
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, self._iterations), completed=self._done, width=_BAR_WIDTH)
        phase = f"{self._phase} {format_duration(now - self._phase_began)}"
        cells = [self._spinner, phase, bar, f"{self._done}/{self._iterations}", format_duration(now - self._began)]
        row.add_row(*cells, *([f"scorer {self._scorer}"] if self._scorer else []))
        return Group(*([table] if self._rows else []), row)


@contextmanager
def show_wait(text: str, console: Console | None = None) -> Iterator[None]:
    """Show a text during a wait: with a spinner on a terminal, otherwise as one plain line."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.print(text, markup=False, soft_wrap=True)
        yield
        return
    with console.status(text):
        yield


def describe_scorer(metrics: Mapping[str, Any]) -> str:
    """Return the state of a run's scorer in an iteration; empty for a run without one.

    "down": in some process; "degraded": fewer requests than the settings allow, or missing scores; or "healthy".
    """
    if "reward/asked" not in metrics:
        return ""
    valid, down = float(metrics.get("reward/valid", 1.0)), float(metrics.get("reward/down", 0.0))
    price = metrics.get("reward/cost")
    cost = "" if price is None else f", cost {price if isinstance(price, str) else f'{price:.4g}'}"
    if down:
        return f"down ({metrics.get('reward/trouble', 'unknown cause')}){cost}"
    if metrics.get("reward/degraded") or valid < HEALTHY:
        return f"degraded ({valid:.0%} valid){cost}"
    return f"healthy{cost}"


def format_duration(seconds: float) -> str:
    """Format a duration, such as 1h02m, 3m07s or 12s; infinity becomes a dash."""
    if seconds == float("inf"):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes_left:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
