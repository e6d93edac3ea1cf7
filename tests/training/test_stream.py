"""Learning from a rollout while the rest of it is collected: deterministic and on-policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.running import REACHING, SMALL, assert_learned_alike, complete, figures, started

pytestmark = pytest.mark.thorough
STREAM = ("mode=stream", "segments=3", "algo.epochs=2")


@pytest.mark.process
def test_streams_are_deterministic_and_on_policy(plugin_path: str, tmp_path: Path) -> None:
    """Two workers whose segments lie ready, or are waited for."""
    settings = ("train", *SMALL, *REACHING, *STREAM, "plan=colocated", "plan.ranks=1", "plan.rollout_workers=2")
    runs = [
        complete(tmp_path / slow, *settings, f"sim.seconds={slow}", PYTHONPATH=plugin_path) for slow in ("0", "0.05")
    ]
    rows = figures(runs[0])
    assert rows == figures(runs[1])
    policies = [load_file(run / "policy.safetensors") for run in runs]
    assert all(torch.equal(policies[0][name], policies[1][name]) for name in policies[0])
    assert [row["total/decisions"] for row in rows] == [8 * 3 * number for number in range(1, 7)]
    assert all(row["staleness/max"] == 0 == row["staleness/masked"] for row in rows)


@pytest.mark.process
def test_a_killed_run_continues_to_the_bit(plugin_path: str, tmp_path: Path) -> None:
    """In the second chunk of the fourth rollout, where both ranks wait."""
    held = ("sim.marks=.", "sim.hold=11")
    settings = ("train", *SMALL, *REACHING, *STREAM, "plan=colocated", "plan.ranks=2", *held)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "whole" / "go").touch()
    whole = complete(tmp_path / "whole", *settings, PYTHONPATH=plugin_path)
    with started(tmp_path / "killed", *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: process.iterations() >= 3), process.output()
        process.kill()
    (tmp_path / "killed" / "go").touch()
    with started(tmp_path / "killed", "train", "resume=last", PYTHONPATH=plugin_path) as process:
        code, output = process.finish()
        assert code == 0, output
        assert process.run is not None
        assert_learned_alike(process.run, whole)


@pytest.mark.process
def test_group_relative_methods_learn_from_whole_episodes(plugin_path: str, tmp_path: Path) -> None:
    """Each segment is a rollout of whole episodes, whatever train.decisions is: of two, with eight environments."""
    settings = ("algo=grpo", "algo.group_size=2", "train.iterations=2", "mode=stream", "segments=2", "plan.ranks=1")
    assert "train.decisions=3" in SMALL
    small = [word for word in SMALL if not word.startswith(("algo.critic", "train.iterations"))]
    run = complete(tmp_path, "train", *small, *REACHING, *settings, "plan=colocated", PYTHONPATH=plugin_path)
    assert [row["total/episodes"] for row in figures(run)] == [16, 32]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("segments=2",), "train.decisions=3 cannot be divided into segments=2 equal parts. Try train.decisions=4."),
        (("segments=3", "plan.rollout_workers=0"), "mode=stream needs processes besides the ranks"),
    ],
)
def test_impossible_streams_are_refused(words: tuple[str, ...], said: str, typed: Callable[..., Any]) -> None:
    code, _, err = typed("train", *SMALL, *REACHING, "mode=stream", "plan=colocated", *words)
    assert code == 2 and said in err
