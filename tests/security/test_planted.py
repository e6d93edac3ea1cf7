"""Files of strangers: whatever they name, opening them runs nothing, and the refusal says what to type instead."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied_rl.checkpoints.policy_format import make_header
from embodied_rl.config import freeze as configuration
from embodied_rl.config.assets import resolve_path
from embodied_rl.schema import AlgoNode, PolicyNode, SimNode, TrainConfig
from tests.support.planting import Plant

Typed = Callable[..., tuple[int, str]]

NODES: dict[str, Callable[[Plant], dict[str, Any]]] = {
    "interpreter": lambda plant: {"name": "tabletop", "python": str(plant.interpreter)},
    "folders": lambda plant: {"name": "tabletop", "python": sys.executable, "pythonpath": [str(plant.modules)]},
    "package": lambda plant: {"name": "gymnasium", "package": "evil"},
    "id": lambda plant: {"name": "gymnasium", "id": "evil:Evil-v0"},
    "options": lambda plant: {"name": "gymnasium", "options": {"env_id": "evil:Evil-v0"}},
    "isaac": lambda plant: {"name": "isaaclab", "package": "evil"},
    "isaac options": lambda plant: {"name": "isaaclab", "options": {"events.reset.func": "evil:run"}},
    "assets": lambda plant: {"name": "libero", "assets": str(plant.modules)},
}
KEYS = {
    "interpreter": "sim.python", "folders": "sim.pythonpath", "package": "sim.package", "id": "sim.id",
    "options": "sim.options", "isaac": "sim.package", "isaac options": "sim.options", "assets": "sim.assets",
}  # fmt: skip


def policy_file(folder: Path, node: dict[str, Any]) -> Path:
    """A sound policy that says it was trained in such a simulator."""
    base, file = resolve_path("asset:tabletop_base.safetensors"), folder / "policy.safetensors"
    with safe_open(base, "pt") as opened:
        header = json.loads(opened.metadata()["embodied_rl"])
    header["extra"]["sim"] = node
    tensors = load_file(base)
    save_file(tensors, file, make_header(header, tensors))
    return file


def run_folder(folder: Path, node: dict[str, Any], **changes: Any) -> Path:
    """A run that was killed before its first checkpoint, and another one's policy in it."""
    (folder / "checkpoints").mkdir()
    name = node["name"]
    config = TrainConfig(SimNode(name), PolicyNode("pocket"), AlgoNode("ppo"), **changes)
    plain = configuration.thaw_config(config)
    plain["sim"] |= node
    (folder / "config.yaml").write_text(json.dumps(plain))
    policy_file(folder, node)
    return folder


@pytest.mark.parametrize("what", NODES)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_policy_file_names_code(plant: Plant, typed: Typed, tmp_path: Path, what: str, dry: tuple[str, ...]) -> None:
    file = policy_file(tmp_path, NODES[what](plant))
    code, said = typed("eval", f"policy={file}", "episodes=1", *dry)
    assert not plant.mark.exists()
    assert code == 2 and KEYS[what] in said and "Traceback" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("what", NODES)
def test_a_run_folder_names_code(plant: Plant, typed: Typed, tmp_path: Path, what: str) -> None:
    run = run_folder(tmp_path, NODES[what](plant))
    for arguments in (("train", f"resume={run}"), ("train", f"resume={run}", "--dry-run"), ("eval", f"policy={run}")):
        code, said = typed(*arguments)
        assert not plant.mark.exists()
        assert code == 2 and KEYS[what] in said and "Traceback" not in said, said


@pytest.mark.process
def test_what_the_refusal_says_to_type_is_taken(plant: Plant, typed: Typed, tmp_path: Path) -> None:
    """It is then the user's own word: the interpreter is asked, and found to be none."""
    file = policy_file(tmp_path, NODES["interpreter"](plant))
    said = typed("eval", f"policy={file}")[1]
    remedy = said.rpartition("type it yourself: ")[2].strip()
    assert remedy == f"sim.python={plant.interpreter}"
    code, said = typed("eval", f"policy={file}", "episodes=1", remedy)
    assert plant.mark.exists() and code != 0


@pytest.mark.thorough
@pytest.mark.process
def test_numbers_name_nothing(plant: Plant, typed: Typed, tmp_path: Path) -> None:
    """Options of numbers alone come from the file, as they did in training."""
    node = {"name": "gymnasium", "package": None, "options": {"camera": {"distance": 1.5, "lookat": [0, 1.0]}}}
    code, said = typed("eval", f"policy={policy_file(tmp_path, node)}", "episodes=1")
    assert "never taken from a file" not in said and code != 0


def test_a_run_folder_names_a_cluster(plant: Plant, typed: Typed, tmp_path: Path) -> None:
    """Who connects to a Ray cluster runs what it sends."""
    run = run_folder(tmp_path, {"name": "tabletop"}, runtime="ray", cluster="203.0.113.7:6379")
    code, said = typed("train", f"resume={run}")
    assert code == 2 and f"type it yourself: resume={run} cluster=203.0.113.7:6379" in said, said


def test_what_a_run_folder_refers_to_is_not_looked_up(
    plant: Plant, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither variables of the environment nor YAML's own constructors."""
    monkeypatch.setenv("SECRET", "hunter2")
    run = run_folder(tmp_path, {"name": "tabletop", "image_size": "${oc.env:SECRET}"})
    assert "hunter2" not in typed("eval", f"policy={run}")[1]
    (run / "config.yaml").write_text(f"sim: !!python/object/apply:os.system ['touch {plant.mark}']\n")
    for arguments in (("eval", f"policy={run}"), ("train", f"resume={run}")):
        code, said = typed(*arguments)
        assert code == 2 and "is damaged" in said and not plant.mark.exists()


OPENS = {
    "eval": ("eval", "policy={}", "episodes=1"),
    "play": ("play", "policy={}", "sim=tabletop"),
    "collect": ("collect", "policy={}", "sim=tabletop", "episodes=1"),
    "train": ("train", "policy.checkpoint={}", "sim=tabletop", "plan=colocated", "plan.ranks=1"),
    "sft": ("sft", "policy.checkpoint={}", "sim=tabletop"),
    "resume": ("train", "resume={}"),
    "export": ("export", "checkpoint={}", "out=exported"),
    "import": ("import", "policy.checkpoint={}", "sim=tabletop"),
    "inspect": ("inspect", "{}"),
    "compare": ("compare", "{}", "{}"),
    "trace": ("trace", "{}"),
    "plan costs": ("plan", "costs={}"),
    "plan file": ("train", "plan={}.json", "experiment=demo"),
    "dataset": ("sft", "dataset={}", "experiment=tabletop_sft"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("command", OPENS)
def test_no_command_opens_a_pickle(plant: Plant, typed: Typed, tmp_path: Path, command: str) -> None:
    """Whatever it is called, and wherever in a folder it lies; by itself, a file of each kind."""
    planted = pickle.dumps(plant)
    names = [
        "policy.safetensors", "model.safetensors", "policy.pt", "config.yaml", "config.json", "report.json",
        "plan.json", "metrics.jsonl", "overrides.txt", "timelines/00000001.json", "checkpoints/last", "meta/info.json",
        "checkpoints/00000001/policy.safetensors", "checkpoints/00000001/state.json", "meta/tasks.parquet",
        "checkpoints/00000001/tensors.safetensors", "data/chunk-000/file-000.parquet",
    ]  # fmt: skip
    dry = ("--dry-run",) if command in ("train", "sft", "dataset", "plan file") else ()
    folder = tmp_path / "sent"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(planted)
    (tmp_path / "bare.json").write_bytes(planted)
    kinds = {Path(name).suffix: folder / name for name in names}
    for target in (folder, *kinds.values(), tmp_path / "bare"):
        arguments = [word.format(target) for word in OPENS[command]]
        code, said = typed(*arguments, *dry)
        assert not plant.mark.exists() and code == 2, (target, said)
        assert len([line for line in said.splitlines() if line.startswith("embodied-rl: ")]) == 1, (target, said)
