"""Print aligned columns, wrapped once, to the width of the terminal."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from textwrap import wrap

from rich.console import Console

NARROWEST = 40
NO_TERMINAL = 120
"""Columns of output that goes to a file or another program."""
LEFT = 34
"""Columns that a left-hand text may take before what belongs to it moves to the next line."""


def find_width() -> int:
    """Return the columns to print: $COLUMNS, or those of the terminal, also behind a pager such as less."""
    with suppress(ValueError, KeyError):
        return max(NARROWEST, int(os.environ["COLUMNS"]))
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        with suppress(OSError, ValueError, AttributeError):
            assert stream is not None
            return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns)
    return NO_TERMINAL


def make_console() -> Console:
    """Return a console on standard output, `find_width` columns wide."""
    return Console(width=find_width(), highlight=False)


def print_columns(rows: Sequence[Sequence[str]], *, indent: int = 2) -> None:
    """Print rows with aligned columns; only the last column wraps, on the next line if too little width is left.

    Where the other columns are wider than the screen, each cell gets its own line.
    """
    if not rows:
        return
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    start = indent + sum(widths) + 2 * len(widths)
    for *cells, last in rows:
        head = " " * indent + "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
        if len(head.rstrip()) > find_width():
            print("\n".join([" " * indent + cells[0], *(" " * (indent + 4) + cell for cell in cells[1:])]))
            head = ""
        print_hanging(head, last, start if start <= find_width() // 2 else indent + 4)


def print_keys(pairs: Sequence[tuple[str, str]], *, indent: int = 2) -> None:
    """Print pairs of a key and its meaning. Meanings are aligned; that of a long key begins on the next line."""
    longest = max((len(key) for key, _ in pairs), default=0)
    start = indent + min(longest, LEFT - indent - 2) + 2
    for key, meaning in pairs:
        print_hanging(f"{' ' * indent}{key}  ", meaning, start)


def print_hanging(head: str, text: str, start: int) -> None:
    """Print `head`, then `text` from column `start` on, on the next line if `head` is longer. Words are never cut."""
    lines = wrap(text, max(find_width() - start, 1), break_long_words=False, break_on_hyphens=False)
    if len(head) > start or not lines:
        print(head.rstrip())
        head = ""
    for line in lines:
        print(f"{head:{start}}{line}".rstrip())
        head = ""
