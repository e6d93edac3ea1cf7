"""Tracked evaluations: what the repository keeps of one `embodied-rl eval`, for tables of the documentation.

A tracked evaluation is `results/<group>/evaluation.json`: the policies by name and hash, the command, commit, versions
and machine, and the outcome of each episode.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.report import Report
from embodied_rl.reports.tracked_run import Outcomes, drop_folders, read_tracked
from embodied_rl.runs.provenance import select_for_report
from embodied_rl.system.atomic_write import make_folder, write_text
from embodied_rl.system.untrusted_files import check_inside

FORMAT = "embodied-rl tracked evaluation 1"
FILE = "evaluation.json"
_KIND = "evaluation"


@dataclass(frozen=True)
class TrackedEvaluation:
    """What is kept of one evaluation.

    Attributes:
        policies: of each policy its name and the SHA-256 of its file.
        provenance: command, commit, versions, hardware, time and load; see `select_for_report`.
        outcomes: of its episodes.
    """

    format: str
    policies: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]
    outcomes: Outcomes

    @staticmethod
    def is_evaluation(folder: Path) -> bool:
        """Tell whether a folder holds a finished evaluation, and not a run.

        Raises:
            UserError: its report is damaged, or a link that leads elsewhere.
        """
        file = folder / "report.json"
        check_inside(folder, file)
        return file.is_file() and Report.read(file).metadata.get("kind") == _KIND

    @staticmethod
    def of(folder: Path) -> "TrackedEvaluation":
        """Read a finished evaluation; of paths only the last part is kept.

        Raises:
            UserError: the folder has no report of an evaluation, its report is a link that leads elsewhere, or the
                source was changed.
        """
        check_inside(folder, folder / "report.json")
        report = Report.read(folder / "report.json")
        if report.metadata.get("dirty"):
            message = f"{folder} ran with uncommitted changes, so nobody can repeat it: commit, evaluate again."
            raise UserError(message, code="run-not-reproducible")
        try:
            policies = [{name: each[name] for name in ("policy", "sha256")} for each in report.metadata["policies"]]
        except (KeyError, TypeError) as error:
            message = f"{folder / 'report.json'}: metadata.policies does not name each policy and its hash."
            raise UserError(message, code="report-damaged") from error
        content = {
            "format": FORMAT,
            "policies": policies,
            "provenance": select_for_report(report.metadata),
            "outcomes": asdict(Outcomes.of(report)),
        }
        return freeze_config(TrackedEvaluation, json.loads(drop_folders(json.dumps(content))))

    @staticmethod
    def read(path: Path) -> "TrackedEvaluation":
        """Read a file; raise `UserError` if it is no tracked evaluation of this version."""
        return read_tracked(path, TrackedEvaluation, FORMAT)

    def write(self, path: Path) -> None:
        """Write the evaluation to a file `results/<group>/evaluation.json`."""
        make_folder(path.parent, "results")
        write_text(path, json.dumps(asdict(self), indent=None, separators=(",", ":")) + "\n", "results")
