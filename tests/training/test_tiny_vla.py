"""A π0.5 small enough for a CPU learns from demonstrations; reinforcement learning then mends what was wrong there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(9000), pytest.mark.thorough]


def typed(folder: Path, *arguments: str) -> str:
    """Run a command in a folder; returns what it printed."""
    command = [sys.executable, "-m", "embodied_rl", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=5400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def press(run: Path) -> tuple[int, int]:
    """Successes and episodes of the family in a run's last report."""
    found = json.loads((run / "report.json").read_text())["families"]["press"]["success"]
    return round(found["rate"] * found["episodes"]), found["episodes"]


def test_a_tiny_pi05_is_cloned(tmp_path: Path) -> None:
    typed(tmp_path, "collect", "policy=expert", "task=press", "episodes=300", "format=lerobot", "out=shown")
    told = ("policy=pi05_tiny", "policy.patch=8", "algo=sft_vla", "algo.finetune_lr=1e-3", "algo.finetune_steps=3000")
    said = typed(tmp_path, "sft", *told, "dataset=shown", "eval_episodes=256")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
    assert losses[-1] < losses[0] / 10
    (cloned,) = (tmp_path / "runs" / "sft").iterdir()
    successes, episodes = press(cloned)
    assert episodes == 64
    assert successes >= 3  # new weights press none


def test_reinforcement_learning_improves_a_tiny_pi05(tmp_path: Path) -> None:
    """The operator's fault, pressing too lightly, is the same everywhere; success is the only reward. No less than a
    fifth more of the same 512 episodes succeed.
    """
    plain = ("policy=pi05_tiny", "sim.randomise=false")
    shown = ("task=press", "algo.operator=faulty", "algo.demonstrations=5000", "algo.longest=30", "algo.drift=0.5")
    taught = ("algo=sft_vla", "algo.finetune_lr=2e-3", "algo.finetune_steps=5000", "algo.draws=8", "eval_episodes=64")
    typed(tmp_path, "sft", *plain, *shown, *taught)
    (cloned,) = (tmp_path / "runs" / "sft").iterdir()
    tasks = ("train.task=press", "train.time_limit=terminal")
    sizes = ("sim.num_envs=64", "train.decisions=20", "train.iterations=60", "train.eval_every=0", "plan=colocated")
    learning = ("policy.train=expert", "algo.lr=3e-4", "algo.epochs=3", "plan.ranks=1", "train.final_episodes=4")
    typed(tmp_path, "train", *plain, f"policy.checkpoint={cloned}", *tasks, *sizes, *learning)
    (learned,) = (tmp_path / "runs" / "train").iterdir()
    for run in (cloned, learned):
        typed(tmp_path, "eval", f"policy={run}", "task=press", "episodes=512", f"out={run}/all")
    before, after = press(cloned / "all"), press(learned / "all")
    assert after[0] - before[0] > 102, f"{before} -> {after}"
    table = [[successes, episodes - successes] for successes, episodes in (after, before)]
    assert stats.fisher_exact(table, alternative="greater").pvalue < 1e-3
