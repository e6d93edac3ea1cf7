"""A run knows by name which model judges it, and another model behind the same address takes no part in it."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.support.faulty_server import LYING, served
from tests.support.running import SMALL, TABLETOP

pytestmark = pytest.mark.thorough

JUDGED = ("reward=vlm", "reward.deadline=20", "reward.wait_share=null", "plan.ranks=1", "train.iterations=2")
OTHER = {"data": [{"id": "another", "object": "model"}]}


def test_a_run_and_its_logs_name_the_only_model_of_a_server(typed: Callable[..., Any], tmp_path: Path) -> None:
    with served(LYING, Random(0), 10**9, None) as server:
        code, out, err = typed("train", *SMALL, *TABLETOP, *JUDGED, f"reward.url={server.url}")
        assert code == 0 and f"judge at {server.url}" in out, out + err
        (run,) = (tmp_path / "runs" / "train").iterdir()
        assert yaml.safe_load((run / "config.yaml").read_text())["reward"]["model"] == "judge"
        first, *_ = (json.loads(line) for line in (run / "scores" / "0.jsonl").read_text().splitlines())
        assert first["scorer"].startswith(f"judge at {server.url}")
        server.models = OTHER
        code, out, err = typed("train", f"resume={run}", "train.iterations=3", f"reward.url={server.url}")
        assert code != 0 and "no model 'judge'" in err and "another" in err, out + err
    code, out, err = typed("train", f"resume={run}", "train.iterations=3", f"reward.url={server.url}")
    assert code == 0, "a server that is down does not keep a run from going on" + out + err


def test_another_model_is_none_that_was_examined(typed: Callable[..., Any], tmp_path: Path) -> None:
    """In a report and in a calibration, which are written without the name and read without it."""
    with served(LYING, Random(0), 10**9, None) as server:
        judge = ("reward=vlm", f"reward.url={server.url}")
        evaluation = ("sim=tabletop", *TABLETOP, "episodes=4", f"out={tmp_path / 'judged'}", "others=0")
        code, out, err = typed("critic", "eval", *judge, *evaluation)
        assert code == 0, out + err
        report = tmp_path / "judged" / "critic.json"
        assert json.loads(report.read_text())["identity"].startswith(f"judge at {server.url}")
        maps = {"progress": {"slope": 2.0, "offset": 0.0}, "done": None}
        identity = json.loads(report.read_text())["identity"]
        calibration = {"format": "embodied-rl calibration", "version": 1, "identity": identity} | maps
        (tmp_path / "calibration.json").write_text(json.dumps(calibration))
        words = (*SMALL, *TABLETOP, *judge, "--dry-run")
        code, out, err = typed("train", *words, f"reward.calibration={tmp_path / 'calibration.json'}")
        assert code == 0, out + err
        server.models = OTHER
        for key, file in (("examined", report), ("calibration", tmp_path / "calibration.json")):
            code, out, err = typed("train", *words, f"reward.{key}={file}")
            assert code != 0 and f"is of {identity}" in err and "another at" in err, out + err
