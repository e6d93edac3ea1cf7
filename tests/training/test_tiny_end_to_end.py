"""Published networks at tiny sizes: cloned from demonstrations, then trained by reinforcement learning, as typed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.reports.report import Report
from embodied_rl.runs.metrics_file import read_metrics
from tests.sims.libero.conftest import assets as assets

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

CLONING = (
    "algo=sft_vla", "algo.finetune_steps=30", "algo.finetune_lr=3e-3", "algo.demonstrations=4", "eval_episodes=4",
    "film=false",
)  # fmt: skip
LEARNING = (
    "train.iterations=2", "train.decisions=2", "train.eval_every=0", "train.eval_episodes=4", "train.final_episodes=4",
    "train.film=false", "algo.minibatch=4", "algo.epochs=1", "algo.critic_warmup=0", "algo.critic_steps=2",
    "plan=colocated", "plan.ranks=1", "logger=json",
)  # fmt: skip
each = pytest.mark.parametrize(("policy", "algo"), [("openvla_oft_tiny", "ppo"), ("gr00t_tiny", "flow_sde")])


def succeed(typed: Callable[..., Any], *arguments: str) -> str:
    """Run a command line; return what it printed."""
    code, out, err = typed(*arguments)
    assert code == 0, err
    return out


def clone_and_train(typed: Callable[..., Any], folder: Path, policy: str, algo: str, *sim: str) -> None:
    """Run `sft`, then `train` from its run; check that each learned, and reported the success of its episodes."""
    said = succeed(typed, "sft", f"policy={policy}", *CLONING, *sim)
    assert re.findall(r"loss (\S+)", said)
    (cloned,) = (folder / "runs" / "sft").iterdir()
    succeed(typed, "train", f"policy={policy}", f"policy.checkpoint={cloned}", f"algo={algo}", *LEARNING, *sim)
    (learned,) = (folder / "runs" / "train").iterdir()
    assert len(read_metrics(learned / "metrics.jsonl")) == 2
    for run in (cloned, learned):
        success = Report.read(run / "report.json").success
        assert success.episodes == 4 and 0 <= success.low <= success.rate <= success.high <= 1
    before, after = (load_file(run / "policy.safetensors") for run in (cloned, learned))
    assert before.keys() <= after.keys() and any(not torch.equal(value, after[name]) for name, value in before.items())


@each
def test_on_the_tabletop(typed: Callable[..., Any], tmp_path: Path, policy: str, algo: str) -> None:
    clone_and_train(typed, tmp_path, policy, algo, "sim=tabletop", "sim.horizon=8", "sim.num_envs=4")


@pytest.mark.sim
@each
def test_on_libero(typed: Callable[..., Any], tmp_path: Path, assets: Path, policy: str, algo: str) -> None:
    """The suite with a scripted operator, in light pictures; cut off long before anything can succeed."""
    task = ("sim=libero", "sim.suite=libero_object", "sim.num_envs=2", "sim.horizon=40")
    pictures = (f"sim.assets={assets}", "sim.rendering=light", "sim.renderer=osmesa", "sim.image_size=64")
    clone_and_train(typed, tmp_path, policy, algo, *task, *pictures)
