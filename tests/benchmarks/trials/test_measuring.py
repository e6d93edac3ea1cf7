"""What `bench deploy` says of the fuzz: nothing is broken, and what is broken is counted and named."""

from collections import Counter

import pytest

from embodied_rl.benchmarks.trials import measuring


def test_the_fuzz_of_filter_and_core_breaks_nothing_and_says_the_load() -> None:
    figures, values = measuring.measure_fuzz(1500, seed=3)
    assert [each.measured for each in figures] == ["0 broken", "0 broken"]
    assert figures[0].describe().startswith("1,500 fuzzed ticks, safety filter: 0 broken (asked for: 0 broken; load ")
    assert values["ticks"] == 1500 and sum(values["moved"].values()) > 0


def test_what_a_fuzz_breaks_is_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "fuzz_filter", lambda *_: Counter({"ticks": 9, "speed": 2, "no rest": 1}))
    figures, values = measuring.measure_fuzz(200, seed=3)
    assert figures[0].measured == "3 broken (speed 2, no rest 1)"
    assert values["broken"]["safety filter"]["speed"] == 2
