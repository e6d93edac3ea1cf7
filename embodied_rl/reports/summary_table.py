"""The table of an evaluation's report, for the terminal."""

from rich.markup import escape
from rich.table import Table

from embodied_rl.reports.report import Rate, Report, Summary, describe_delay
from embodied_rl.system.untrusted_files import make_printable


def make_summary_table(report: Report) -> Table:
    """Make a table of success by task, by family, and overall; the report may come from an untrusted file."""
    metadata = report.metadata
    where = f"split {metadata.get('split', '')}"
    if metadata.get("episodes_for") == "publish":
        where += ", episodes to publish"
    if "benchmark" in metadata:
        changes = "".join(f", sim.{key}={value}" for key, value in metadata["changed"].items())
        where = f"{metadata['benchmark']}{'' if metadata['complete'] else ', not all of it'}{changes}"
    delay = describe_delay(metadata)
    where += f", {delay}" if delay else ""
    table = Table(title=_plain(f"{metadata.get('checkpoint', '')}, {where}"))
    table.add_column("")
    last = "to success" if delay else "at the end"
    for heading in ("success", "95 %", last, "episodes", "steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in report.tasks.items():
        table.add_row(_plain(f"  {name}"), *_cells(summary, bool(delay)))
    for name in metadata.get("not_run", ()):
        table.add_row(_plain(f"  {name}"), "not run")
    table.add_section()
    for name, summary in report.families.items():
        table.add_row(_plain(name), *_cells(summary, bool(delay)))
    table.add_section()
    table.add_row("all", *_cells(report.overall, bool(delay)), style="bold")
    return table


def _cells(summary: Summary, delayed: bool) -> tuple[str, ...]:
    success: Rate = summary.success
    interval = f"{100 * success.low:.1f} – {100 * success.high:.1f}"
    quick = "–" if summary.steps_to_success is None else f"{summary.steps_to_success:.1f}"
    last = quick if delayed else f"{summary.success_at_end.rate:.1%}"
    return f"{success.rate:.1%}", interval, last, str(success.episodes), f"{summary.steps:.1f}"


def _plain(text: str) -> str:
    """Return a text for a cell, without markup and control characters."""
    return escape(make_printable(text))
