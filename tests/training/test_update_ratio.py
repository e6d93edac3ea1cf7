"""Updates by the number of decisions that were collected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.running import REACHING, SMALL, figures

WORDS = (*(word for word in SMALL if "critic" not in word), *REACHING, "algo=dsrl", "plan.ranks=1")
RATIO = "algo.updates_per_decision=0.19"


@pytest.mark.thorough
def test_updates_follow_the_decisions_that_are_collected(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Of all iterations together, whatever is rounded in each; as `updates` says where nothing is collected."""
    assert typed("train", *WORDS, RATIO, "run.root=first", "replay.root=stored")[0] == 0
    rows = figures(next((tmp_path / "first").glob("*/*")))
    collected = rows[-1]["total/decisions"] / len(rows)
    steps = np.cumsum([row["update/steps"] for row in rows])
    assert steps[0] > 0 and steps.tolist() == [int(0.19 * collected * (number + 1)) for number in range(len(rows))]
    both = (RATIO, "run.root=second", "replay.preload=stored", "replay.offline_iterations=1", "algo.updates=7")
    assert typed("train", *WORDS, *both)[0] == 0
    rows = figures(next((tmp_path / "second").glob("*/*")))
    assert rows[0]["update/steps"] == 7 and rows[1]["update/steps"] in (int(steps[0]), int(steps[0]) + 1)


def test_a_dry_run_says_how_many_updates_there_will_be(typed: Callable[..., Any]) -> None:
    code, out, _ = typed("train", *WORDS, "algo.updates_per_decision=0.5", "--dry-run")
    (row,) = (line for line in out.splitlines() if line.startswith("updates "))
    assert code == 0 and row.split(maxsplit=1)[1] == "12 optimiser steps an iteration, 0.5 for each of 24 decisions"


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("replay.collect=false", "replay.preload=.", "plan=colocated"), "key-unused", RATIO),
        (("algo.updates=5",), "keys-contradict", "algo.updates "),
    ],
)
def test_updates_that_nothing_counts_are_refused(
    typed: Callable[..., Any], words: tuple[str, ...], code: str, named: str
) -> None:
    found, _, err = typed("train", *WORDS, RATIO, *words)
    assert found == 2 and f"[{code}] {named}" in err and len(err.strip().splitlines()) == 1, err
