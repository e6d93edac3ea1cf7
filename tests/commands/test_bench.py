"""`embodied-rl bench`: what is measured, the tables, and the files beside them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks import reward_comparison
from embodied_rl.commands import bench
from embodied_rl.schema import AlgoNode, BenchConfig, PolicyNode, SimNode
from tests.benchmarks.__main__ import NAMES
from tests.support.refusals import refuses


def config(tmp_path, **settings) -> BenchConfig:
    sim = SimNode("tabletop", num_envs=2, options={"image_size": 8})
    return BenchConfig(sim, PolicyNode("pocket"), AlgoNode("ppo"), out=str(tmp_path / "out"), seconds=0.1, **settings)


def shown(table) -> str:
    console = Console(width=80, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_an_unknown_measurement_is_answered_with_a_hint(tmp_path) -> None:
    with refuses("benchmark-unknown", "'tabletpo'", "'tabletop'", "sim=<name>"):
        bench.run(config(tmp_path, what="tabletpo"))


@pytest.mark.parametrize(("word", "name"), bench.MOVED.items())
def test_a_benchmark_that_has_moved_is_named(tmp_path, word: str, name: str) -> None:
    with refuses("benchmark-moved", f"tests.benchmarks {name}"):
        bench.run(config(tmp_path, what=word))
    assert name in NAMES


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["tabletop", "sim"])
def test_a_simulator_is_measured_and_written(tmp_path, capsys, what) -> None:
    bench.run(config(tmp_path, what=what))
    written = json.loads((tmp_path / "out" / "bench_tabletop.json").read_text())
    assert written["simulator"] == "tabletop" and written["envs"] == 2
    assert written["control_steps_per_second"] > 0 and written["ratio_to_bare"] > 0
    assert written["hardware"]["cores"] >= 1
    assert "bare loop" in capsys.readouterr().out


def test_rewards_are_compared_below_out(tmp_path, monkeypatch) -> None:
    asked = []

    def compare(settings: BenchConfig, root: Path) -> tuple[Table, dict]:
        asked.append((settings.decisions, root))
        return Table(), {"decisions": 2304}

    monkeypatch.setattr(reward_comparison, "compare_rewards", compare)
    bench.run(config(tmp_path, what="potentials", decisions=2000))
    assert asked == [(2000, tmp_path / "out" / "runs")] and asked[0][1].is_dir()
    assert json.loads((tmp_path / "out" / "bench_potentials.json").read_text())["decisions"] == 2304


def test_the_table_shows_speeds_and_ratios() -> None:
    found = {
        "envs": 4, "rounds": 5, "control_steps_between_pictures": 5, "control_steps_per_second": 3000.0,
        "bare_control_steps_per_second": 2500.0, "ratio_to_bare": 1.2, "transport": 0.034,
    }  # fmt: skip
    text = shown(bench.make_throughput_table("toy", found))
    for part in ("3,000", "2,500", "120.0%", "3.4%"):
        assert part in text


@pytest.mark.thorough
def test_delays_are_measured_with_their_cost(tmp_path, capsys) -> None:
    sim = SimNode("tabletop", num_envs=2, options={"horizon": 6})
    asked = replace(
        config(tmp_path, what="delay"),
        sim=sim,
        policy_file="asset:tabletop_careful.safetensors",
        episodes=2,
        delays=(0, 1, 3),
        strategies=("prefix", "naive"),
    )
    bench.run(asked)
    written = json.loads((tmp_path / "out" / "bench_delay.json").read_text())
    assert [(cell["strategy"], cell["delay"]) for cell in written["cells"]] == [
        ("no delay", 0), ("prefix", 1), ("naive", 1), ("prefix", 3), ("naive", 3),
    ]  # fmt: skip
    assert [cell["summary"] is None for cell in written["cells"]] == [False, True, False, True, True]
    assert written["cost"]["seconds"].keys() == {"plain", "replacement", "guided"} and len(written["sha256"]) == 64
    assert "load" in written and "load_at_end" in written
    printed = " ".join(capsys.readouterr().out.split())
    assert "prefix, d = 1: strategy=prefix: this policy was trained without" in printed and "plain" in printed
