"""What a stranger could send, of every kind that a command opens: sound but for what is planted in it."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied_rl.actors.learning.checkpoint import save_checkpoint
from embodied_rl.checkpoints.policy_format import make_header
from embodied_rl.config import freeze as configuration
from embodied_rl.config.assets import resolve_path
from embodied_rl.rollout.timeline import INFER, RANK, Span, Timeline, keep_timelines
from embodied_rl.schema import AlgoNode, PolicyNode, SimNode, TrainConfig
from tests.support import building_checkpoints as building
from tests.support import making_datasets as datasets
from tests.support.planting import Plant
from tests.support.using_checkpoints import attach, save

Json = dict[str, Any]
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
"""JSON that nothing which calls itself can read."""
LONG = "1" * 5000
"""A number longer than Python reads."""


def change_json(file: Path, change: Callable[[Json], object]) -> Path:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return file


def read_header(file: Path) -> Json:
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["embodied_rl"])


def reheaded(file: Path, change: Callable[[Json], object], tensors: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Change the header of a policy file, and add tensors."""
    header = read_header(file)
    change(header)
    held = {**load_file(file), **(tensors or {})}
    save_file(held, file, make_header(header, held))
    return file


def policy(folder: Path, change: Callable[[Json], object] = lambda header: None) -> Path:
    """A sound policy file of the tabletop's network, with a changed header."""
    file = folder / "policy.safetensors"
    shutil.copyfile(resolve_path("asset:tabletop_base.safetensors"), file)
    return reheaded(file, change)


def policy_with_header(folder: Path, header: str) -> Path:
    """A policy file of one tensor, with this text for its header."""
    save_file({"backbone.x": torch.zeros(1)}, folder / "policy.safetensors", {"embodied_rl": header})
    return folder / "policy.safetensors"


def policy_of_pi0(folder: Path, change: Callable[[Json], object], files: Mapping[str, bytes]) -> Path:
    """A policy file of a π0 that was imported from lerobot, with changed header and further small files."""
    made = building.lerobot(folder / "made", "pi0")
    file = save(folder / "policy.safetensors", "pi0", *attach(made, "pi0"))
    shutil.rmtree(made)
    contents = {f"file/{name}": torch.tensor(list(content), dtype=torch.uint8) for name, content in files.items()}
    return reheaded(file, change, contents)


def run(folder: Path, change: Callable[[Json], object] = lambda config: None) -> Path:
    """A run folder with a policy, a checkpoint, metrics, a timeline and a report."""
    made = folder / "demo" / "20260101-000000_s0"
    made.mkdir(parents=True)
    (made / "checkpoints").mkdir()
    file = policy(made)
    tensors: dict[str, Any] = {"episodes": np.zeros(1, np.int64)}
    copied = {"policy.safetensors": lambda path: shutil.copyfile(file, path)}
    save_checkpoint(made / "checkpoints", 1, tensors, {}, files=copied)
    keep_timelines(made, 1, [Timeline([Span(RANK, INFER, 0.0, 1.0, 2)], 0.0, 1.0)])
    plain = configuration.thaw_config(TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("ppo")))
    change(plain)
    (made / "config.yaml").write_text(json.dumps(plain))
    (made / "metrics.jsonl").write_text('{"iteration": 1, "eval/success": 0.5}\n')
    (made / "report.json").write_text(json.dumps(report()))
    return made


def report(**changes: Any) -> Json:
    """The content of a report.json of two episodes of one task."""
    rate = {"rate": 0.5, "low": 0.1, "high": 0.9, "episodes": 2}
    summary = {"success": rate, "success_at_end": rate, "steps": 3.0, "reward": 1.0, "smoothness": 0.0}
    episode = {"task": 0, "split": "eval", "success_at_end": True, "steps": 3, "reward": 1.0, "smoothness": 0.0}
    episodes = [{**episode, "index": number, "seed": number, "success": bool(number)} for number in range(2)]
    about = {"split": "eval", "simulators": [{"name": "tabletop", "seeded": True, "depends_on": {}}]}
    named = {"families": {"push": summary}, "tasks": {"push": summary}}
    return {**summary, **named, "metadata": about, "episodes": episodes, **changes}


def costs(**changes: Any) -> Json:
    line = {"fixed": 0.01, "per_item": 0.001}
    return {"costs": {"step": line, "inference": line, "update": line, **changes}, "about": {}, "spread": {}}


def plan(**changes: Any) -> Json:
    allocation = {"mode": "colocated", "ranks": 1, "workers": 0, "slices": 1, "order": "exact", "rollout_workers": 0}
    return {
        "chosen": {"allocation": allocation | changes},
        "resources": {"devices": 0, "cores": len(os.sched_getaffinity(0))},
        "about": {},
    }


def written(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def dataset(plant: Plant, change: Callable[[Json], object] = lambda info: None) -> Path:
    """A dataset with numbers and a video; a copy of its files lies outside, where it must not be read."""
    folder = datasets.made(plant.sent / "data", 2, {**datasets.VIDEO, **datasets.NUMBERS})
    shutil.copytree(folder, plant.outside / "data")
    change_json(folder / "meta/info.json", change)
    return folder


def linked(plant: Plant, name: str) -> Path:
    """A dataset of which one file or folder is a link to the user's own."""
    folder = dataset(plant)
    (folder / name).rename(plant.sent / "taken")
    (folder / name).symlink_to(plant.outside / "data" / name)
    return folder


def playlist(plant: Plant, text: str) -> Path:
    """A dataset whose video is a list of other files."""
    folder = dataset(plant)
    for file in folder.glob("videos/**/*.mp4"):
        file.write_text(text)
    return folder


def pickled_columns(plant: Plant) -> Path:
    """A dataset whose tables hold a column of Arrow's old extension type, which older versions unpickle."""
    folder = dataset(plant)
    for file in folder.glob("data/**/*.parquet"):
        table = pq.read_table(file)
        told = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(plant)}
        schema = pa.schema([field.with_metadata(told) for field in table.schema], {"pandas": pickle.dumps(plant)})
        pq.write_table(table.cast(pa.schema(list(table.schema))).replace_schema_metadata(None).cast(schema), file)
    return folder


def lerobot(plant: Plant, **config: Any) -> Path:
    """lerobot's folder with a program beside it that its configuration names."""
    folder = building.lerobot(plant.sent / "folder", "pi0", **config)
    for name in ("evil", "modeling_evil", "configuration_evil"):
        (folder / f"{name}.py").write_text(plant.program)
    return folder


def openpi(plant: Plant, converted: bool = True) -> Path:
    """openpi's folder, with a program beside it that its configuration names."""
    folder = building.openpi(plant.sent / "folder", "pi0", converted=converted)
    (folder / "evil.py").write_text(plant.program)
    return folder


def changed(folder: Path, name: str, change: Callable[[Json], object]) -> Path:
    """A folder of which one JSON file is changed."""
    change_json(folder / name, change)
    return folder


def replaced(folder: Path, name: str, content: str | bytes) -> Path:
    """A folder of which one file has another content."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def set_step(name: str, **entries: Any) -> Callable[[Json], object]:
    """Change a step of a processor file."""
    return lambda content: [step.update(entries) for step in content["steps"] if step.get("registry_name") == name]
