"""A run on a Ray cluster equals that of one machine to the bit, also after processes were killed."""

import os
import re
import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.running import (
    REACHING,
    SMALL,
    TABLETOP,
    Process,
    assert_learned_alike,
    assert_same,
    complete,
    figures,
    started_apart,
)

pytestmark = [pytest.mark.process, pytest.mark.thorough]
RAY = ("runtime=ray", "cluster=local")
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
APART = ("plan=split", "plan.ranks=2", "plan.rollout_workers=2", "plan.workers=1", "mode=async", "staleness=0")
AHEAD = ("plan=colocated", "plan.ranks=1", "plan.rollout_workers=2", "mode=async", "sim.seconds=0.05")


def test_ranks_workers_and_simulators_as_actors_change_no_bit(reference: Path, tmp_path: Path) -> None:
    assert_learned_alike(complete(tmp_path, "train", *SMALL, *TABLETOP, *APART, *RAY, **TOKEN), reference)


def actors(process: Process, title: str) -> list[psutil.Process]:
    """The processes of a run's cluster with this title; they have sessions of their own."""
    return [each for each in process.children() if each.cmdline()[:1] and each.cmdline()[0].startswith(title)]


@pytest.mark.slow
def test_a_killed_rollout_worker_costs_time_alone(plugin_path: str, tmp_path: Path) -> None:
    settings = ("train", *SMALL, *REACHING, *AHEAD, "staleness=0")
    undisturbed = complete(tmp_path / "undisturbed", *settings, PYTHONPATH=plugin_path)
    with started_apart(tmp_path / "disturbed", *settings, *RAY, PYTHONPATH=plugin_path, **TOKEN) as process:
        assert process.wait_until(lambda: process.iterations() >= 2), process.output()
        os.kill(actors(process, "ray::Host")[0].pid, signal.SIGKILL)
        code, output = process.finish()
        assert code == 0, output
        assert "A new worker collects its part of rollout" in output
        assert process.run is not None
        assert_learned_alike(process.run, undisturbed)


@pytest.mark.slow
def test_a_learner_killed_within_an_update_ends_the_run_and_resume_goes_on_to_the_bit(
    plugin_path: str, tmp_path: Path
) -> None:
    """In the third iteration, which follows a checkpoint: both workers have ended their three chunks for it."""
    changed = {"train.iterations": "4", "train.eval_every": "0", "algo.critic_warmup": "0", "algo.critic_steps": "500"}
    kept = [word for word in SMALL if word.partition("=")[0] not in changed]
    long = [f"{key}={value}" for key, value in changed.items()]
    settings = ("train", *kept, *REACHING, *AHEAD, "staleness=0", *long, f"sim.marks={tmp_path}", *RAY)
    environment = {"PYTHONPATH": plugin_path, **TOKEN}
    with started_apart(tmp_path / "disturbed", *settings, **environment) as process:
        assert process.wait_until(lambda: chunks(tmp_path) == [9, 9]), process.output()
        (rank,) = actors(process, "ray::RankHost")
        time.sleep(0.15)  # an update takes about a second
        assert process.iterations() == 2, "the update was over before it could be disturbed"
        os.kill(rank.pid, signal.SIGKILL)
        code, output = process.finish(within=60.0)
        assert process.iterations() == 2
    assert code == 1 and re.search(rf"rank 0 failed first:\nrank 0 \(pid {rank.pid} on node ", output), output
    undisturbed = complete(tmp_path / "undisturbed", *settings, **environment)
    with started_apart(tmp_path / "disturbed", "train", "resume=last", **environment) as process:
        code, output = process.finish()
        assert code == 0 and process.run is not None, output
        assert_same(process.run, undisturbed)


def chunks(folder: Path) -> list[int]:
    """How many each simulator has ended in training."""
    return [path.read_text().split().count("end") for path in folder.glob("[0-9]*")]


@pytest.mark.slow
def test_staleness_is_bounded_there_too(plugin_path: str, tmp_path: Path) -> None:
    run = complete(tmp_path, "train", *SMALL, *REACHING, *AHEAD, "staleness=1", *RAY, PYTHONPATH=plugin_path, **TOKEN)
    rows = figures(run)
    assert all(row["staleness/max"] <= 1 for row in rows) and any(row["staleness/share_1"] > 0 for row in rows)


@pytest.mark.slow
def test_a_simulator_killed_within_a_chunk_costs_its_own_episodes(plugin_path: str, tmp_path: Path) -> None:
    apart = ("plan=split", "plan.ranks=1", "plan.rollout_workers=2", "plan.workers=2", "mode=async", "sim.seconds=0.1")
    settings = ("train", *SMALL, *REACHING, *apart, f"sim.marks={tmp_path}", *RAY)
    with started_apart(tmp_path, *settings, PYTHONPATH=plugin_path, **TOKEN) as process:
        assert process.wait_until(lambda: process.iterations() >= 2), process.output()
        assert process.wait_until(lambda: bool(in_chunk(tmp_path))), process.output()
        os.kill(in_chunk(tmp_path)[0], signal.SIGKILL)
        code, output = process.finish()
        assert code == 0 and process.run is not None, output
        last = figures(process.run)[-1]
    assert last["workers/restarts"] == 1
    assert last["workers/lost_episodes"] == 2, "those of one of four simulators of eight environments"


def in_chunk(folder: Path) -> list[int]:
    """Processes whose simulator has begun a chunk of training, and not ended it."""
    return [int(path.name) for path in folder.glob("[0-9]*") if path.read_text().split()[-1:] == ["begin"]]


@pytest.mark.slow
def test_a_killed_policy_worker_costs_nothing(plugin_path: str, tmp_path: Path) -> None:
    settings = ("train", *SMALL, *REACHING, "sim.seconds=0.05", "plan.ranks=1", "plan.policy=process")
    undisturbed = complete(tmp_path / "undisturbed", *settings, PYTHONPATH=plugin_path)
    with started_apart(tmp_path / "disturbed", *settings, *RAY, PYTHONPATH=plugin_path, **TOKEN) as process:
        assert process.wait_until(lambda: process.iterations() >= 2), process.output()
        (worker,) = actors(process, "ray::Host")
        os.kill(worker.pid, signal.SIGKILL)
        code, output = process.finish()
        assert code == 0 and process.run is not None, output
        assert "A new worker takes over with the same weights; nothing is lost." in output
        assert_learned_alike(process.run, undisturbed)
