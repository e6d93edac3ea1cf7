"""Damaged plan, provenance and prediction files."""

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.forecast import Forecast
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
