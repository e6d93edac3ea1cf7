"""Whoever of a run is killed, in a rollout or in an update: one message names it, and the run continues bit for bit."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.running import REACHING, SMALL, Process, assert_same, complete, started_apart

pytestmark = [pytest.mark.process, pytest.mark.thorough]

SOON = 120.0
"""Seconds in which the others must have noticed."""

DECISIONS, ITERATION = 3, 3
LONG = {
    "train.iterations": "3", "train.decisions": str(DECISIONS), "train.eval_every": "0", "algo.critic_warmup": "0",
}  # fmt: skip
"""The third iteration follows a checkpoint."""

HOLD = ("sim.marks=.", f"sim.hold={(ITERATION - 1) * DECISIONS + 2}", "algo.name=waiting", "algo.marks=.",
        f"algo.hold={ITERATION}")  # fmt: skip
MOMENTS = {"rollout": "go", "update": "learn"}
"""Where everybody waits for a file: in the second chunk of that iteration's rollout, and in its update."""

PLANS = {"colocated": (), "split": ("plan=split", "plan.ranks=2", "plan.workers=1")}


def training(plan: str) -> tuple[str, ...]:
    kept = [word for word in SMALL if word.partition("=")[0] not in LONG]
    changed = (f"{key}={value}" for key, value in LONG.items())
    return ("train", *kept, *REACHING, *changed, *HOLD, *PLANS[plan])


@pytest.fixture(scope="module")
def references(plugin_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator["References"]:
    yield References(plugin_path, tmp_path_factory.mktemp("undisturbed"), {})


@dataclass
class References:
    """Undisturbed finished runs, made on demand."""

    plugin_path: str
    folder: Path
    made: dict[str, Path]

    def __getitem__(self, plan: str) -> Path:
        if plan not in self.made:
            folder = self.folder / plan
            folder.mkdir()
            go_on(folder)
            self.made[plan] = complete(folder, *training(plan), PYTHONPATH=self.plugin_path)
        return self.made[plan]


def other_rank(process: Process) -> psutil.Process:
    """Rank 1 of a run that trains."""
    assert process.wait_until(lambda: process.iterations() >= 1), process.output()
    (rank,) = [child for child in psutil.Process(process.process.pid).children() if "run_rank" in child.cmdline()[-2]]
    return rank


def marks(folder: Path, rank: psutil.Process) -> list[str]:
    """The words "begin" and "end" of each chunk of training that a rank's simulator executed."""
    files = [folder / str(process.pid) for process in (rank, *rank.children())]
    return [word for file in files if file.is_file() for word in file.read_text().split()]


def wait_until_within(process: Process, folder: Path, moment: str) -> psutil.Process:
    """Until rank 1 waits in a rollout, or in an update."""
    rank, chunk = other_rank(process), (ITERATION - 1) * DECISIONS + 2
    (folder / next(file for name, file in MOMENTS.items() if name != moment)).touch()
    if moment == "rollout":
        assert process.wait_until(lambda: marks(folder, rank).count("begin") == chunk), process.output()
        assert marks(folder, rank)[-1] == "begin"
    else:
        assert process.wait_until((folder / f"updating-{rank.pid}").exists), process.output()
    assert process.iterations() == ITERATION - 1
    return rank


def go_on(folder: Path) -> None:
    """Nobody waits any more."""
    for file in MOMENTS.values():
        (folder / file).touch()


def continued(folder: Path, plugin_path: str) -> Path:
    with started_apart(folder, "train", "resume=last", PYTHONPATH=plugin_path) as process:
        code, output = process.finish()
        assert code == 0, output
        assert process.run is not None
        return process.run


CASES = [
    ("colocated", "rollout"),
    pytest.param("colocated", "update", marks=pytest.mark.slow),
    pytest.param("split", "rollout", marks=pytest.mark.slow),
    pytest.param("split", "update", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("plan", "moment"), CASES)
def test_a_killed_rank_is_named_and_leaves_no_trace(
    plan: str, moment: str, references: References, plugin_path: str, tmp_path: Path
) -> None:
    with started_apart(tmp_path, *training(plan), PYTHONPATH=plugin_path) as process:
        rank = wait_until_within(process, tmp_path, moment)
        os.kill(rank.pid, signal.SIGKILL)
        go_on(tmp_path)
        code, output = process.finish(within=SOON)
        assert process.iterations() == ITERATION - 1
    assert code == 1, output
    said = rf"embodied-rl: rank 1 failed first:\nrank 1 \(pid {rank.pid}\) was killed by SIGKILL \(by hand, or because"
    assert re.search(said, output), output
    assert "Traceback" not in output and output.count("failed first") == 1
    if plan == "colocated":  # else it is the simulators that say something
        assert re.search(r"The last lines of its log:\n(.*\n)*4 environments are ready\n", output), output
    assert "Once the cause is gone, continue with: embodied-rl train resume=runs/" in output
    assert_same(continued(tmp_path, plugin_path), references[plan])


@pytest.mark.parametrize("moment", [pytest.param("rollout", marks=pytest.mark.slow), "update"])
def test_a_killed_driver_leaves_no_trace(moment: str, references: References, plugin_path: str, tmp_path: Path) -> None:
    with started_apart(tmp_path, *training("colocated"), PYTHONPATH=plugin_path) as process:
        wait_until_within(process, tmp_path, moment)
        process.kill()
        go_on(tmp_path)
        assert process.iterations() == ITERATION - 1
    assert_same(continued(tmp_path, plugin_path), references["colocated"])
