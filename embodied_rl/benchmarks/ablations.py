"""`embodied-rl bench ablations`: train the demo with one changed setting at a time and tabulate the results.

The series can be stopped and restarted: finished runs are read, an unfinished run is continued. It tests π_RL's
ablation (arXiv:2510.25889, table on LIBERO-Spatial): success while exploring falls with more noise and with fewer
denoise steps, the deployed flow's success hardly changes; after training, more noise has learned more.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from embodied_rl.actors.learning import checkpoint
from embodied_rl.reports.page import format_percent
from embodied_rl.reports.report import Report
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import read_metrics

ROWS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "noise a = 0.2": ("algo.sampler.noise_level=0.2",),
    "noise a = 0.5": ("algo.sampler.noise_level=0.5",),
    "denoise steps K = 1": ("algo.sampler.denoise_steps=1", "algo.sampler.step_weights=null"),
    "denoise steps K = 2": ("algo.sampler.denoise_steps=2", "algo.sampler.step_weights=[1,2]"),
    "denoise steps K = 8": ("algo.sampler.denoise_steps=8", "algo.sampler.step_weights=[0,0,0,0,1,1,2,2]"),
    "all steps stochastic": ("algo.sampler.layers=full", "algo.sampler.step_weights=null"),
    "critic on the prefix": ("policy.critic=prefix",),
    "critic on the expert": ("policy.critic=expert",),
    "perception frozen": ("policy.freeze_perception=true", "algo.auxiliary=0"),
}
EARLY, LATE = 2, 5
"""Iterations before the policy moves (the critic's warm-up), and at the end, that training success is averaged over."""


@dataclass(frozen=True)
class Row:
    """The results of one setting under one seed; a field is None where the setting has not been run."""

    name: str
    seed: int
    report: Report | None = None
    before: Report | None = None
    exploring_before: float | None = None
    exploring_after: float | None = None

    def cells(self) -> list[str]:
        """Return the table cells: name, seed, and success, exploring and deployed, before and after training."""
        if self.report is None or self.before is None:
            return [self.name, str(self.seed), *["not run"] * 4]
        early, late = (f"{100 * (value or 0):.0f} %" for value in (self.exploring_before, self.exploring_after))
        before, after = (format_percent(report.success) for report in (self.before, self.report))
        return [self.name, str(self.seed), early, before, late, after]


HEADINGS = ("setting", "seed", "exploring, before", "deployed, before", "exploring, after", "deployed, after")


def run_all(root: Path, seeds: Sequence[int]) -> Iterator[Row]:
    """Run the missing training runs in sequence; yield each row as soon as it is known."""
    for seed in seeds:
        for name, overrides in ROWS.items():
            folder = start_or_continue(root, name, overrides, seed)
            yield read_row(name, seed, folder)


def read_all(root: Path, seeds: Sequence[int]) -> list[Row]:
    """Read the rows of all settings and seeds that have been run so far."""
    return [read_row(name, seed, find_run(root, name, seed)) for seed in seeds for name in ROWS]


def start_or_continue(root: Path, name: str, overrides: Sequence[str], seed: int) -> RunFolder | None:
    """Run or continue a row in a subprocess, so that a failed run does not end the series; return its folder."""
    folder = find_run(root, name, seed)
    if folder is not None and is_finished(folder):
        return folder
    if folder is not None and checkpoint.list_steps(folder.checkpoints):
        arguments = [f"resume={folder.path}", f"run.root={root}"]
    else:
        chosen = ["experiment=demo", f"run.root={root}", f"run.experiment={make_label(name)}", f"seed={seed}"]
        arguments = [*chosen, *overrides]
    subprocess.run([sys.executable, "-m", "embodied_rl", "train", *arguments], check=False)
    return find_run(root, name, seed)


def find_run(root: Path, name: str, seed: int) -> RunFolder | None:
    """Find the newest run of a row, finished or not; return None if the row has no run."""
    found = sorted((root / make_label(name)).glob(f"*_s{seed}*"))
    return RunFolder(found[-1]) if found else None


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run has written its report."""
    return (folder.path / "report.json").is_file()


def make_label(name: str) -> str:
    """Build the experiment name of a row: `ablation_` and the row's name in letters, digits and underscores."""
    return "ablation_" + "".join(c if c.isalnum() else "_" for c in name.replace("=", "")).replace("__", "_")


def read_row(name: str, seed: int, folder: RunFolder | None) -> Row:
    """Build a row from the files of its run."""
    if folder is None or not is_finished(folder):
        return Row(name, seed)
    success = [float(row["rollout/success"]) for row in read_metrics(folder.metrics) if "rollout/success" in row]  # type: ignore[arg-type]
    return Row(
        name,
        seed,
        report=Report.read(folder.path / "report.json"),
        before=Report.read(folder.evaluations / "before" / "report.json"),
        exploring_before=fmean(success[:EARLY]),
        exploring_after=fmean(success[-LATE:]),
    )


def to_markdown(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)]) + "\n"
