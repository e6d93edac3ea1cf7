"""A simulator, a policy, an algorithm and a curriculum of another distribution, the one in docs/, train together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.runs.metrics_file import read_metrics

pytestmark = pytest.mark.thorough
CHOSEN = {"sim": "reacher", "policy": "small_flow", "algo": "reinforce", "curriculum": "hardest"}
LOOP = (
    "sim.num_envs=4", "sim.horizon=6", "sim.image_size=16", "policy.width=16", "train.iterations=2",
    "train.decisions=2", "train.eval_every=0", "train.eval_episodes=2", "train.final_episodes=2",
    "checkpoint.every=1", "plan=colocated", "plan.ranks=1", "logger=json",
)  # fmt: skip


def trained(typed: Callable[..., Any], folder: Path, *settings: str) -> Path:
    """The folder of a run of all four."""
    chosen = [f"{group}={name}" for group, name in CHOSEN.items()]
    code, out, err = typed("train", *chosen, *LOOP, *settings)
    assert code == 0, out + err
    (run,) = (folder / "runs" / "train").iterdir()
    return run


def test_they_train_save_and_continue(example: None, typed: Callable[..., Any], tmp_path: Path) -> None:
    run = trained(typed, tmp_path, "train.decisions=3")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["rollout/episodes"] for row in rows] == [4, 4], "an episode of each environment, whole"
    assert {"update/loss", "update/grad_norm"} <= rows[0].keys()
    (run / "report.html").unlink()
    code, out, err = typed("train", f"resume={run}")
    assert code == 0, out + err
    assert len(read_metrics(run / "metrics.jsonl")) == 2


def test_they_are_listed(example: None, typed: Callable[..., Any]) -> None:
    words = {"sim": "sims", "policy": "policies", "algo": "algos", "curriculum": "curricula"}
    for group, name in CHOSEN.items():
        assert name in typed("list", words[group])[1]
    assert "height and width of the picture in pixels." in typed("list", "sims", "reacher")[1]
    assert "reacher_sft" in typed("list", "experiments")[1]


def test_an_operator_that_it_has_not_is_refused_by_the_key(example: None, typed: Callable[..., Any]) -> None:
    code, _, err = typed("sft", "experiment=reacher_sft", "algo.operator=faulty", "sim.num_envs=2")
    assert code == 2 and "algo.operator=faulty: the reacher's operator has no faults; give careful." in err


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_weights_move_as_in_the_algorithm(
    example: None, typed: Callable[..., Any], tmp_path: Path, rate: float
) -> None:
    """Not by anything of ours. Environments are so many that some reach the goal by chance, or nothing is learned."""
    run = trained(typed, tmp_path, f"algo.lr={rate}", "sim.horizon=24", "train.decisions=6", "sim.num_envs=128")
    first, second = (load_file(run / "checkpoints" / f"{step:08d}" / "policy.safetensors") for step in (1, 2))
    moved = [name for name in first if not torch.equal(first[name], second[name])]
    assert bool(moved) == bool(rate), moved
