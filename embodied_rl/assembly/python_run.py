"""Training runs from Python: `embodied_rl.train`."""

import re
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.reports.report import Report
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import Value, read_metrics

_FOLDER = re.compile(r"Run folder: (.+)")
_ERROR = re.compile(r"embodied-rl: (?:\[([a-z0-9-]+)\] )?(.+)")
_USER_ERROR = 2
_KEPT_LINES = 50


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        path: its folder, for `embodied_rl.load_policy` and the commands.
    """

    path: Path

    @property
    def metrics(self) -> list[dict[str, Value]]:
        """Return the metrics of each iteration: name → value."""
        return read_metrics(self.path / "metrics.jsonl")

    @property
    def before(self) -> Report:
        """Return the report of the policy that training began with."""
        return Report.read(RunFolder(self.path).evaluations / "before" / "report.json")

    @property
    def report(self) -> Report:
        """Return the report of the best checkpoint, on episodes never trained on."""
        return Report.read(self.path / "report.json")

    @property
    def films(self) -> list[Path]:
        """Return the films of the report."""
        return sorted(RunFolder(self.path).videos.rglob("*.mp4"))


def train_in_process(experiment: str, overrides: Sequence[str], seed: int) -> Run:
    """Train in a new process; see `embodied_rl.train`."""
    if wrong := [word for word in overrides if not isinstance(word, str) or word.startswith("-")]:
        message = f"overrides are texts such as train.iterations=2, not {wrong[0]!r}: options are for the command line."
        raise UserError(message, code="override-invalid")
    words, here = ["train", f"experiment={experiment}", f"seed={seed}", *overrides], Path.cwd()
    command = [sys.executable, "-u", "-m", "embodied_rl", *words]
    folder, last = None, deque[str](maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                print(line, end="", flush=True)
                last.append(line.rstrip())
                folder = folder or _FOLDER.fullmatch(last[-1])
        except BaseException:
            run.terminate()  # saves what it has; an interrupt from the keyboard reaches it by itself
            raise
    if run.returncode == 0 and folder is not None:
        return Run(here / folder[1])
    said = next((match for line in reversed(last) if (match := _ERROR.fullmatch(line))), None)
    if said is not None and run.returncode == _USER_ERROR:
        raise UserError(said[2], code=said[1] or "")
    message = said[2] if said is not None else next((line for line in reversed(last) if line), "no output")
    raise RunFailed(f"{' '.join(words)} ended with code {run.returncode}: {message}")
