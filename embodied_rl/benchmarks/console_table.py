"""Console tables of benchmarks: the measured item in the first column, right-aligned figures in the others."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def make_table(
    title: str, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], remark: str | None = None
) -> Table:
    """Build a table for the console.

    Args:
        title: text above the table.
        caption: text below the table; explains the figures and their units.
        headings: headings of the columns.
        rows: rows of cells, one cell for each heading.
        remark: heading of an additional last column of text; None for no such column.
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
