"""Series of training runs that a benchmark compares: arms that differ in some settings, each with several seeds.

The runs take turns. A series can be interrupted: finished runs are read, an unfinished one is resumed.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import BenchConfig, TrainConfig

REPORT = "report.json"
"""The file of a finished run."""


@dataclass(frozen=True)
class ArmRun:
    """One training run of a comparison, in the folder `label` below the root of all runs.

    `overrides` are those of its command, without the seed and the folder.
    """

    arm: str
    seed: int
    overrides: tuple[str, ...]
    root: Path
    label: str

    def command(self, resumed: RunFolder | None) -> list[str]:
        """Return the words of the command that starts the run, or continues it."""
        where = [f"run.root={self.root}"]
        if resumed is not None:
            return ["train", f"resume={resumed.path}", *where]
        return ["train", *self.overrides, f"seed={self.seed}", *where, f"run.experiment={self.label}"]

    def find(self) -> RunFolder | None:
        """Return the newest folder of this run or None; raise `UserError` if it was run with other settings."""
        found = sorted((self.root / self.label).glob(f"*_s{self.seed}"))
        if not found:
            return None
        folder = RunFolder(found[-1])
        if (typed := folder.overrides()) != (wanted := tuple(self.command(None)[1:])):
            differ = ", ".join(sorted(set(typed) ^ set(wanted)))
            raise UserError(
                f"{folder.path} was run with other settings ({differ}): take another folder with out=.",
                code="run-of-other-settings",
            )
        return folder


def list_shared(config: BenchConfig, groups: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return the words typed for all runs: those of training, without the seed and the place of runs.

    Args:
        config: of the benchmark.
        groups, keys: what the comparison sets itself, such as "reward" and "train.iterations".

    Raises:
        UserError: one of these was typed.
    """
    own = {item.name for item in fields(BenchConfig)} - {item.name for item in fields(TrainConfig)}
    shared = list[str]()
    for override in config.run.overrides:
        key = override.lstrip("+~").partition("=")[0]
        group = key.partition(".")[0]
        if group in groups or key in keys:
            raise UserError(
                f"{override}: the comparison sets this itself, for each arm; `decisions` says how long.",
                code="key-set-by-command",
            )
        if key not in own and key != "seed" and group != "run":
            shared.append(override)
    return shared


def run_arms(runs: Sequence[ArmRun]) -> Iterator[tuple[ArmRun, RunFolder]]:
    """Run what is missing, one after the other; yield each run with its folder as soon as it is finished.

    Raises:
        UserError: a run did not finish, or was run with other settings before.
    """
    for run in runs:
        folder = run.find()
        if folder is None or not (folder.path / REPORT).is_file():
            started = folder is not None and any(folder.checkpoints.glob("[0-9]*"))
            command = run.command(folder if started else None)
            code = subprocess.run([sys.executable, "-m", "embodied_rl", *command], check=False).returncode
            folder = run.find()
            if folder is None or not (folder.path / REPORT).is_file():
                raise UserError(
                    f"The run of arm {run.arm}, seed {run.seed}, ended with code {code} and has not finished; see "
                    "above. The same command once more goes on from there.",
                    code="run-not-finished",
                )
        yield run, folder
