"""`torchrun -m embodied_rl train …`: the bits of a run that starts its ranks itself; mistakes and deaths told once."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from embodied_rl.runs.metrics_file import read_metrics
from tests.support.running import DEADLINE, SMALL, TABLETOP, assert_same

pytestmark = [pytest.mark.process, pytest.mark.thorough]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MODULE = ("-m", "embodied_rl")
IMPATIENT = ("-m", "tests.support.impatient")


@contextmanager
def torchrun(folder: Path, *arguments: str, program: Sequence[str] = MODULE) -> Iterator[subprocess.Popen]:
    """A running command; whatever happened, nothing of it is left."""
    command = [*TORCHRUN, *program, *arguments]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                child.kill()
            process.kill()
            process.wait()


def said(folder: Path) -> str:
    return (folder / "output.txt").read_text()


def run_of(folder: Path) -> Path:
    return next((folder / "runs").glob("*/*"))


def test_the_same_bits_as_ranks_of_our_own(reference: Path, tmp_path: Path) -> None:
    with torchrun(tmp_path, "train", *SMALL, *TABLETOP) as process:
        assert process.wait(DEADLINE) == 0, said(tmp_path)
    assert said(tmp_path).count("iteration 6/6") == said(tmp_path).count("Run folder:") == 1
    assert len(list((tmp_path / "runs").glob("*/*"))) == 1
    assert_same(run_of(tmp_path), reference)


@pytest.mark.slow
def test_a_mistake_is_reported_once(tmp_path: Path) -> None:
    with torchrun(tmp_path, "train", *SMALL, "algo.lrr=1") as process:
        assert process.wait(DEADLINE) != 0
    assert said(tmp_path).count("unknown key 'algo.lrr'. Did you mean 'algo.lr'?") == 1
    assert said(tmp_path).count("Traceback") == 1, "torchrun's own, of its agent"
    assert not (tmp_path / "runs").exists()


def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    """And the run says how to go on, and torchrun who was killed."""
    endless = (*SMALL, *TABLETOP, "train.iterations=100000")
    with torchrun(tmp_path, "train", *endless, program=IMPATIENT) as process:
        until = time.monotonic() + DEADLINE
        while not list(tmp_path.glob("runs/*/*/metrics.jsonl")) or not read_metrics(run_of(tmp_path) / "metrics.jsonl"):
            assert time.monotonic() < until and process.poll() is None, said(tmp_path)
            time.sleep(0.02)
        ranks = psutil.Process(process.pid).children()
        next(rank for rank in ranks if rank.environ()["RANK"] == "1").send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE) != 0
        assert not [rank for rank in ranks if rank.is_running()]
    assert "rank 1 reported nothing" in said(tmp_path) and "SIGKILL" in said(tmp_path)
    assert f"continue with: embodied-rl train resume={run_of(tmp_path).relative_to(tmp_path)}" in said(tmp_path)
