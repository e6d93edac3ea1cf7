"""`embodied-rl figures`: redraw plots and tables of the documentation from tracked runs, and track further runs."""

from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.reports.figures import LIST, redraw
from embodied_rl.reports.tracked_run import TrackedRun
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import FiguresConfig
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import make_printable


def run(config: FiguresConfig) -> int:
    """Track the given runs, then redraw all figures of `results`; print each file that changed.

    Raises:
        UserError: a run is not finished, or a figure cannot be drawn.
    """
    results = Path(config.results).absolute()
    tracked = [TrackedRun.of(RunFolder.open(path)) for path in config.runs]
    check_figures(config)
    places = [f"{config.group or each.experiment}/s{each.seed}.json" for each in tracked]
    if len(twice := [place for place in places if places.count(place) > 1]):
        raise UserError(f"{twice[0]} would hold two of the runs: track them by themselves.", code="runs-equal-seed")
    for each, place in zip(tracked, places, strict=True):
        what = "replaced" if (results / place).exists() else "tracked"
        print(make_printable(f"{what}: {each.write(results, config.group or each.experiment)}"))
    for path, text in redraw(results).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text, "results")
            print(make_printable(f"redrawn: {path}"))
    return 0


def check_figures(config: FiguresConfig) -> None:
    """Check that there is a list of figures, and that `group` is a folder's name; raise `UserError` if not."""
    if config.group is not None:
        check_folder_name(config.group, "group")
    if not (Path(config.results) / LIST).is_file():
        message = f"results={config.results} has no {LIST}: run this in a clone, or name its folder of tracked runs."
        raise UserError(message, code="figures-missing")
