"""What small runs of a checkout come to, to the bit: `digest_runs.py <checkout> <out.json>`; compare two checkouts.

Every command is started as a user would, from a folder of its own, with the code of the checkout that is given. What
depends on the clock or on a path is left out: metrics under `time/`, provenance, films.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

TINY = ("policy.width=16", "policy.layers=1", "policy.heads=2", "policy.stem_channels=8", "policy.keypoints=4")
SMALL = (
    *TINY, "policy.checkpoint=null", "policy.horizon=2", "sim.num_envs=8", "sim.horizon=8", "sim.image_size=16",
    "train.iterations=4", "train.decisions=4", "train.eval_every=2", "train.eval_episodes=4", "train.final_episodes=4",
    "checkpoint.every=2", "logger=json",
    "algo.minibatch=16", "algo.critic_steps=3", "algo.critic_warmup=1",
)  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    "ppo": ("train", *SMALL, "plan=colocated"),
    "noise": ("train", *SMALL, "plan=colocated", "algo=flow_noise", "seed=1"),
    "grpo": ("train", *SMALL[:-3], "algo=grpo", "algo.group_size=2", "plan=colocated"),
    "split": ("train", *SMALL, "plan=split", "plan.ranks=1", "plan.slices=2", "curriculum=success_rate"),
    "process": ("train", *SMALL, "plan=split", "plan.policy=process", "policy.critic=prefix"),
    "stream": ("train", *SMALL, "plan=colocated", "mode=stream", "segments=2"),
    "async": ("train", *SMALL, "plan=colocated", "mode=async", "staleness=0"),
    "sharded": ("train", *SMALL, "plan=colocated", "plan.learner=sharded", "algo.critic_warmup=0"),
    "ray": ("train", *SMALL, "plan=colocated", "runtime=ray", "cluster=local"),
    "base": ("train", "experiment=demo", "train.iterations=2", "sim.num_envs=16", "train.eval_episodes=8",
             "train.final_episodes=8", "algo.minibatch=128", "plan=colocated", "logger=json"),
    "sft": ("sft", "experiment=tabletop_sft", *TINY, "algo.frames=200", "algo.localise_steps=20",
            "algo.demonstrations=8", "algo.steps=20", "algo.finetune_steps=0", "eval_episodes=8"),
    "eval": ("eval", "policy=asset:tabletop_base.safetensors", "episodes=24", "split=vision", "out=out"),
    "ablate": ("eval", "policy=asset:tabletop_base.safetensors", "episodes=12", "ablate=instruction", "out=out"),
    "benchmark": ("eval", "policy=expert", "benchmark=tabletop", "episodes=12", "out=out"),
    "collect": ("collect", "policy=asset:tabletop_base.safetensors", "episodes=6", "out=out"),
    "expert": ("collect", "policy=expert", "episodes=6", "out=out", "split=execution"),
    "play": ("play", "policy=asset:tabletop_base.safetensors", "out=out"),
}  # fmt: skip


def main(checkout: str, out: str, *names: str) -> None:
    """Write the digests of the runs that are named, or of all."""
    found = {name: digests(Path(checkout).resolve(), RUNS[name]) for name in names or RUNS}
    Path(out).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def digests(checkout: Path, arguments: tuple[str, ...]) -> dict[str, str]:
    """What one command left, by the names of its files."""
    paths = os.pathsep.join(str(checkout / part) for part in (".", "sims", "policies"))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    if (checkout / "configs" / "episodes").exists():  # what a curriculum was called until November 2026
        arguments = tuple(text.replace("curriculum=", "episodes=") for text in arguments)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "embodied_rl", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found = {"exit code": str(done.returncode)}
        if done.returncode:
            print(arguments, done.stdout[-500:], done.stderr[-2000:], file=sys.stderr)
        return found | {name: hashlib.sha256(data).hexdigest()[:16] for name, data in contents(Path(folder))}


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and what counts of every file whose bits are promised; the folder of a run goes without its name."""
    for file in sorted(folder.rglob("*")):
        name = "/".join(part for part in file.relative_to(folder).parts if not part.startswith("20"))
        if file.name == "metrics.jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            kept = [{key: line[key] for key in sorted(line) if not key.startswith("time/")} for line in lines]
            yield name, repr(kept).encode()
        elif file.name == "report.json":
            yield name, repr(_episodes(json.loads(file.read_text()))).encode()
        elif file.suffix == ".safetensors":
            tensors = load_file(file)
            yield name, b"".join(n.encode() + tensors[n].numpy().tobytes() for n in sorted(tensors))
        elif file.suffix in (".npz", ".mp4") or file.name == "index.jsonl":
            yield name, file.read_bytes()


def _episodes(report: dict[str, Any]) -> Any:
    return [report.get("success"), report.get("tasks"), report.get("episodes")]


if __name__ == "__main__":
    main(*sys.argv[1:])
