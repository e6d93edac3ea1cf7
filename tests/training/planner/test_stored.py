"""Stored plans and predictions: damaged files, and iterations that drift from their prediction."""

import json
from pathlib import Path

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.forecast import WINDOW, Forecast
from embodied_rl.training.planner.stored import describe_move, expand_stored_plan
from tests.support.refusals import refuses

DAMAGED = [b"\xff\xfe", b"", b"[]", b"{}", b'{"chosen": nul']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_plan_is_refused(tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with refuses("plan-damaged", file):
        expand_stored_plan([f"plan={file}"])


@pytest.mark.parametrize("content", DAMAGED)
def test_a_run_continues_without_its_provenance(tmp_path, content):
    (tmp_path / "provenance.json").write_bytes(content)
    assert describe_move(tmp_path / "provenance.json") is None


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_prediction_is_refused(tmp_path, content):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"{tmp_path}/plan.json is damaged.*remove it"):
        Forecast.read(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prediction = {"seconds": 10.0, "bubble": 0.25}
    (tmp_path / "plan.json").write_text(json.dumps({"chosen": {"prediction": prediction}}))
    return tmp_path


def test_a_drift_is_reported_once(folder: Path) -> None:
    forecast = Forecast.read(folder)
    notes = [forecast.note(11.6) for _ in range(3 * WINDOW)]
    told = [note for note in notes if note]
    assert notes.index(told[0]) == WINDOW - 1 and len(told) == 1
    assert "11.60 s, 10.00 s were predicted (+16%)" in told[0]


@pytest.mark.parametrize("seconds", [8.6, 11.4])
def test_within_the_tolerance_nothing_is_said(folder: Path, seconds: float) -> None:
    forecast = Forecast.read(folder)
    assert not any(forecast.note(seconds) for _ in range(3 * WINDOW))


def test_unlike_iterations_and_single_ones_do_not_count(folder: Path) -> None:
    forecast = Forecast.read(folder, skip=2)
    assert not any(forecast.note(seconds) for seconds in (99.0, 99.0, *[10.0] * WINDOW, 99.0, *[10.0] * WINDOW))
    forecast = Forecast.read(folder, skip=2)
    notes = [forecast.note(seconds) for seconds in (10.0, 10.0, *[20.0] * WINDOW)]
    assert [bool(note) for note in notes] == [False] * (WINDOW + 1) + [True]
    assert forecast.figures() == {"time/iteration_predicted": 10.0, "time/bubble_predicted": 0.25}


def test_the_throughput_of_collectors_is_predicted_where_the_plan_says_it(folder: Path) -> None:
    """Plans of earlier versions do not."""
    plan = json.loads((folder / "plan.json").read_text())
    assert "time/collected_per_second_predicted" not in Forecast.read(folder).figures()
    plan["chosen"]["prediction"]["collected_per_second"] = 40
    (folder / "plan.json").write_text(json.dumps(plan))
    assert Forecast.read(folder).figures()["time/collected_per_second_predicted"] == 40.0


def test_a_run_without_prediction_reports_no_drift(tmp_path: Path) -> None:
    forecast = Forecast.read(tmp_path)
    assert forecast.figures() == {} and forecast.note(3.0) is None
