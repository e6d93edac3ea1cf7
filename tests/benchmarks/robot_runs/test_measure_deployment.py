"""Fuzz results of `bench deploy`: no violations, and violations are counted by name."""

from collections import Counter

import pytest

from embodied_rl.benchmarks.robot_runs import measure_deployment


def test_fuzzing_filter_and_core_finds_no_violation() -> None:
    figures, values = measure_deployment.measure_fuzz(1500, seed=3)
    assert [each.measured for each in figures] == ["0 broken", "0 broken"]
    assert figures[0].describe().startswith("1,500 fuzzed ticks, safety filter: 0 broken (asked for: 0 broken; load ")
    assert values["ticks"] == 1500 and sum(values["moved"].values()) > 0


def test_violations_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_deployment, "fuzz_filter", lambda *_: Counter({"ticks": 9, "speed": 2, "no rest": 1}))
    figures, values = measure_deployment.measure_fuzz(200, seed=3)
    assert figures[0].measured == "3 broken (speed 2, no rest 1)"
    assert values["broken"]["safety filter"]["speed"] == 2
