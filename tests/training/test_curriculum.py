"""Runs with feedback: ranks agree, weights are logged, and another package's curriculum is one file and one name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support.running import REACHING, SMALL, complete, figures

pytestmark = pytest.mark.thorough


def saved(run: Path) -> dict[str, np.ndarray]:
    """The last checkpoint's tensors."""
    folder = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    return {name: tensor.numpy() for name, tensor in load_file(folder / "tensors.safetensors").items()}


def test_another_packages_curriculum_is_one_file(example: None, typed: Callable[..., Any], tmp_path: Path) -> None:
    settings = (*SMALL, *REACHING, "plan.ranks=1", "curriculum.name=hardest")
    assert "failures of each task that are assumed at first." in typed("list", "curricula", "hardest")[1]
    code, _, err = typed("train", *settings, "curriculum.strat=2", "--dry-run")
    assert code == 2 and "unknown key 'curriculum.strat'. Did you mean 'curriculum.start'?" in err
    code, _, err = typed("train", *settings, "curriculum.start=0", "--dry-run")
    assert code == 2 and "curriculum: Hardest must give finite weights of at least 0" in err
    code, _, err = typed("train", *settings, "curriculum.start=2")
    assert code == 0, err
    run = next((tmp_path / "runs").glob("*/*"))
    rows = figures(run)
    failures = sum(round(row["rollout/episodes"] * (1 - row["rollout/success"])) for row in rows)
    assert saved(run)["rank/0/collector/episodes/curriculum/failures"].sum() == 2 + 2 + failures > 4
    assert "curriculum/effective_tasks" not in rows[0] and 1 < rows[-1]["curriculum/effective_tasks"] < 2


@pytest.mark.process
def test_ranks_draw_the_same_episodes(plugin_path: str, tmp_path: Path) -> None:
    """Each rank collects half of the episodes, and its curriculum gets all."""
    run = complete(tmp_path, "train", *SMALL, *REACHING, "curriculum=success_rate", PYTHONPATH=plugin_path)
    success = [saved(run)[f"rank/{rank}/collector/episodes/curriculum/success"] for rank in range(2)]
    assert np.array_equal(*success) and (success[0] != 0.5).all()


def test_weights_are_logged_where_they_differ(typed: Callable[..., Any], tmp_path: Path) -> None:
    code, _, err = typed(
        "train", *SMALL, *REACHING, "plan.ranks=1", "curriculum=weighted", "curriculum.weights={left: 0}"
    )
    assert code == 0, err
    for row in figures(next((tmp_path / "runs").glob("*/*"))):
        assert row["curriculum/effective_tasks"] == 1 and row["curriculum/weight/go"] == 1


def test_one_task_is_trained_and_evaluated(typed: Callable[..., Any], tmp_path: Path) -> None:
    settings = (*SMALL, *REACHING, "plan.ranks=1")
    code, _, err = typed("train", *settings, "train.task=lfet", "--dry-run")
    assert code == 2 and "train.task: unknown task 'lfet'. Did you mean 'left'?" in err
    code, _, err = typed("train", *settings, "train.task=left")
    assert code == 0, err
    run = next((tmp_path / "runs").glob("*/*"))
    for row in figures(run):
        assert row["curriculum/effective_tasks"] == 1
    for report in (run / "report.json", run / "eval/before/report.json"):
        content = json.loads(report.read_text())
        assert list(content["tasks"]) == ["left"] and content["success"]["episodes"] == len(content["episodes"]) > 1
