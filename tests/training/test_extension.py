"""A finished run that is extended equals a run of that length to the bit, unless its schedules depend on the length."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import REACHING, SMALL, assert_same, complete

pytestmark = [pytest.mark.process, pytest.mark.thorough]

STEADY = ("algo.lr_final=1", "plan.ranks=1")
SIX = (*SMALL, *REACHING, *STEADY)
THREE = tuple("train.iterations=3" if word.startswith("train.iterations") else word for word in SIX)


def notes(run: Path) -> list[str]:
    return [entry["note"] for entry in json.loads((run / "provenance.json").read_text())["notes"]]


def test_it_equals_a_run_of_that_length(plugin_path: str, tmp_path: Path) -> None:
    """Six iterations: three and three, and at once. Whoever continues later need not repeat the number."""
    expected = complete(tmp_path / "at once", "train", *SIX, PYTHONPATH=plugin_path)
    run = complete(tmp_path / "extended", "train", *THREE, PYTHONPATH=plugin_path)
    page = (run / "report.html").read_text()
    complete(tmp_path / "extended", "train", f"resume={run}", "train.iterations=6", PYTHONPATH=plugin_path)
    assert_same(run, expected)
    assert (run / "report.html").read_text() != page
    typed = (run / "config.yaml").read_text().replace("train.iterations=3", "train.iterations=6")
    assert typed == (expected / "config.yaml").read_text(), "but for what was typed at its start"
    assert notes(run) == [
        "Extended from 3 to 6 iterations. It equals a run of this length from its start, except for the evaluation at "
        "its first end."
    ]


def test_a_schedule_that_depends_on_the_length_is_reported(
    typed: Callable[..., Any], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(reference, run)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    code, out, _ = typed("train", f"resume={run}", "train.iterations=7", "--dry-run")
    assert code == 0 and str(run) in out and "7 iterations" in out and "64 environments" not in out
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    code, out, err = typed("train", f"resume={run}", "train.iterations=7")
    assert code == 0, err
    assert "It differs from a run of this length from its start: algo.lr_final=0.3 spread over all iterations" in out
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 7
    assert len(notes(run)) == 1
    assert "is finished: 7 of 7" in typed("train", f"resume={run}")[2]


def test_a_run_that_cannot_go_on_stays_as_it_is(typed: Callable[..., Any], reference: Path, tmp_path: Path) -> None:
    """Such as one with a task that this version of its simulator does not have."""
    run = tmp_path / "run"
    shutil.copytree(reference, run)
    config = run / "config.yaml"
    text = config.read_text()
    assert "  task: null\n" in text
    config.write_text(text.replace("  task: null\n", "  task: elsewhere\n", 1))
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    for words in (["--dry-run"], []):
        code, _, err = typed("train", f"resume={run}", "train.iterations=7", *words)
        assert code == 2 and "[task-unknown] train.task: unknown task 'elsewhere'." in err
        assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
