"""A rank or the driver is killed, in a rollout or in an update: one message names it, the run continues bit for bit."""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.running import REACHING, SMALL, Process, assert_same, complete, started_apart

pytestmark = [pytest.mark.process, pytest.mark.thorough]

DECISIONS, ITERATION = 3, 3
CHUNK = (ITERATION - 1) * DECISIONS + 2
"""In the rollout of the third iteration, which follows a checkpoint."""
LONG = {
    "train.iterations": "3", "train.decisions": str(DECISIONS), "train.eval_every": "0", "algo.critic_warmup": "0",
}  # fmt: skip
TRAIN = (
    "train", *(word for word in SMALL if word.partition("=")[0] not in LONG), *REACHING,
    *(f"{key}={value}" for key, value in LONG.items()), "sim.marks=.", f"sim.hold={CHUNK}",
    "algo.name=waiting", "algo.marks=.", f"algo.hold={ITERATION}",
)  # fmt: skip
GO = {"rollout": "go", "update": "learn"}
"""The files that all processes wait for, in that chunk and in that iteration's update."""


@pytest.fixture(scope="module")
def undisturbed(plugin_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    for file in GO.values():
        (folder / file).touch()
    return complete(folder, *TRAIN, PYTHONPATH=plugin_path)


def wait_until_within(process: Process, folder: Path, moment: str) -> psutil.Process:
    """Return the process of rank 1 when it waits in a rollout, or in an update."""
    assert process.wait_until(lambda: process.iterations() >= 1), process.output()
    (rank,) = [child for child in psutil.Process(process.process.pid).children() if "run_rank" in child.cmdline()[-2]]
    (folder / next(file for name, file in GO.items() if name != moment)).touch()
    marks = folder / str(rank.pid)
    if moment == "rollout":
        assert process.wait_until(lambda: marks.read_text().split().count("begin") == CHUNK), process.output()
    else:
        assert process.wait_until((folder / f"updating-{rank.pid}").exists), process.output()
    return rank


@pytest.mark.parametrize(
    ("moment", "victim"),
    [("rollout", "rank"), ("update", "driver"), pytest.param("update", "rank", marks=pytest.mark.slow)],
)
def test_a_killed_process_is_named_and_leaves_no_trace(
    moment: str, victim: str, undisturbed: Path, plugin_path: str, tmp_path: Path
) -> None:
    with started_apart(tmp_path, *TRAIN, PYTHONPATH=plugin_path) as process:
        rank = wait_until_within(process, tmp_path, moment)
        if victim == "driver":
            process.kill()
        else:
            os.kill(rank.pid, signal.SIGKILL)
        for file in GO.values():
            (tmp_path / file).touch()
        if victim == "rank":
            code, output = process.finish(within=120.0)
            said = rf"embodied-rl: rank 1 failed first:\nrank 1 \(pid {rank.pid}\) was killed by SIGKILL \(by hand, or"
            assert code == 1 and re.search(said, output), output
            assert "Traceback" not in output and output.count("failed first") == 1
            assert re.search(r"The last lines of its log:\n(.*\n)*4 environments are ready\n", output), output
            assert "Once the cause is gone, continue with: embodied-rl train resume=runs/" in output
        assert process.iterations() == ITERATION - 1
    with started_apart(tmp_path, "train", "resume=last", PYTHONPATH=plugin_path) as process:
        code, output = process.finish()
        assert code == 0 and process.run is not None, output
        assert_same(process.run, undisturbed)
