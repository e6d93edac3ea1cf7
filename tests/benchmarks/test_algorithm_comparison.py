"""Comparing algorithms: what is run, and what the table says of it, by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.benchmarks import algorithm_comparison, arms
from embodied_rl.benchmarks.algorithm_comparison import AlgorithmCurve, compare_curves, list_runs, make_comparison_table
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.run_command import freeze_command_config
from embodied_rl.commands import bench
from embodied_rl.commands.preparation import compose_config
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import BenchConfig
from tests.support.refusals import refuses

TYPED = ("what=algorithms", "experiment=demo", "plan=colocated", "plan.ranks=1", "decisions=5000", "seeds=2")


def configure(*typed: str) -> BenchConfig:
    command = list_commands()["bench"]
    return freeze_command_config(command, compose_config(command.config, typed, command.values, None), typed)


def test_runs_differ_in_algorithm_and_seed_and_are_equally_long(tmp_path: Path) -> None:
    runs = list_runs(configure(*TYPED), tmp_path, {"flow_sde": 3, "grpo": 7})
    assert [(run.arm, run.seed) for run in runs] == [("flow_sde", 0), ("grpo", 0), ("flow_sde", 1), ("grpo", 1)]
    shared = {"experiment=demo", "plan=colocated", "plan.ranks=1"}
    assert set(runs[0].command(None)) >= shared | {"algo=flow_sde", "train.iterations=3", "seed=0"}
    assert set(runs[3].command(None)) >= shared | {"algo=grpo", "train.iterations=7", "seed=1"}
    assert runs[3].label == "demo_grpo"


@pytest.mark.parametrize("typed", ["algo=grpo", "algo.lr=1", "train.iterations=4"])
def test_what_the_comparison_sets_is_refused(tmp_path: Path, typed: str) -> None:
    with refuses("key-set-by-command", typed):
        list_runs(configure(*TYPED, typed), tmp_path, {"flow_sde": 3})


@pytest.mark.thorough
def test_every_algorithm_is_checked_before_the_first_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there are can be run from the demo; a rollout of whole episodes is shorter, so that there are more."""
    asked = []
    monkeypatch.setattr(
        algorithm_comparison,
        "compare_algorithms",
        lambda config, root, iterations: (asked.append(iterations), ("", {}))[1],
    )
    bench.run(configure(*TYPED, f"out={tmp_path}"))
    (iterations,) = asked
    assert list(iterations) == ["flow_sde", "flow_noise", "grpo", "nft", "filtered", "awr", "recap", "dsrl"]
    assert iterations["flow_sde"] == iterations["filtered"] == -(-5000 // (96 * 24))
    assert 5000 / 96 > iterations["grpo"] == iterations["nft"] > iterations["flow_sde"]
    for call in (bench.run, bench.check_bench):
        with refuses("choice-unknown", "nothing"):
            call(configure(*TYPED, f"out={tmp_path}", "algorithms=[flow_sde,nothing]"))
        with refuses("algorithms-missing", "algorithms=[]"):
            call(configure(*TYPED, f"out={tmp_path}", "algorithms=[]"))
        with refuses("key-set-by-command", "replay.root"):
            call(configure(*TYPED, f"out={tmp_path}", "replay.root=shared"))
    assert len(asked) == 1
    bench.run(configure(*TYPED, f"out={tmp_path}", "algorithms=[nft,awr]", "replay_decisions=12000"))
    assert asked[1] == {"nft": iterations["nft"], "awr": -(-12_000 // (96 * 24))}


def test_curves_are_compared_where_all_have_come_to() -> None:
    curves = [
        AlgorithmCurve("slow", 0, (100, 200, 300), (60.0, 120.0, 180.0), (0.5, 0.6, 0.9), 0.4, 0.95),
        AlgorithmCurve("slow", 1, (100, 200, 300), (60.0, 120.0, 180.0), (0.6, 0.7, 0.8), 0.4, 0.85),
        AlgorithmCurve("quick", 0, (110, 220), (10.0, 20.0), (0.55, 0.65), 0.4, 0.65),
        AlgorithmCurve("quick", 1, (110, 250), (10.0, 21.0), (0.65, 0.75), 0.4, 0.75),
    ]
    episodes, seconds, (first, second) = compare_curves(curves)
    assert (episodes, seconds) == (220, 20.0)
    assert (first.algorithm, first.best.mean, first.episodes, first.seconds) == ("slow", pytest.approx(0.9), 300, 180)
    assert first.at_episodes.mean == pytest.approx(0.65), "the evaluations after 200 episodes"
    assert first.at_seconds.mean == pytest.approx(0.4), "no evaluation yet, so that before training"
    assert second.at_episodes.mean == pytest.approx(0.65), "one run's second evaluation came later"
    assert second.at_seconds.mean == pytest.approx(0.65) and second.best.low is not None
    table = make_comparison_table(episodes, seconds, [first, second])
    assert table.columns[0]._cells == ["slow", "quick"]  # pyright: ignore[reportPrivateUsage]
    assert table.columns[1].header == "220 episodes" and table.columns[2].header == "0.3 min"


def test_a_run_is_read_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"eval/before/report.json": 0.4, arms.REPORT: 0.9}
    monkeypatch.setattr(
        algorithm_comparison.Report, "read",
        lambda path: SimpleNamespace(success=SimpleNamespace(rate=rates[str(path.relative_to(tmp_path))])),
    )  # fmt: skip
    rows = [
        {"iteration": 1, "total/episodes": 10, "time/elapsed": 1.5},
        {"iteration": 2, "total/episodes": 20, "time/elapsed": 3.0, "eval/success": 0.5},
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert AlgorithmCurve.read("awr", 3, RunFolder(tmp_path)) == AlgorithmCurve(
        "awr", 3, (20,), (3.0,), (0.5,), 0.4, 0.9
    )
    metrics.write_text(json.dumps(rows[0]) + "\n")
    with refuses("eval-missing", "train.eval_every"):
        AlgorithmCurve.read("awr", 3, RunFolder(tmp_path))
