"""Stored episodes that a run cannot learn from are refused before it starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.running import POLICY

STORED = ("sim.name=tabletop", "sim.image_size=16", "sim.horizon=8")
ALONE = (*STORED, *POLICY, "sim.num_envs=2", "plan=colocated", "plan.ranks=1", "replay.preload=stored", "--dry-run")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("algo=filtered", "replay.collect=false"), 2),
        (("algo=filtered", "replay.collect=true"), 0),
        (("algo=awr", "replay.collect=false"), 0),
    ],
)
def test_failures_alone_are_refused_where_only_successes_are_learned(
    typed: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    assert typed("collect", "expert", *STORED, "episodes=2", "format=replay", "out=stored")[0] == 0
    for file in (tmp_path / "stored").rglob("success.npy"):
        np.load(file, mmap_mode="r+")[:] = False
    found, _, err = typed("train", *words, *ALONE)
    assert found == code and ("[replay-without-success] replay.preload=stored" in err) == (code == 2), err
