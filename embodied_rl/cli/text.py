"""Print aligned columns, wrapped to the width of the terminal."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or 120 columns if there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def print_columns(rows: Sequence[Sequence[str]], *, indent: int = 2) -> None:
    """Print rows with aligned columns; only the last column wraps."""
    if not rows:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for index in range(len(rows[0])):
        grid.add_column(no_wrap=index < len(rows[0]) - 1)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    make_console().print(Padding(grid, (0, 0, 0, indent)))
