"""One process at a time trains in a run: a second one is refused and changes nothing; the first goes on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.runs.lock import FILE, hold_run
from tests.support.running import REACHING, SMALL, started

pytestmark = [pytest.mark.process, pytest.mark.thorough]


def test_a_run_that_trains_refuses_a_second_process(plugin_path: str, tmp_path: Path) -> None:
    """A fresh run, on two ranks with simulators of their own, which do not refuse each other."""
    hold = ("sim.marks=.", "sim.hold=4")
    with started(tmp_path, "train", *SMALL, *REACHING, *hold, "plan=split", PYTHONPATH=plugin_path) as first:
        assert first.wait_until(lambda: first.iterations() >= 1), first.output()
        assert first.run is not None
        with started(tmp_path / "second", "train", f"resume={first.run}", PYTHONPATH=plugin_path) as second:
            code, output = second.finish()
        assert first.process.poll() is None, "it still trains"
        (tmp_path / "go").touch()
        assert first.finish()[0] == 0, first.output()
        assert (first.run / FILE).read_text() == "", "nobody holds it now"
    assert code == 2 and "Traceback" not in output
    assert f"is in use: process {first.process.pid} on " in output


def test_a_resumed_run_is_refused_before_anything_is_written(
    typed: Callable[..., Any], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(reference, run)
    (run / "report.html").unlink()
    with hold_run(run):
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != FILE}
        code, _, err = typed("train", f"resume={run}")
        assert code == 2 and f"{run} is in use" in err
        assert typed("train", f"resume={run}", "--dry-run")[0] == 0, "it changes nothing"
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != FILE} == before
    assert typed("train", f"resume={run}")[0] == 0
