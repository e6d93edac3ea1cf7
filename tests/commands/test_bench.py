"""`embodied-rl bench`: what is measured, the tables, and the files beside them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks import peers
from embodied_rl.benchmarks.peers import PeerResult
from embodied_rl.commands import bench
from embodied_rl.critic.examination import reward_comparison
from embodied_rl.schema import AlgoNode, BenchConfig, Plan, PolicyNode, SimNode
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


@pytest.mark.parametrize("what", ["tabletop", "sim"])
def test_a_simulator_is_measured_and_written(tmp_path, capsys, monkeypatch, what) -> None:
    before: list[str] = []

    def measure_peer(name: str, seconds: float) -> PeerResult:
        before.append(capsys.readouterr().out)
        return PeerResult(name, why_not=f"{name} is not installed")

    monkeypatch.setattr(peers, "measure_peer", measure_peer)
    bench.run(config(tmp_path, what=what))
    assert "tabletop" in before[0], "what is measured is printed before it takes its time"
    written = json.loads((tmp_path / "out" / "bench_tabletop.json").read_text())
    assert written["simulator"] == "tabletop" and written["envs"] == 2
    assert written["control_steps_per_second"] > 0 and written["ratio_to_bare"] > 0
    assert {peer["title"] for peer in written["peers"]} == set(peers.PEERS)
    assert written["hardware"]["cores"] >= 1
    assert "lift is not installed" in capsys.readouterr().out


def test_rewards_are_compared_below_out(tmp_path, monkeypatch) -> None:
    asked = []

    def compare(settings: BenchConfig, root: Path) -> tuple[Table, dict]:
        asked.append((settings.decisions, root))
        return Table(), {"decisions": 2304}

    monkeypatch.setattr(reward_comparison, "compare_rewards", compare)
    bench.run(config(tmp_path, what="potentials", decisions=2000))
    assert asked == [(2000, tmp_path / "out" / "runs")] and asked[0][1].is_dir()
    assert json.loads((tmp_path / "out" / "bench_potentials.json").read_text())["decisions"] == 2304


def test_the_table_compares() -> None:
    ours = {
        "envs": 4, "rounds": 5, "control_steps_between_pictures": 5, "control_steps_per_second": 3000.0,
        "bare_control_steps_per_second": 2500.0, "ratio_to_bare": 1.2,
    }  # fmt: skip
    others = [PeerResult("other", 60.0, "other 1.0"), PeerResult("gone", why_not="not there")]
    text = shown(bench.make_throughput_table("toy", ours, others))
    for part in ("3,000", "2,500", "120.0%", "50.0 times", "other 1.0", "not there"):
        assert part in text


def test_tables_fit_a_narrow_terminal() -> None:
    stages = {"simulating": 0.0254, "inferring": 0.0189, "message": 0.0007}
    split = {"slices": 2, "workers": 2, "stages": stages, "without_overlap": 0.0914, "bound": 0.0696, "round": 0.0824}
    text = shown(bench.make_overlap_table([{**split, "share_of_bound": 0.845}]))
    for part in ("2 × 2", "25.4", "18.9", "0.7", "91.4", "69.6", "82.4", "84.5%"):
        assert part in text
    busy = {
        "shares": (0.912, 0.905),
        "demands": (0.953, 0.948),
        "iterations": 3,
        "seconds": 6.5,
        "decisions_per_second": 236.0,
    }
    text = shown(bench.make_busy_table(busy))
    assert all(share in text for share in ("91.2%", "90.5%", "95.3%", "94.8%")) and "236 decisions/s" in text
    assert "…" not in text


def test_only_slices_that_come_out_even_are_measured(tmp_path) -> None:
    plain = config(tmp_path, plan=Plan(allocation="split", ranks=1, workers=2))
    assert [slices for slices in bench.SLICES if bench.check_divisible(plain, slices)] == [1]


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
