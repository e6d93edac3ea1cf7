"""Rollout workers beside the ranks: to the bit what ranks collect, unless they may be ahead; then by so much."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from tests.support.running import (
    REACHING,
    SMALL,
    TABLETOP,
    assert_learned_alike,
    complete,
    figures,
    in_chunk,
    started,
    with_plan,
)

pytestmark = [pytest.mark.process, pytest.mark.thorough]

WORKERS = ("plan.ranks=2", "plan.rollout_workers=2")
AHEAD = ("mode=async", "staleness=1", "plan.ranks=1", "plan.rollout_workers=2")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param((), id="sync"),
        pytest.param(("mode=async", "staleness=0"), id="staleness 0", marks=pytest.mark.slow),
    ],
)
def test_rollout_workers_collect_the_bits_of_ranks(mode: tuple[str, ...], reference: Path, tmp_path: Path) -> None:
    assert_learned_alike(complete(tmp_path, "train", *SMALL, *TABLETOP, *WORKERS, *mode), reference)


def test_curricula_of_workers_learn_the_same(typed: Callable[..., Any], tmp_path: Path) -> None:
    settings = (*SMALL, *REACHING, "curriculum=success_rate", "curriculum.rate=0.5", "plan.ranks=1")
    for root, workers in (("own", 0), ("workers", 1)):
        assert main(with_plan(["train", *settings, f"plan.rollout_workers={workers}", f"run.root={root}"])) == 0
    own, workers = (next((tmp_path / root).glob("*/*")) for root in ("own", "workers"))
    assert_learned_alike(workers, own)
    assert any("curriculum/effective_tasks" in row for row in figures(own))


def test_late_starts_of_workers_are_those_of_ranks(typed: Callable[..., Any], tmp_path: Path) -> None:
    late = ("train.late_starts=0.5", "train.late_decisions=1", "seed=2")
    for root, workers in (("own", 0), ("workers", 1)):
        words = (*SMALL, *REACHING, *late, "plan.ranks=1", f"plan.rollout_workers={workers}", f"run.root={root}")
        assert main(with_plan(["train", *words])) == 0
    own, workers = (next((tmp_path / root).glob("*/*")) for root in ("own", "workers"))
    assert_learned_alike(workers, own)
    assert any(row.get("rollout/late_episodes", 0) > 0 for row in figures(own))


def test_a_killed_rollout_worker_costs_time_alone(plugin_path: str, tmp_path: Path) -> None:
    """In the second chunk of its third rollout, where all wait."""
    settings = ("train", *SMALL, *REACHING, "sim.marks=.", "sim.hold=8", *AHEAD, "staleness=0")
    for folder in ("undisturbed", "disturbed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "undisturbed" / "go").touch()
    undisturbed = complete(tmp_path / "undisturbed", *settings, PYTHONPATH=plugin_path)
    with started(tmp_path / "disturbed", *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(in_chunk(tmp_path / "disturbed", 8)) == 2), process.output()
        victim = in_chunk(tmp_path / "disturbed", 8)[0]
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "disturbed" / "go").touch()
        code, output = process.finish()
        assert code == 0, output
        assert f"(pid {victim}) was killed by SIGKILL" in output
        assert "A new worker collects its part of rollout" in output
        assert process.run is not None
        assert_learned_alike(process.run, undisturbed)
        assert figures(process.run)[-1]["workers/restarts"] == 1


@pytest.mark.slow
def test_decisions_are_as_old_as_they_may_be_also_after_a_kill(plugin_path: str, tmp_path: Path) -> None:
    held = ("sim.marks=.", "sim.hold=17")  # in the sixth rollout
    settings = ("train", *SMALL, *REACHING, "sim.seconds=0.02", "train.iterations=12", *held, *AHEAD)
    with started(tmp_path, *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: process.iterations() >= 5), process.output()
        process.kill()
    (tmp_path / "go").touch()
    with started(tmp_path, "train", "resume=last", PYTHONPATH=plugin_path) as process:
        code, output = process.finish()
        assert code == 0, output
        assert process.run is not None
        rows = figures(process.run)
    assert [row["iteration"] for row in rows] == list(range(1, 13))
    assert all(row["staleness/max"] <= 1 and row["staleness/masked"] == 0 for row in rows)
    assert sum(row["staleness/share_1"] for row in rows) / len(rows) > 0.3, "they are ahead"
    assert rows[0]["staleness/max"] == 0, "the first version cannot be older"


RATIOS = [
    pytest.param(ranks, workers, marks=[] if (ranks, workers) == (3, 2) else pytest.mark.slow)
    for ranks in (1, 2, 3)
    for workers in (1, 2, 3)
]


@pytest.mark.parametrize(("ranks", "workers"), RATIOS)
def test_any_number_of_ranks_learns_from_any_number_of_workers(
    ranks: int, workers: int, plugin_path: str, tmp_path: Path
) -> None:
    changed = ("sim.num_envs", "train.iterations", "train.final_episodes", "train.eval_episodes")
    small = [word for word in SMALL if word.partition("=")[0] not in changed]
    sizes = ("sim.num_envs=6", "train.iterations=3", "train.final_episodes=3", "train.eval_episodes=3")
    plan = (f"plan.ranks={ranks}", f"plan.rollout_workers={workers}")
    run = complete(tmp_path, "train", *small, *REACHING, *sizes, "mode=async", *plan, PYTHONPATH=plugin_path)
    assert [row["total/decisions"] for row in figures(run)] == [18, 36, 54]


def test_collectors_respect_the_staleness(typed: Callable[..., Any]) -> None:
    code, _, err = typed("train", *SMALL, *REACHING, "mode=async", "plan=colocated", "plan.rollout_workers=0")
    assert code == 2 and "plan.rollout_workers must be at least 1" in err
    code, _, err = typed("train", *SMALL, *REACHING, *WORKERS, "plan=split", "plan.policy=process")
    assert code == 2 and "plan.policy=process has no meaning with plan.rollout_workers" in err
