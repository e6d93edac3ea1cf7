"""Kills, signals and damage: a continued run ends in the same bits; a run in use refuses a second process."""

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from embodied_rl.runs.lock import FILE, hold_run
from tests.support.running import (
    ITERATIONS,
    REACHING,
    SMALL,
    TABLETOP,
    Process,
    assert_same,
    complete,
    figures,
    in_chunk,
    started,
    started_apart,
)

pytestmark = [pytest.mark.process, pytest.mark.thorough]

Moment = Callable[[Process], bool]


def after_iteration(number: int) -> Moment:
    """Somewhere in the iteration that follows, which takes a fraction of a second: rollout, update or evaluation."""

    def reached(process: Process) -> bool:
        if process.iterations() < number:
            return False
        time.sleep(random.random() * 0.4)
        return True

    return reached


def while_saving(number: int) -> Moment:
    """While a checkpoint has its temporary name, or as soon after it as can be."""

    def reached(process: Process) -> bool:
        run = process.run
        return run is not None and any((run / "checkpoints" / f"{name}{number:08d}").exists() for name in (".tmp-", ""))

    return reached


def while_finishing(process: Process) -> bool:
    """Between the last checkpoint and the report."""
    pointer = process.run / "checkpoints" / "last" if process.run else Path()
    return pointer.is_file() and pointer.read_text().strip() == f"{ITERATIONS:08d}"


class Missed(Exception):  # noqa: N818
    """The run was over before it could be disturbed."""


def at_the_right_moment(disturb: Callable[[Path], Path], folder: Path) -> Path:
    """What comes of disturbing a run: on a busy machine, of the first of some in which the moment was not missed."""
    for attempt in range(4):
        with suppress(Missed):
            return disturb(folder / f"{attempt}")
    pytest.fail("the moment was missed each time")


def kill_again_and_again(folder: Path, moments: list[Moment], *settings: str) -> Path:
    """Start a training run, kill it at each moment, continue it each time, and let it finish."""

    def disturb(folder: Path) -> Path:
        arguments = ("train", *settings)
        for moment in moments:
            with started(folder, *arguments) as process:
                if not process.wait_until(lambda moment=moment, process=process: moment(process)):
                    code, output = process.finish()
                    assert code == 0, output
                    raise Missed
                process.kill()
                arguments = ("train", f"resume={process.run}")
        with started(folder, *arguments) as process:
            code, output = process.finish()
            assert code == 0 or "is finished" in output, output
            if code:
                raise Missed
            assert process.run is not None
            return process.run

    return at_the_right_moment(disturb, folder)


def test_kills_leave_no_trace(reference: Path, tmp_path: Path) -> None:
    """In the middle of saving for the first time, of an iteration, and of the last evaluation."""
    run = kill_again_and_again(tmp_path, [while_saving(2), after_iteration(3), while_finishing], *SMALL, *TABLETOP)
    assert_same(run, reference)
    assert not list((run / "checkpoints").glob(".*"))


METHODS = {
    "filtered": ("algo=filtered", "algo.steps=4"),
    "awr": ("algo=awr", "algo.steps=4", "algo.critic_steps=4"),
    "recap": ("algo=recap", "algo.steps=4", "algo.critic_steps=4"),
    "dsrl": ("algo=dsrl", "algo.updates=3"),
    "dsrl, stored noise": ("algo=dsrl", "algo.variant=sac", "algo.updates=3"),
    "nft": ("algo=nft",),
}


@pytest.mark.parametrize("method", METHODS)
def test_kills_leave_no_trace_in_what_is_stored(method: str, tmp_path: Path) -> None:
    """In an iteration, and while a checkpoint is saved, to which the storage returns."""
    common = (word for word in SMALL if not word.startswith("algo.critic"))
    settings = (*common, *TABLETOP, "plan=colocated", "plan.ranks=1", *METHODS[method])
    straight = complete(tmp_path / "straight", "train", *settings)
    run = kill_again_and_again(tmp_path / "killed", [after_iteration(2), while_saving(4)], *settings)
    assert_same(run, straight)


def unfinished(finished: Path, folder: Path) -> Path:
    """A copy of a run as it was before its last evaluation."""
    run = folder / "runs" / "train" / finished.name
    shutil.copytree(finished, run)
    shutil.rmtree(run / "eval" / "after")
    for name in ("report.html", "report.json", "policy.safetensors"):
        (run / name).unlink()
    return run


def test_a_truncated_checkpoint_and_a_full_disk(reference: Path, tmp_path: Path) -> None:
    """The newest checkpoint is refused by name and the one before it used. Then files may not grow for a while, which
    the system reports as it does a full disk or a spent quota. Neither costs the run a bit."""
    run = unfinished(reference, tmp_path)
    damaged = run / "checkpoints" / f"{ITERATIONS:08d}" / "tensors.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    refusal = f"{ITERATIONS:08d}/tensors.safetensors is damaged"
    with started(tmp_path, "train", "resume=last") as process:
        psutil.Process(process.process.pid).rlimit(psutil.RLIMIT_FSIZE, (20_000, 20_000))
        code, output = process.finish()
    assert code == 2, output
    assert refusal in output and "Using step 4 instead" in output
    assert f"The disk is full: could not write {run.relative_to(tmp_path)}/checkpoints/{ITERATIONS:08d}" in output
    assert "run.root" in output and "Traceback" not in output
    with started(tmp_path, "train", "resume=last") as process:
        code, output = process.finish()
    assert code == 0 and refusal in output, output
    assert_same(run, reference)


def test_a_run_without_a_usable_checkpoint_is_refused_by_all_ranks(reference: Path, tmp_path: Path) -> None:
    run = unfinished(reference, tmp_path)
    for file in run.glob("checkpoints/*/tensors.safetensors"):
        file.write_bytes(b"")
    with started(tmp_path, "train", "resume=last") as process:
        code, output = process.finish()
    assert code == 2 and "Traceback" not in output, output
    assert output.count("No usable checkpoint in") == 1


def test_a_run_resumes_without_its_initial_policy_file(reference: Path, tmp_path: Path) -> None:
    run = unfinished(reference, tmp_path)
    config = run / "config.yaml"
    told = config.read_text()
    assert "checkpoint: null" in told
    config.write_text(told.replace("checkpoint: null", "checkpoint: deleted.safetensors", 1))
    with started(tmp_path, "train", "resume=last") as process:
        code, output = process.finish()
    assert code == 0, output
    config.write_text(told)
    assert_same(run, reference)


def interrupt(process: Process, moment: Moment, number: signal.Signals) -> str:
    reached = process.wait_until(lambda: moment(process))
    if reached:
        process.signal_everybody(number)
    code, output = process.finish()
    if not reached or "Report: " in output:
        raise Missed
    assert code == 128 + number, output
    assert f"Continue with: embodied-rl train resume={process.run.relative_to(process.folder)}" in " ".join(
        output.split()
    )
    return output


def test_ctrl_c_saves_and_leaves(reference: Path, tmp_path: Path) -> None:
    """While training after the iteration under way; in the last evaluation at once, and the report is made later."""

    def disturb(folder: Path) -> Path:
        with started(folder, "train", *SMALL, *TABLETOP) as process:
            output = interrupt(process, lambda p: p.iterations() >= 2, signal.SIGINT)
            assert "Stopping after this iteration" in output and "Stopped and saved" in output
            done = process.iterations()
            assert (process.run / "checkpoints" / "last").read_text() == f"{done:08d}\n"
            if done == ITERATIONS:
                raise Missed
            assert done > 2
        with started(folder, "train", "resume=last") as process:
            interrupt(process, while_finishing, signal.SIGINT)
            assert not (process.run / "report.html").exists()
        with started(folder, "train", "resume=last") as process:
            assert process.finish()[0] == 0
            assert (process.run / "report.html").is_file()
            return process.run

    assert_same(at_the_right_moment(disturb, tmp_path), reference)


def test_a_run_outlives_its_simulators(plugin_path: str, tmp_path: Path) -> None:
    """A worker killed in a chunk of training, and one that evaluates, are replaced; what was lost is counted."""
    settings = (*SMALL, *REACHING, "plan=split", "sim.marks=.", "sim.hold=8")
    with started_apart(tmp_path, "train", *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(in_chunk(tmp_path, 8)) == 2), process.output()
        workers = {child.pid: child for child in process.children() if "processes.worker" in " ".join(child.cmdline())}
        training = [workers.pop(pid) for pid in in_chunk(tmp_path, 8)]
        assert len(workers) == 2, "those that evaluate"
        training[0].kill()
        next(iter(workers.values())).kill()
        (tmp_path / "go").touch()
        code, output = process.finish()
        assert code == 0, output
        assert f"(pid {training[0].pid}) was killed by SIGKILL" in output, "whichever rank it belonged to"
        last = figures(process.run)[-1]
    assert last["iteration"] == ITERATIONS and (process.run / "report.html").is_file()
    assert last["workers/restarts"] == 1
    assert last["workers/lost_episodes"] == 4, "those of its four environments"


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


def test_a_run_that_trains_refuses_a_second_process(plugin_path: str, tmp_path: Path) -> None:
    """A fresh run, on two ranks with simulators of their own, which do not refuse each other."""
    hold = ("sim.marks=.", "sim.hold=4")
    with started(tmp_path, "train", *SMALL, *REACHING, *hold, "plan=split", PYTHONPATH=plugin_path) as first:
        assert first.wait_until(lambda: first.iterations() >= 1), first.output()
        assert first.run is not None
        with started(tmp_path / "second", "train", f"resume={first.run}", PYTHONPATH=plugin_path) as second:
            code, output = second.finish()
        assert first.process.poll() is None, "it still trains"
        (tmp_path / "go").touch()
        assert first.finish()[0] == 0, first.output()
        assert (first.run / FILE).read_text() == "", "nobody holds it now"
    assert code == 2 and "Traceback" not in output
    assert f"is in use: process {first.process.pid} on " in output


def test_a_resumed_run_is_refused_before_anything_is_written(
    typed: Callable[..., Any], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(reference, run)
    (run / "report.html").unlink()
    with hold_run(run):
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != FILE}
        code, _, err = typed("train", f"resume={run}")
        assert code == 2 and f"{run} is in use" in err
        assert typed("train", f"resume={run}", "--dry-run")[0] == 0, "it changes nothing"
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != FILE} == before
    assert typed("train", f"resume={run}")[0] == 0
