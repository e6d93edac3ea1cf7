"""Stored episodes that a run cannot learn from are refused before it starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Source
from tests.support.running import POLICY

STORED = ("sim.name=tabletop", "sim.image_size=16", "sim.horizon=8")
ALONE = (*STORED, *POLICY, "sim.num_envs=2", "plan=colocated", "plan.ranks=1", "replay.preload=stored", "--dry-run")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("algo=filtered", "replay.collect=false"), 2),
        (("algo=filtered", "replay.collect=true"), 0),
        (("algo=awr", "replay.collect=false"), 2),
        (("algo=awr", "replay.collect=true"), 0),
    ],
)
def test_failures_alone_are_refused_where_only_successes_are_learned(
    typed: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    assert typed("collect", "expert", *STORED, "episodes=2", "format=replay", "out=stored")[0] == 0
    for field in ("success", "reward"):
        np.load(tmp_path / "stored" / f"{field}.npy", mmap_mode="r+")[:] = 0
    found, _, err = typed("train", *words, *ALONE)
    reason = "success" if words[0] == "algo=filtered" else "rewards"
    assert found == code and (f"[replay-without-{reason}] replay.preload=stored" in err) == (code == 2), err


@pytest.mark.parametrize(("name", "value"), [("reward", 0.5), ("source", Source.HUMAN), ("success", True)])
def test_what_says_which_actions_are_better_is_enough(
    typed: Callable[..., Any], tmp_path: Path, name: str, value: float
) -> None:
    assert typed("collect", "expert", *STORED, "episodes=2", "format=replay", "out=stored")[0] == 0
    for field in ("success", "reward"):
        np.load(tmp_path / "stored" / f"{field}.npy", mmap_mode="r+")[:] = 0
    assert "[replay-without-rewards]" in typed("train", "algo=dsrl", "replay.collect=false", *ALONE)[2]
    np.load(tmp_path / "stored" / f"{name}.npy", mmap_mode="r+")[:] = value
    assert typed("train", "algo=dsrl", "replay.collect=false", *ALONE)[0] == 0


def test_an_experiment_of_stored_episodes_says_what_it_lacks(typed: Callable[..., Any]) -> None:
    found, _, err = typed("train", "experiment=tabletop_offline")
    assert found == 2 and "[replay-without-episodes]" in err
    assert "replay.preload=<folder>" in err and "collect format=replay" in err and "plan" not in err
    found, _, err = typed("train", "algo=awr", "replay.collect=false", "replay.preload=x", "plan=auto", "--dry-run")
    assert found == 2 and "[replay-without-rollouts]" in err and "plan=colocated" in err
