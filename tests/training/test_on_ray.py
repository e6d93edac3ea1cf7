"""A run on a Ray cluster equals that of one machine to the bit, also after processes were killed."""

import os
import re
import secrets
import signal
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
def test_a_learner_killed_within_an_update_ends_the_run_and_resume_continues_to_the_bit(
    plugin_path: str, tmp_path: Path
) -> None:
    """In the third iteration, which follows a checkpoint."""
    changed = {"train.iterations": "3", "train.eval_every": "0", "algo.critic_warmup": "0"}
    kept = [word for word in SMALL if word.partition("=")[0] not in changed]
    waiting = ("algo.name=waiting", f"algo.marks={tmp_path}", "algo.hold=3")
    long = [f"{key}={value}" for key, value in changed.items()]
    settings = ("train", *kept, *REACHING, *AHEAD, "staleness=0", *long, *waiting, *RAY)
    environment = {"PYTHONPATH": plugin_path, **TOKEN}
    with started_apart(tmp_path / "disturbed", *settings, **environment) as process:
        assert process.wait_until(lambda: any(tmp_path.glob("updating-*"))), process.output()
        (rank,) = actors(process, "ray::RankHost")
        os.kill(rank.pid, signal.SIGKILL)
        (tmp_path / "learn").touch()
        code, output = process.finish()
        assert process.iterations() == 2
    assert code == 1 and re.search(rf"rank 0 failed first:\nrank 0 \(pid {rank.pid} on node ", output), output
    undisturbed = complete(tmp_path / "undisturbed", *settings, **environment)
    with started_apart(tmp_path / "disturbed", "train", "resume=last", **environment) as process:
        code, output = process.finish()
        assert code == 0 and process.run is not None, output
        assert_same(process.run, undisturbed)
