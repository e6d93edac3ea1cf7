"""Training runs that differ only in the reward, with the same seeds, run sequentially.

The series can be interrupted: finished runs are read, an unfinished one is resumed.
"""

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import BenchConfig, TrainConfig

SPARSE = "sparse"
_ALL_SCORES = ("reward.wait_share=null", "reward.deadline=60")  # a busy machine must not decide which scores count
ARMS: dict[str, tuple[str, ...]] = {
    SPARSE: (),
    "oracle": ("reward=oracle", *_ALL_SCORES),
    "embedded": ("reward=embedded", *_ALL_SCORES),
    "inverted": ("reward=inverted", *_ALL_SCORES),
    "hackable": ("reward=hackable", "reward.weight=3", *_ALL_SCORES),
    "rises": ("reward=hackable", "reward.weight=3", "reward.mode=rises", "reward.guard=false", *_ALL_SCORES),
}
"""What each arm changes. "hackable" and "rises" have the same critic, which can be fooled, with the same weight: one
shapes by it, the other pays its rises, which changes what is optimal."""


@dataclass(frozen=True)
class ArmRun:
    """One training run of the comparison.

    Attributes:
        arm: see `ARMS`. seed: of the run.
        overrides: of the run's command, but for its seed and where it goes.
        root: folder of all runs.
        label: name of the arm's folder below it.
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
        """Return the newest folder of this run, finished or not; None if there is none.

        Raises:
            UserError: it was run with other settings.
        """
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


def list_runs(config: BenchConfig, root: Path) -> list[ArmRun]:
    """List the runs of the comparison, all arms of a seed before the next seed.

    Raises:
        UserError: an arm is unknown, or a typed key is one that the arms set.
    """
    for arm in config.arms:
        if arm not in ARMS:
            raise UserError(
                f"arms: there is no arm '{arm}'.{suggest_name(arm, [*ARMS])} They are {', '.join(ARMS)}.",
                code="reward-arm-unknown",
            )
    if SPARSE not in config.arms:
        raise UserError(
            f"arms: all others are compared with '{SPARSE}', so it has to be among them.", code="reward-arm-missing"
        )
    shared = (*choose_typed(config.run.overrides), *choose_length(config))
    return [
        ArmRun(arm, seed, (*shared, *ARMS[arm]), root, f"{config.run.experiment}_{arm}")
        for seed in range(config.seed, config.seed + config.seeds)
        for arm in config.arms
    ]


def choose_typed(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the typed overrides that are of the training runs.

    Raises:
        UserError: one of them is what the arms differ in, or what the comparison sets.
    """
    own = {item.name for item in fields(BenchConfig)} - {item.name for item in fields(TrainConfig)}
    kept = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] == "reward" or key in ("train.iterations", "resume", "sim.progress"):
            raise UserError(
                f"{override}: the comparison sets this itself, for each arm; `decisions` says how long.",
                code="key-set-by-command",
            )
        if key not in own and key != "seed" and key.partition(".")[0] != "run":
            kept.append(override)
    return tuple(kept)


def choose_length(config: BenchConfig) -> tuple[str, ...]:
    """Return the overrides that make all runs equally long, and report progress to scorers in all of them alike."""
    rollout = config.sim.num_envs * config.train.decisions
    return (f"train.iterations={math.ceil(config.decisions / rollout)}", "sim.progress=true")


def run_arms(runs: Sequence[ArmRun]) -> Iterator[tuple[ArmRun, RunFolder]]:
    """Run what is missing, one after the other; yield each run with its folder as soon as it is finished.

    Raises:
        UserError: a run did not finish, or was run with other settings before.
    """
    for run in runs:
        folder = run.find()
        if folder is None or not is_finished(folder):
            started = folder is not None and any(folder.checkpoints.glob("[0-9]*"))
            command = run.command(folder if started else None)
            code = subprocess.run([sys.executable, "-m", "embodied_rl", *command], check=False).returncode
            folder = run.find()
            if folder is None or not is_finished(folder):
                raise UserError(
                    f"The run of arm {run.arm}, seed {run.seed}, ended with code {code} and has not finished; see "
                    "above. The same command once more goes on from there.",
                    code="run-not-finished",
                )
        yield run, folder


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run has written its report."""
    return (folder.path / "report.json").is_file()
