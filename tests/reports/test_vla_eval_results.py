"""Results in vla-eval's format, beside what vla-eval's own collector makes of the same episodes."""

from typing import Any

import pytest

from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.reports.report import Rate, Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.vla_eval_results import compare_reported, to_vla_eval

METADATA = {
    "simulator": "clock", "simulators": [], "policies": [], "seed": 7, "finished": "2026-01-02T03:04:05+00:00",
}  # fmt: skip


def make_report(spec: SimulatorSpec, **metadata: Any) -> Report:
    results = [
        EpisodeResult(number, number % 2, number, "train", number % 3 == 0, False, 5 + number, 1.0, 0.0, 40 - number)
        for number in range(9)
    ]
    return Report.from_results(results, spec, {**METADATA, **metadata})


def test_entries_are_those_of_vla_evals_collector(spec: SimulatorSpec) -> None:
    collectors = pytest.importorskip("vla_eval.results.collector", reason="the extra `test` installs vla-eval")
    report = make_report(spec)
    collector = collectors.ResultCollector("clock", metric_keys={"success": "mean"})
    names = list(report.tasks)
    for each in report.episodes:
        kept = {"episode_id": each.initial_state, "metrics": {"success": each.success}, "steps": each.steps}
        collector.record(names[each.task], kept)
    expected = collector.get_benchmark_result({"simulators": [], "params": {"seed": 7}})
    found = to_vla_eval(report)
    for key in expected.keys() - {"harness_version", "created_at"}:
        assert found[key] == expected[key], key
    assert found["created_at"] == METADATA["finished"] and found["harness_version"].startswith("embodied-rl ")
    assert found["interval"] == [report.success.low, report.success.high]


def test_a_published_rate_is_compared_by_the_interval() -> None:
    found = Rate.from_count(80, 100)  # 71.1 to 86.7 %
    for reported, status in ((0.72, "reproduced"), (0.86, "reproduced"), (0.7, "differs"), (0.9, "differs")):
        assert compare_reported(found, reported) == status
    many = Rate.from_count(800, 1000)
    assert [compare_reported(many, rate) for rate in (0.85, 0.75, 0.86)] == ["close", "close", "differs"]


def test_the_comparison_is_written(spec: SimulatorSpec) -> None:
    assert "status" not in to_vla_eval(make_report(spec))
    report = make_report(spec, reported=0.5, status="close", benchmark="libero_spatial")
    found = to_vla_eval(report)
    assert (found["reported"], found["status"], found["benchmark"]) == (0.5, "close", "libero_spatial")
