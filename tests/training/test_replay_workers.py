"""Rollout workers that collect for algorithms on replay: the bits of ranks, and what ranks see while they go on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.assembly import build
from embodied_rl.cli import run_command
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.main import main
from embodied_rl.commands.preparation import compose_config
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runs.metrics_file import read_metrics
from embodied_rl.training.replay_checks import check_replay
from tests.support.refusals import refuses
from tests.support.running import (
    REACHING,
    SMALL,
    assert_learned_alike,
    complete,
    figures,
    in_chunk,
    started,
    with_plan,
)
from tests.support.stopping import assert_stopped_goes_on_alike

pytestmark = [pytest.mark.process, pytest.mark.thorough]

PLAIN = (*(word for word in SMALL if "critic" not in word), *REACHING)
CRITIC = ("algo=awr", "algo.steps=4", "algo.critic_steps=4", "replay.capacity=8")
KINDS = {
    "filtered": ("algo=filtered", "algo.steps=4"),
    "awr": CRITIC,
    "recap": ("algo=recap", "algo.steps=4", "algo.critic_steps=4", "algo.guidance=2"),
    "dsrl": ("algo=dsrl", "algo.updates=3", "algo.hidden=16"),
    "dsrl, stored": ("algo=dsrl", "algo.variant=sac", "algo.updates=3", "algo.hidden=16"),
}
ONE = ("plan=colocated", "plan.ranks=1")
AHEAD = (*ONE, "plan.rollout_workers=1", "mode=async")
STILL = (*PLAIN, *CRITIC, "algo.lr=0")
"""The policy stays as it is, so that what is collected does not depend on when weights arrive; the critic learns."""


def run(root: str, *words: str) -> Path:
    """The folder of a run that came to a good end in this process."""
    assert main(with_plan(["train", *words, f"run.root={root}"])) == 0
    (folder,) = Path(root).glob("*/*")
    return folder.absolute()


def assert_stored_alike(run: Path, expected: Path) -> None:
    """Each collector stored the same, to the bit."""
    files = sorted(path.relative_to(expected) for path in expected.glob("replay/collector_*/*.npy"))
    assert files and all((run / file).read_bytes() == (expected / file).read_bytes() for file in files)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "awr")) for kind in KINDS])
def test_a_worker_collects_the_bits_of_a_rank(kind: str, typed: Callable[..., Any]) -> None:
    """Which learns the same from them; two workers, too, which store them apart."""
    own = run("own", *PLAIN, *KINDS[kind], *ONE)
    assert any(row["update/steps"] > 0 for row in figures(own)), "something was learned"
    worker = run("worker", *PLAIN, *KINDS[kind], *ONE, "plan.rollout_workers=1")
    assert_learned_alike(worker, own)
    assert_stored_alike(worker, own)
    if kind in ("awr", "dsrl"):
        two = run("two", *PLAIN, *KINDS[kind], *ONE, "plan.rollout_workers=2", "mode=async", "staleness=0")
        assert_learned_alike(two, own)
        stored = [ReplayStorage.open(two / "replay" / f"collector_{number}").format.tracks for number in range(2)]
        assert stored == [4, 4]


def test_each_rank_learns_from_its_own_workers(typed: Callable[..., Any]) -> None:
    words = (*PLAIN, *CRITIC, "plan=colocated", "plan.ranks=2")
    own, workers = run("own", *words), run("workers", *words, "plan.rollout_workers=2")
    assert_learned_alike(workers, own)
    assert_stored_alike(workers, own)


def test_offline_episodes_stay_offline_beside_two_workers(typed: Callable[..., Any]) -> None:
    """They lie behind the storages of the workers, of which there are more than one."""
    run("first", *PLAIN, *KINDS["filtered"], *ONE, "replay.root=stored")
    words = (*PLAIN, *KINDS["dsrl"], *ONE, "replay.preload=stored", "algo.offline_share=0.5")
    assert_learned_alike(run("workers", *words, "plan.rollout_workers=2"), run("own", *words))


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_rows_that_workers_write_ahead_change_nothing(staleness: int, typed: Callable[..., Any]) -> None:
    """Of a policy that does not change, collected ahead, all that is learned equals that of turns, to the bit."""
    turns = run("turns", *STILL, *ONE)
    ahead = run("ahead", *STILL, *AHEAD, f"staleness={staleness}")
    assert_learned_alike(ahead, turns)
    assert all(row["staleness/max"] <= staleness and row["staleness/masked"] == 0 for row in figures(ahead))
    losses = [row["update/critic_loss"] for row in figures(ahead)]
    assert len(set(losses)) == len(losses), "the critic learns"
    # 3 decisions of up to two rows; two iterations between checkpoints, those ahead, and the one before a checkpoint
    stored = ReplayStorage.open(ahead / "replay" / "collector_0")
    assert stored.format.spare == 2 * 3 * (2 + staleness + 1)


def test_a_stopped_run_goes_on_to_the_bit(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop where the last checkpoint is an iteration old, and the worker has written since."""
    settings = (*PLAIN, *KINDS["dsrl"], *AHEAD, "train.eval_every=0", "replay.capacity=8", "staleness=0")
    assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_stopped_run_whose_worker_was_ahead_goes_on_alike(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*STILL, *AHEAD, "staleness=2", "train.eval_every=0")
    assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch, alike=assert_learned_alike)


def test_a_killed_run_goes_on_alike(plugin_path: str, tmp_path: Path) -> None:
    """In a chunk of the sixth rollout, while the learner waits for it or learns from the fifth."""
    settings = ("train", *STILL, "sim.marks=.", "sim.hold=17", *AHEAD, "train.eval_every=0")
    (tmp_path / "straight").mkdir()
    (tmp_path / "straight" / "go").touch()
    straight = complete(tmp_path / "straight", *settings, PYTHONPATH=plugin_path)
    killed = tmp_path / "killed"
    with started(killed, *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(in_chunk(killed, 17)) == 1 and process.iterations() >= 4)
        process.kill()
    (killed / "go").touch()
    assert_learned_alike(complete(killed, "train", "resume=last", PYTHONPATH=plugin_path), straight)


@pytest.mark.parametrize("chunk", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_killed_worker_goes_on_in_its_storage(chunk: int, plugin_path: str, tmp_path: Path) -> None:
    """In its first rollout, of which only some rows are written, and in its third one."""
    settings = ("train", *PLAIN, *CRITIC, "sim.marks=.", f"sim.hold={chunk}", *AHEAD, "staleness=0")
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "undisturbed" / "go").touch()
    undisturbed = complete(tmp_path / "undisturbed", *settings, PYTHONPATH=plugin_path)
    with started(tmp_path / "disturbed", *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(in_chunk(tmp_path / "disturbed", chunk)) == 1), process.output()
        os.kill(in_chunk(tmp_path / "disturbed", chunk)[0], signal.SIGKILL)
        (tmp_path / "disturbed" / "go").touch()
        run = process.complete()
    assert_learned_alike(run, undisturbed)
    assert_stored_alike(run, undisturbed)
    assert figures(run)[-1]["workers/restarts"] == 1


def test_collectors_report_their_throughput(typed: Callable[..., Any]) -> None:
    """Decisions per second while they collect, which is at most that of the whole iteration where they take turns."""
    rows = read_metrics(run("turns", *PLAIN, *CRITIC, *ONE, "plan.rollout_workers=1") / "metrics.jsonl")
    assert all(row["time/collected_per_second"] > row["time/decisions_per_second"] > 0 for row in rows)
    assert np.isfinite([row["time/collected_per_second"] for row in rows]).all()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("mode=stream",), "mode=stream"),
        (("mode=async", "runtime=ray", *ONE), "runtime=ray"),
        (("mode=async", "plan=colocated", "plan.ranks=2", "plan.rollout_workers=1"), "plan.rollout_workers=1"),
        (("mode=async", "plan=colocated", "plan.ranks=2", "plan.rollout_workers=3"), "plan.rollout_workers=3"),
        (("mode=async", "replay.collect=false", "replay.preload=.", *ONE), "replay.collect=false"),
        (("mode=async", "policy.delay=1", "policy.executed=1", *ONE), "policy.delay=1"),
        (("mode=async", "reward=oracle", *ONE), "reward.name="),
    ],
)
def test_what_workers_cannot_do_for_replay_is_refused_by_its_key(
    typed: Callable[..., Any], words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """In one line, and without a run folder."""
    code, _, err = typed("train", *PLAIN, *KINDS["filtered"], "sim.num_envs=6", *words)
    assert code == 2 and named in err and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()


def test_ranks_of_torchrun_do_not_read_what_workers_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be on other machines."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    command = list_commands()["train"]
    words = (*PLAIN, *KINDS["filtered"], "plan=colocated", "plan.ranks=2", "plan.rollout_workers=2")
    config = run_command.freeze_command_config(command, compose_config(command.config, words, command.values), words)
    with refuses("replay-with-rollout-workers", "torchrun"):
        check_replay(config, build.find_method(config.algo).needs)
