"""Comparing rewards: every arm's command is sound, runs are found again, and figures are right by hand."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.benchmarks import arms
from embodied_rl.benchmarks.arms import ArmRun, run_arms
from embodied_rl.benchmarks.reward_comparison import (
    ARMS,
    SuccessCurve,
    compare_arms,
    compare_rewards,
    list_runs,
)
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.run_command import freeze_command_config, load_preparation
from embodied_rl.commands.preparation import compose_config
from embodied_rl.reports.statistics import mean_interval, wilson_interval
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import BenchConfig
from tests.support.refusals import refuses

TYPED = ("what=potentials", "experiment=tabletop_chain", "decisions=5000", "seeds=2", "out=x", "algo.epochs=1")


def configure(*typed: str) -> BenchConfig:
    command = list_commands()["bench"]
    return freeze_command_config(command, compose_config(command.config, typed, command.values, None), typed)


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_arm_is_a_training_run_that_can_be_composed(tmp_path: Path) -> None:
    runs = list_runs(replace(configure(*TYPED), arms=tuple(ARMS)), tmp_path)
    assert [(run.arm, run.seed) for run in runs] == [(arm, seed) for seed in (0, 1) for arm in ARMS]
    train, seen = list_commands()["train"], []
    for run in runs[: len(ARMS)]:
        words = run.command(None)
        assert words[0] == "train" and "algo.epochs=1" in words and not {"decisions=5000", "out=x"} & set(words)
        config, _ = load_preparation(train).check(
            freeze_command_config(train, compose_config(train.config, words[1:], train.values, None), words[1:])
        )
        assert config.train.iterations == 3, "5,000 decisions are 3 rollouts of 96 × 24"
        assert config.sim.options["progress"] and config.sim.options["goals"] == 3 and config.seed == 0
        assert run.label == config.run.experiment == f"tabletop_chain_{run.arm}"
        seen.append((config.reward, replace(config, reward=None, run=None)))
    assert all(rest == seen[0][1] for _, rest in seen)
    rewards = {arm: reward for arm, (reward, _) in zip(ARMS, seen, strict=True)}
    assert rewards["sparse"].name is None and rewards["embedded"].name == "embedded"
    assert rewards["inverted"].options["judge"] == "inverted" and rewards["oracle"].mode == "late"
    assert rewards["rises"].mode == "rises" and not rewards["rises"].guard
    assert rewards["rises"].options == rewards["hackable"].options


@pytest.mark.thorough
@pytest.mark.parametrize(
    "typed", ["reward=oracle", "reward.weight=3", "+reward.weight=3", "train.iterations=4", "sim.progress=false"]
)
def test_what_the_comparison_sets_is_refused(tmp_path: Path, typed: str) -> None:
    config = configure(*TYPED)
    config = replace(config, run=replace(config.run, overrides=(*TYPED, typed)))
    with refuses("key-set-by-command"):
        list_runs(config, tmp_path)
    for names, code in ((("sparse", "orcale"), "reward-arm-unknown"), (("oracle",), "reward-arm-missing")):
        with refuses(code):
            list_runs(replace(configure(*TYPED), arms=names), tmp_path)


# -- runs -------------------------------------------------------------------------------------------------------------


def make_folder(run: ArmRun, *, finished: bool, checkpoint: bool = False, words: list[str] | None = None) -> RunFolder:
    folder = RunFolder(run.root / run.label / f"20260101-000000_s{run.seed}")
    (folder.checkpoints / "000001" if checkpoint else folder.checkpoints).mkdir(parents=True, exist_ok=True)
    folder.write_config("train:\n", (words or run.command(None))[1:])
    lines = [
        f'{{"iteration": {i}, "total/decisions": {i}00, "rollout/success": 0.5, "rollout/episodes": 10}}'
        for i in (1, 2)
    ]
    folder.metrics.write_text("\n".join(lines) + "\n")
    if finished:
        (folder.path / "report.json").write_text("{}")
    return folder


def play(monkeypatch: pytest.MonkeyPatch, finish: bool = True) -> list[list[str]]:
    commands: list[list[str]] = []

    def train(words: list[str], check: bool) -> SimpleNamespace:
        assert words[:3] == [sys.executable, "-m", "embodied_rl"] and not check
        commands.append(words[3:])
        if finish:
            given = dict(word.split("=", 1) for word in words[4:])
            if "resume" in given:
                Path(given["resume"], "report.json").write_text("{}")
            else:
                run = ArmRun("", int(given["seed"]), (), Path(given["run.root"]), given["run.experiment"])
                make_folder(run, finished=True, words=words[3:])
        return SimpleNamespace(returncode=0 if finish else 3)

    monkeypatch.setattr(arms.subprocess, "run", train)
    return commands


def test_finished_runs_are_read_unfinished_ones_continued_and_missing_ones_started(tmp_path, monkeypatch) -> None:
    runs = list_runs(replace(configure(*TYPED), arms=("sparse", "oracle", "inverted")), tmp_path)[:3]
    make_folder(runs[0], finished=True)
    stopped = make_folder(runs[1], finished=False, checkpoint=True)
    commands = play(monkeypatch)
    found = list(run_arms(runs))
    assert [run.arm for run, _ in found] == ["sparse", "oracle", "inverted"]
    assert commands == [["train", f"resume={stopped.path}", f"run.root={tmp_path}"], runs[2].command(None)]
    assert all((folder.path / "report.json").is_file() for _, folder in found)


def test_a_run_that_ends_early_ends_the_series_with_its_name(tmp_path, monkeypatch) -> None:
    play(monkeypatch, finish=False)
    with refuses("run-not-finished", "sparse", "seed 0", "code 3"):
        list(run_arms(list_runs(configure(*TYPED), tmp_path)))


def test_a_run_with_other_settings_is_not_taken_for_this_one(tmp_path) -> None:
    run = list_runs(configure(*TYPED), tmp_path)[0]
    make_folder(run, finished=True)
    longer = list_runs(configure(*TYPED[:2], "decisions=50000"), tmp_path)[0]
    with refuses("run-of-other-settings", "train.iterations=22", "out="):
        list(run_arms([longer]))


def test_the_whole_comparison_is_tabulated_and_kept(tmp_path, monkeypatch) -> None:
    play(monkeypatch)
    table, found = compare_rewards(replace(configure(*TYPED), arms=("sparse", "oracle")), tmp_path)
    assert found["decisions"] == 200 and [each["arm"] for each in found["arms"]] == ["sparse", "oracle"]
    assert "interval over seeds" in str(table.caption) and table.row_count == 2
    assert len(found["curves"]) == 4 and found["arms"][1]["gain"] == 0


# -- figures ----------------------------------------------------------------------------------------------------------


def curve(arm: str, seed: int, successes: list[int], episodes: int = 100) -> SuccessCurve:
    n = len(successes)
    return SuccessCurve(arm, seed, tuple(1000 * (i + 1) for i in range(n)), (episodes,) * n, tuple(successes))


def test_a_curve_is_read_from_metrics() -> None:
    rows = [
        {"iteration": 0, "total/decisions": 100, "rollout/success": 1 / 3, "rollout/episodes": 3},
        {"iteration": 1, "total/decisions": 200},
        {"eval/success": 0.4},
    ]
    assert SuccessCurve.read("oracle", 4, rows) == SuccessCurve("oracle", 4, (100, 200), (3, 0), (1, 0))
    with refuses("metrics-missing", "oracle", "seed 4"):
        SuccessCurve.read("oracle", 4, [{"eval/success": 0.4}])


def test_success_is_that_of_the_last_third_and_runs_are_cut_to_the_shortest() -> None:
    curves = [curve("sparse", 0, [0, 0, 0, 0, 40, 50]), curve("oracle", 0, [0, 0, 0, 0, 60, 70, 100, 100, 100])]
    decisions, (sparse, oracle) = compare_arms(curves, 0.6)
    assert decisions == 6000 and sparse.success == 0.45 and oracle.success == 0.65
    assert (sparse.low, sparse.high) == wilson_interval(90, 200) and sparse.gain is None
    assert oracle.gain == pytest.approx(0.2)
    half = 1.96 * ((0.45 * 0.55 + 0.65 * 0.35) / 200) ** 0.5
    assert (oracle.gain_low, oracle.gain_high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)


def test_several_seeds_are_paired() -> None:
    """Seeds differ by 40 points, the arms by 1, 2 and 3: only pairs can tell."""
    pairs = [(20, 21), (40, 42), (60, 63)]
    curves = [curve("sparse", seed, [s] * 3) for seed, (s, _) in enumerate(pairs)]
    curves += [curve("oracle", seed, [o] * 3) for seed, (_, o) in reversed([*enumerate(pairs)])]
    _, (_, oracle) = compare_arms(curves, 0.6)
    expected = mean_interval([0.01, 0.02, 0.03])
    assert (oracle.gain, oracle.gain_low, oracle.gain_high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert oracle.seeds == 3 and oracle.episodes == 300


def test_a_success_is_reached_where_a_window_of_iterations_has_it() -> None:
    assert curve("sparse", 0, [0, 100, 0, 0, 0, 0]).reach(0.6) is None
    assert curve("sparse", 0, [60] * 4 + [59, 60, 60, 60, 60, 60]).reach(0.6) == 10000
    assert curve("sparse", 0, [0, 60, 60, 60, 60, 60]).reach(0.6) == 6000
    assert curve("sparse", 0, [0] * 5, episodes=0).reach(0.6) is None
