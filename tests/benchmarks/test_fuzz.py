"""The fuzz benchmark: no violations, and violations are counted by name."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import fuzz
from tests.benchmarks.__main__ import main

pytestmark = pytest.mark.thorough


def run(folder: Path) -> dict[str, Any]:
    main(["fuzz", "ticks=1500", "seed=3", f"out={folder}"])
    return json.loads((folder / "fuzz.json").read_text())


def test_fuzzing_filter_and_core_finds_no_violation(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert {sum(counts.values()) for counts in found["broken"].values()} == {0}
    assert found["ticks"] == 1500 and sum(found["moved"].values()) > 0


def test_violations_are_counted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "fuzz_filter", lambda *_: Counter({"ticks": 9, "speed": 2, "no rest": 1}))
    broken = run(tmp_path)["broken"]["safety filter"]
    assert (broken["speed"], broken["no rest"], sum(broken.values())) == (2, 1, 3)
