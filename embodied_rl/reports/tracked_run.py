"""Tracked runs: what the repository keeps of a training run, so that published figures can be drawn again.

A tracked run is one JSON file, `results/<group>/s<seed>.json`, of some 20 kB: settings, versions, machine, the course
of training, and the outcome of each episode of the reports before and after it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from embodied_rl.config.freeze import DataclassInstance, freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.audit_section import summarise_audit
from embodied_rl.reports.report import Rate, Report, read_purpose
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import LARGEST, Value, read_metrics, read_number
from embodied_rl.runs.provenance import FILE as PROVENANCE
from embodied_rl.runs.provenance import read_provenance, select_for_report
from embodied_rl.system.atomic_write import make_folder, write_text
from embodied_rl.system.untrusted_files import check_inside, read_json

FORMAT = "embodied-rl tracked run 1"
COURSE = ("iteration", "total/episodes", "total/decisions", "time/elapsed", "rollout/success", "eval/success")
"""Metrics that are kept of each iteration; null where an iteration has none."""
OF_FAMILY = "eval/success/"
"""What the name of a metric begins with that is kept, too, of each family that is evaluated while training."""
PURPOSES = ("report", "publish")
Tracked = TypeVar("Tracked", bound=DataclassInstance)
_REPORT = "report.json"
_FOLDERS = re.compile(r"(?<![\w./:])(?:/[^\s/'\",\]}]+)+/(?=[^\s/])")
"""The folders of an absolute path, without its last part."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one report.

    Attributes:
        families: of each family the numbers of its successes and its episodes.
        episodes: a digit for each episode in order, 1 for success.
        episodes_sha256: hash of the episodes; reports with the same hash can be paired.
        purpose: what the episodes are for, "report" or "publish".
        steps_to_success: control steps, mean over the successes; None without any, and in files of older versions.
    """

    families: Mapping[str, tuple[int, int]]
    episodes: str
    episodes_sha256: str
    purpose: str
    steps_to_success: float | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` if numbers of families are not those of the episodes, or another entry is impossible."""
        if self.steps_to_success is not None and not 0 <= self.steps_to_success <= LARGEST:  # false for NaN, too
            raise UserError(f"steps_to_success is {self.steps_to_success:g}", code="tracked-run-damaged")
        if any(not 0 <= known <= all_ for known, all_ in self.families.values()):
            message = "a family has more successes than episodes, or fewer than none"
            raise UserError(message, code="tracked-run-damaged")
        counts = sum(known for known, _ in self.families.values()), sum(all_ for _, all_ in self.families.values())
        if self.purpose not in PURPOSES:
            message = f"purpose '{self.purpose}' is none of {', '.join(PURPOSES)}"
            raise UserError(message, code="tracked-run-damaged")
        if set(self.episodes) - {"0", "1"} or counts != (self.episodes.count("1"), len(self.episodes)):
            message = "families do not have the successes and episodes that episodes lists"
            raise UserError(message, code="tracked-run-damaged")

    @staticmethod
    def of(report: Report) -> "Outcomes":
        """Take the outcomes from a report."""
        rates = {name: summary.success for name, summary in report.families.items()}
        return Outcomes(
            {name: (round(rate.rate * rate.episodes), rate.episodes) for name, rate in rates.items()},
            "".join("01"[each.success] for each in report.episodes),
            str(report.metadata["episodes_sha256"]),
            read_purpose(report.metadata),
            _round(report.overall.steps_to_success),
        )

    def rate(self, family: str | None = None) -> Rate:
        """Return the success of a family, or of all episodes, with Wilson's interval."""
        counts = (self.episodes.count("1"), len(self.episodes)) if family is None else self.families[family]
        return Rate.from_count(*counts)


@dataclass(frozen=True)
class TrackedRun:
    """What is kept of one training run.

    Attributes:
        settings: the words of its command besides the seed, in order.
        provenance: commit, versions, hardware, time and load; see `embodied_rl.runs.provenance.select_for_report`.
        course: metric of `COURSE`, or success of a family → its value in each iteration.
        before, after: reports of the initial policy and of the best checkpoint.
        interventions: of a human in each training episode on a robot, in order; empty without a human.
    """

    format: str
    experiment: str
    seed: int
    settings: tuple[str, ...]
    provenance: Mapping[str, Any]
    course: Mapping[str, tuple[float | None, ...]]
    before: Outcomes
    after: Outcomes
    interventions: tuple[int, ...] = ()

    @staticmethod
    def of(folder: RunFolder) -> "TrackedRun":
        """Read a finished run; of paths only the last part is kept.

        Raises:
            UserError: the run has no report before or after training, its source was changed, or a file of it is a link
                that leads elsewhere.
        """
        reports = folder.evaluations / "before" / _REPORT, folder.path / _REPORT
        for file in (folder.path / PROVENANCE, *reports):
            check_inside(folder.path, file)
        if folder.seed is None:
            message = f"{folder.path} is not named <time>_s<seed>, as a run's folder is: give it that name again."
            raise UserError(message, code="run-renamed")
        if not reports[1].is_file():
            raise UserError(f"{folder.path} is not finished: it has no {_REPORT}.", code="run-not-finished")
        provenance = select_for_report(read_provenance(folder.path))
        if "commit" not in provenance:
            message = f"{folder.path / PROVENANCE} is missing or lacks the commit, so the run cannot be repeated."
            raise UserError(message, code="run-not-reproducible")
        if provenance.get("dirty"):
            message = (
                f"{folder.path} ran with uncommitted changes (git.diff), so nobody can repeat it: commit, run again."
            )
            raise UserError(message, code="run-not-reproducible")
        before, after = map(Report.read, reports)
        if not (rows := read_metrics(folder.metrics)):
            raise UserError(f"{folder.metrics} holds no iteration.", code="metrics-missing")
        kept = [*COURSE, *sorted({name for row in rows for name in row if name.startswith(OF_FAMILY)})]
        audit = summarise_audit(folder.path)
        words = [word for word in folder.overrides() if not word.startswith(("seed=", "run.", "resume="))]
        content = {
            "format": FORMAT,
            "experiment": folder.experiment,
            "seed": folder.seed,
            "settings": words,
            "provenance": provenance | {"load_at_end": after.metadata.get("load_at_end")},
            "course": {name: [_round(row.get(name)) for row in rows] for name in kept},
            "before": asdict(Outcomes.of(before)),
            "after": asdict(Outcomes.of(after)),
            "interventions": audit.interventions if audit is not None and any(audit.interventions) else [],
        }
        return freeze_config(TrackedRun, json.loads(drop_folders(json.dumps(content))))

    @staticmethod
    def read(path: Path) -> "TrackedRun":
        """Read a file; raise `UserError` if it is no tracked run of this version."""
        run = read_tracked(path, TrackedRun, FORMAT)
        if any(count < 0 for count in run.interventions):
            raise UserError(f"{path}: an episode has fewer interventions than none.", code="tracked-run-damaged")
        if missing := set(COURSE) - set(run.course):
            raise UserError(f"{path}: course has no {min(missing)}.", code="tracked-run-damaged")
        if len(set(map(len, run.course.values()))) > 1 or not run.course["iteration"]:
            message = f"{path}: course should have one number of each metric for each iteration, at least one."
            raise UserError(message, code="tracked-run-damaged")
        for name, values in run.course.items():
            known = [value for value in values if value is not None]
            low, high = (0.0, 1.0) if "success" in name.split("/") else (0.0, LARGEST)
            if not all(low <= value <= high for value in known):  # false for NaN, too
                message = f"{path}: course has a {name} outside of {low:g} … {high:g}."
                raise UserError(message, code="tracked-run-damaged")
            if high == LARGEST and known != sorted(known):
                raise UserError(f"{path}: {name} falls in the course of the run.", code="tracked-run-damaged")
        if path.name != f"s{run.seed}.json":
            message = f"{path} holds a run of the seed {run.seed}: name it s{run.seed}.json."
            raise UserError(message, code="tracked-run-damaged")
        return run

    def write(self, path: Path) -> None:
        """Write the run to a file `results/<group>/s<seed>.json`."""
        make_folder(path.parent, "results")
        write_text(path, json.dumps(asdict(self), indent=None, separators=(",", ":")) + "\n", "results")


def read_tracked(path: Path, kind: type[Tracked], form: str) -> Tracked:
    """Read a file of a format as an instance of a dataclass; raise `UserError` if it is none."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != form:
        raise UserError(f"{path} is not of the format '{form}'.", code="tracked-run-damaged")
    try:
        return freeze_config(kind, content)
    except UserError as error:
        raise UserError(f"{path}: {error}", code="tracked-run-damaged") from error


def drop_folders(text: str) -> str:
    """Remove the folders of absolute paths from a text, and keep their last part."""
    return _FOLDERS.sub("", text)


def _round(value: Value) -> float | None:
    number = read_number(value)
    return None if number is None else float(f"{number:.6g}")
