"""The tables that benchmarks print: what was measured in the first column, figures right-aligned beside it."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def make_table(
    title: str, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], remark: str | None = None
) -> Table:
    """A table for the console.

    Args:
        title: above it.
        caption: below it; says what the figures are, and their units.
        headings: of the columns.
        rows: as many cells each as there are headings.
        remark: heading of a last column of text; None for none.
    """
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, min_width=60)
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    if remark is not None:
        table.add_column(remark)
    for row in rows:
        table.add_row(*row)
    return table
