"""`embodied-rl figures`: redraw plots and tables of the documentation from tracked runs, and track further runs."""

from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.reports import tracked_evaluation
from embodied_rl.reports.figures import LIST, redraw
from embodied_rl.reports.tracked_evaluation import TrackedEvaluation
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
    tracked, drawn = draw_figures(config)
    for place, each in tracked.items():
        what = "replaced" if (results / place).exists() else "tracked"
        each.write(results / place)
        print(make_printable(f"{what}: {results / place}"))
    for path, text in drawn.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text, "results")
            print(make_printable(f"redrawn: {path}"))
    return 0


def check_figures(config: FiguresConfig) -> None:
    """Check that the figures can be drawn with the given runs; see `draw_figures`."""
    draw_figures(config)


def draw_figures(config: FiguresConfig) -> tuple[dict[str, TrackedRun | TrackedEvaluation], dict[Path, str]]:
    """Return runs and evaluations by their files in `results`, and every file with the figures redrawn; write nothing.

    Raises:
        UserError: there is no list of figures, `group` is no folder's name or missing for an evaluation, a run or
            evaluation is not finished, or a figure cannot be drawn with them.
    """
    if config.group is not None:
        check_folder_name(config.group, "group")
    places: dict[str, TrackedRun | TrackedEvaluation] = {}
    for path in config.runs:
        place, tracked = read_finished(Path(path), config.group)
        if place in places:
            raise UserError(f"{place} would hold two of the runs: track them by themselves.", code="runs-equal-seed")
        places[place] = tracked
    if not (Path(config.results) / LIST).is_file():
        message = f"results={config.results} has no {LIST}: run this in a clone, or name its folder of tracked runs."
        raise UserError(message, code="figures-missing")
    return places, redraw(Path(config.results).absolute(), places)


def read_finished(folder: Path, group: str | None) -> tuple[str, TrackedRun | TrackedEvaluation]:
    """Return what is to be tracked of a run or an evaluation, after its file below `results`."""
    if not TrackedEvaluation.is_evaluation(folder):
        run = TrackedRun.of(RunFolder.open(str(folder)))
        return f"{group or run.experiment}/s{run.seed}.json", run
    if group is None:
        message = f"{folder} is an evaluation: name its folder below results with group=<name>."
        raise UserError(message, code="group-missing")
    return f"{group}/{tracked_evaluation.FILE}", TrackedEvaluation.of(folder)
