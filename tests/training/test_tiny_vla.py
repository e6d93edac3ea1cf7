"""A π0.5 small enough for a CPU learns from demonstrations on disk, and reinforcement learning makes it better."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

PRESS = "episodes.weights={push: 0, pick: 0, put: 0, press: 1}"


def typed(folder: Path, *arguments: str) -> str:
    """Run a command in a folder; returns what it printed."""
    command = [sys.executable, "-m", "embodied_rl", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def press(run: Path) -> tuple[int, int]:
    """Successes and episodes of the family in a run's last report."""
    found = json.loads((run / "report.json").read_text())["families"]["press"]["success"]
    return round(found["rate"] * found["episodes"]), found["episodes"]


def test_a_tiny_pi05_is_cloned_and_then_improved(tmp_path: Path) -> None:
    typed(tmp_path, "collect", "policy=expert", "task=press", "episodes=300", "format=lerobot", "out=shown")
    told = ("policy=pi05_tiny", "algo=sft_vla", "algo.finetune_lr=1e-3", "algo.finetune_steps=3000")
    said = typed(tmp_path, "sft", *told, "dataset=shown", "eval_episodes=256")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
    assert losses[-1] < losses[0] / 10
    (cloned,) = (tmp_path / "runs" / "sft").iterdir()
    successes, episodes = press(cloned)
    assert successes > 0
    typed(
        tmp_path, "train", "policy=pi05", f"policy.checkpoint={cloned}", "policy.train=full", "plan=colocated",
        "policy.critic=privileged", "episodes=weighted", PRESS, "sim.num_envs=64", "algo.lr=1e-4", "algo.epochs=2",
        "train.time_limit=terminal", "train.iterations=25", "train.decisions=20", "train.eval_every=0",
        "train.final_episodes=256",
    )  # fmt: skip
    (improved,) = (tmp_path / "runs" / "train").iterdir()
    better, same = press(improved)
    print(f"press: {successes} cloned, {better} after reinforcement learning, of {episodes}")
    assert same == episodes
    assert better > 1.5 * successes
