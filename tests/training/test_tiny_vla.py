"""A π0.5 small enough for a CPU learns from demonstrations on disk: the loss falls, and episodes begin to succeed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]


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


def test_a_tiny_pi05_is_cloned(tmp_path: Path) -> None:
    typed(tmp_path, "collect", "policy=expert", "task=press", "episodes=300", "format=lerobot", "out=shown")
    told = ("policy=pi05_tiny", "algo=sft_vla", "algo.finetune_lr=1e-3", "algo.finetune_steps=3000")
    said = typed(tmp_path, "sft", *told, "dataset=shown", "eval_episodes=256")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
    assert losses[-1] < losses[0] / 10
    (cloned,) = (tmp_path / "runs" / "sft").iterdir()
    successes, episodes = press(cloned)
    assert episodes == 64
    assert successes >= 3  # new weights press none
