"""An undamaged checkpoint that does not belong to the run is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.actors.learning.checkpoint import CheckpointError, save_checkpoint
from embodied_rl.cli.main import main
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.training.metrics import RunTotals
from embodied_rl.training.restoring import explain_state_mismatch, read_progress
from tests.support.refusals import refuses
from tests.support.running import POLICY, TABLETOP

TINY = (
    *POLICY, *TABLETOP, "algo=flow_sde", "algo.critic_steps=2", "algo.minibatch=4", "plan=colocated", "plan.ranks=1",
    "plan.slices=1", "sim.num_envs=2", "train.iterations=1", "train.decisions=2", "train.eval_every=0",
    "train.eval_episodes=2", "train.final_episodes=2", "train.film=false", "checkpoint.every=1",
    "logger=json",
)  # fmt: skip
METADATA: dict[str, Any] = {"version": 3, "ranks": 1, "totals": {"seconds": 2, "best": 0.5, "best_iteration": 2}}


def test_progress_is_read_from_metadata(tmp_path: Path) -> None:
    assert read_progress(tmp_path, 4, METADATA) == (3, 1, RunTotals(seconds=2.0, best=0.5, best_iteration=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "3"}, {"version": -1}, {"version": 2**70}, {"version": True}, {"ranks": 0}, {"ranks": None},
        {"totals": None}, {"totals": []}, {"totals": "evil"}, {"totals": {"evil": 1}}, {"totals": {"episodes": "1"}},
        {"totals": {"episodes": -1}}, {"totals": {"decisions": 2**80}}, {"totals": {"seconds": float("nan")}},
        {"totals": {"seconds": float("inf")}}, {"totals": {"best": 1.5}}, {"totals": {"best": float("nan")}},
        {"totals": {"best_iteration": 5}}, {"totals": {"tokens_read": None}},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_metadata_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with refuses("checkpoint-damaged", tmp_path / "state.json", kind=CheckpointError):
        read_progress(tmp_path, 4, METADATA | changes)


def test_a_lost_process_is_not_reported_as_damage(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="gone"), explain_state_mismatch(tmp_path):
        raise RunFailed("gone")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration."""
    root = tmp_path_factory.mktemp("tiny")
    assert main(["train", *TINY, f"run.root={root}"]) == 0
    (run,) = root.glob("*/*_s0")
    return run


Change = Callable[[dict[str, Tensor], str], object]
COLLECTOR, CRITIC = "rank/0/collector/", "rank/0/algorithm/critic/0/"
CHANGES: dict[str, tuple[str, Change]] = {
    "missing": (f"{COLLECTOR}begun", lambda tensors, name: tensors.pop(name)),
    "missing seeds": (f"{COLLECTOR}environments/seed", lambda tensors, name: tensors.pop(name)),
    "another type": (f"{COLLECTOR}environments/decision", lambda t, name: t.update({name: t[name].to(torch.uint8)})),
    "below 0": (f"{COLLECTOR}environments/steps", lambda t, name: t.update({name: t[name] - 99})),
    "a snapshot": (f"{COLLECTOR}simulator/0/clock", lambda tensors, name: tensors.pop(name)),
    "half of a state": (f"{CRITIC}exp_avg", lambda tensors, name: tensors.pop(name)),
    "shape of a moment": (f"{CRITIC}exp_avg_sq", lambda t, name: t.update({name: t[name].flatten()[:1].clone()})),
    "not finite": (f"{CRITIC}exp_avg", lambda t, name: t.update({name: t[name] * float("nan")})),
    "steps below 0": (f"{CRITIC}step", lambda t, name: t.update({name: t[name] - 99})),
    "rows": ("rank/0/algorithm/replay/0/value", lambda t, name: t.update({name: t[name][:1].clone()})),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHANGES)
def test_a_state_of_another_run(tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    """Its checksums match, as the sender of a checkpoint can compute them."""
    run = shutil.copytree(tiny, tmp_path / "demo" / tiny.name)
    folder = run / "checkpoints" / "00000001"
    state, tensors = json.loads((folder / "state.json").read_text()), load_file(folder / "tensors.safetensors")
    place, change = CHANGES[name]
    change(tensors, place)
    policy = shutil.copyfile(folder / "policy.safetensors", tmp_path / "policy.safetensors")
    files = {"policy.safetensors": lambda path: shutil.copyfile(policy, path)}
    save_checkpoint(run / "checkpoints", 1, tensors, state["metadata"], files=files)
    capfd.readouterr()
    assert main(["train", f"resume={run}", "train.iterations=2"]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("embodied-rl: ")]
    assert len(lines) == 1 and str(folder) in lines[0] and "[checkpoint-state-mismatch]" in lines[0]
