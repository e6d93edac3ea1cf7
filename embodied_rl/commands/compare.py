"""`embodied-rl compare`: compare runs side by side, paired by shared episodes and averaged over seeds."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from embodied_rl.cli.json_output import offer_json
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.comparison import (
    REPORT,
    number_labels,
    read_entry,
    shorten_labels,
    to_data,
    to_markdown,
    write_comparison,
)
from embodied_rl.schema import CompareConfig
from embodied_rl.system.atomic_write import make_folder, write_text
from embodied_rl.system.untrusted_files import make_printable


def run(config: CompareConfig) -> int:
    """Compare reports; print Markdown, and write `compare.md` and `compare.html` to `out`.

    Raises:
        UserError: fewer than two runs are given, or a run has no evaluation.
    """
    check_reports(config)
    compare_reports([Path(text) for text in config.runs], make_folder(Path(config.out), "out"))
    return 0


def compare_sweep(folders: Sequence[Path], out: Path) -> None:
    """Compare what the runs of a sweep reported, as `run` does; a run that stopped before its report is named.

    Args:
        folders: of runs and evaluations.
        out: the sweep's folder.
    """
    reported = [folder for folder in dict.fromkeys(folders) if (folder / REPORT).is_file()]
    for folder in folders:
        if folder not in reported:
            print(f"{folder} has no report and is not compared.")
    if len(reported) > 1:
        compare_reports(reported, out)


def compare_reports(paths: Sequence[Path], out: Path) -> None:
    """Print the comparison of these reports as Markdown, and write `compare.md` and `compare.html` to a folder."""
    entries = number_labels(shorten_labels([read_entry(path) for path in paths]))
    markdown = to_markdown(entries)
    write_text(out / "compare.md", markdown)
    write_comparison(out / "compare.html", entries)
    print(make_printable(markdown))
    offer_json(to_data(entries))
    Console(stderr=True).print(f"Written: {out / 'compare.md'}, {out / 'compare.html'}", markup=False, soft_wrap=True)


def check_reports(config: CompareConfig) -> None:
    """Check that there are two runs or more, and that each has a readable report; raise `UserError` if not."""
    if len(config.runs) < 2:
        raise UserError(
            "Nothing to compare: give two runs or more, as in `embodied-rl compare <run> <run>`.", code="too-few-runs"
        )
    for text in config.runs:
        read_entry(Path(text))
