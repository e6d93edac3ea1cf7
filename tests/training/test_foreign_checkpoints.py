"""A checkpoint of lerobot's from the command line: looked at, trained, evaluated, resumed, and written back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.training.trainer import Trainer
from tests.support import building_checkpoints as building
from tests.support import small_fast
from tests.support.building_checkpoints import EMBEDDING, HEAD, lerobot, openpi
from tests.support.running import REACHING, SMALL, assert_same
from tests.support.using_checkpoints import attach, save

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str, str]]
CAMERAS = "policy.cameras={base_0_rgb: top, left_wrist_0_rgb: null, right_wrist_0_rgb: null}"
ATTACHED = (CAMERAS, "policy.vision_heads=2")
OURS = ("policy.", "train.iterations", "train.eval_every", "algo.critic_warmup", "algo.minibatch", "checkpoint.every")
RUN = (
    "train", *REACHING, *(word for word in SMALL if not word.startswith(OURS)), "sim.num_envs=4", "sim.horizon=6",
    "train.iterations=2", "train.decisions=2", "train.eval_every=0", "checkpoint.every=1", "algo.critic_warmup=0",
    "algo.minibatch=8", "plan=sync", "policy.executed=3",
)  # fmt: skip


def know_reaching() -> dict[str, Any]:
    """Statistics for the robot of the simulator "reaching": three state entries, two actions."""
    known = {name: building.sizes.statistics(name, dims) for name, dims in (("state", 3), ("action", 2))}
    for values in known.values():
        for key in values:
            values[key][-1] = {"mean": 0.0, "std": 1.0}.get(key, 0.0)
    return known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """π0 for that robot, with one of three cameras."""
    return lerobot(tmp_path_factory.mktemp("formats") / "folder", "pi0", stats=know_reaching())


@pytest.mark.process
@pytest.mark.parametrize("train", [pytest.param("expert", marks=pytest.mark.slow), "lora"])
def test_train_resume_evaluate_and_write_back(
    typed: Typed, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, train: str
) -> None:
    """A resumed run ends as an unbroken one; what is frozen comes back to the bit, what learned does not."""
    if train == "lora":
        pytest.importorskip("peft")
    settings = (*RUN, "policy=pi0", f"policy.checkpoint={folder}", *ATTACHED, f"policy.train={train}")
    settings = (*settings, *(["policy.lora.rank=2"] if train == "lora" else []), "policy.cache_gigabytes=1")
    step = Trainer.step

    def interrupted(trainer: Trainer) -> dict[str, float]:
        if trainer.iteration == 1:
            raise KeyboardInterrupt
        return step(trainer)

    assert succeeded(typed(*settings, "run.root=straight"))
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert typed(*settings, "run.root=stopped")[0] == 130
    assert succeeded(typed("train", "resume=last", "run.root=stopped"))
    run, stopped = (next((tmp_path / root).glob("*/*")) for root in ("straight", "stopped"))
    assert_same(stopped, run)

    said = read_metadata(run / "policy.safetensors")
    assert (said.adapters is not None) == (train == "lora")
    assert succeeded(typed("eval", f"policy={run}", "episodes=2", "video.episodes=0", "plan=sync"))
    told = succeeded(typed("inspect", str(run)))
    assert "made from lerobot's" in told and ("adapters of rank 2" in told) == (train == "lora")

    assert "lerobot checkpoint of pi0 in back" in succeeded(typed("export", f"checkpoint={run}", "out=back"))
    old, new = load_file(folder / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert old.keys() == new.keys()
    changed = {name.removeprefix("model.") for name in old if not torch.equal(old[name], new[name])}
    assert "action_in_proj.weight" in changed and any("gemma_expert" in name for name in changed)
    assert not any("vision_tower" in name or "projector" in name or name in (EMBEDDING, HEAD) for name in changed)
    assert any("language_model" in name for name in changed) == (train == "lora")
    same = {file.name for file in folder.iterdir() if file.is_file()} - {"model.safetensors", "config.json"}
    assert all((folder / name).read_bytes() == (tmp_path / "back" / name).read_bytes() for name in same)
    written = json.loads((tmp_path / "back/config.json").read_text())
    assert written == json.loads((folder / "config.json").read_text()) | {"n_action_steps": 3}


@pytest.mark.process
def test_pi0_fast_is_trained_evaluated_and_written_back(typed: Typed, tmp_path: Path) -> None:
    fast = small_fast.folder(tmp_path / "fast", stats=know_reaching())
    settings = json.loads((fast / "config.json").read_text())
    settings["output_features"]["action"]["shape"] = [2]
    (fast / "config.json").write_text(json.dumps(settings))
    policy = ("policy=pi0_fast", f"policy.checkpoint={fast}", CAMERAS, "policy.vision_heads=2")
    learning = ("algo=ppo", "algo.sampler.name=tokens", "algo.level=chunk")
    assert succeeded(typed(*RUN, *policy, *learning))
    (run,) = (tmp_path / "runs" / "train").iterdir()
    assert succeeded(typed("eval", f"policy={run}", "episodes=3", "video.episodes=0", "plan=sync", "out=seen"))
    assert json.loads((tmp_path / "seen/report.json").read_text())["success"]["episodes"] == 3
    assert "lerobot checkpoint of pi0_fast in back" in succeeded(typed("export", f"checkpoint={run}", "out=back"))
    old, new = load_file(fast / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert old.keys() == new.keys() and any(not torch.equal(old[name], new[name]) for name in old)


def succeeded(result: tuple[int, str, str]) -> str:
    """What a command said, on one line."""
    code, out, err = result
    assert code == 0, err
    return " ".join(out.split())


def test_entries_that_a_format_lacks_are_printed(typed: Typed, tmp_path: Path) -> None:
    """openpi's folder knows nothing of relative actions, and neither knows conventions of grippers."""
    source = lerobot(tmp_path / "source", "pi0", relative=True, action_names=building.sizes.ACTION_NAMES)
    network, robot = attach(source, "pi0", gripper="zero_one")
    save(tmp_path / "policy.safetensors", "pi0", network, robot)
    for form in ("openpi", "lerobot"):
        told = succeeded(typed("export", "checkpoint=policy.safetensors", f"format={form}", f"out={form}"))
        assert ("actions relative to the state: x, y, z, yaw" in told) == (form == "openpi")
        assert "policy.gripper=zero_one" in told


@pytest.mark.parametrize("form", ["lerobot", "openpi"])
def test_inspect_lists_present_and_missing_entries(typed: Typed, tmp_path: Path, folder: Path, form: str) -> None:
    found = folder if form == "lerobot" else openpi(tmp_path / "openpi", "pi05")
    succeeded(typed("inspect", str(found), "--dry-run"))
    code, out, err = typed("inspect", str(found))
    text = " ".join(out.split())
    assert code == 0, err
    assert form in text and "base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb" in text
    if form == "lerobot":
        assert "pi0" in text and "108, 0.001 GB: 108 float32" in text and "3 entries, mean_std" in text
        assert "denoise steps 4" in text and "tokenizer inside" in text and "executed 5" in text
        assert "how many attention heads its vision tower has: give policy.vision_heads=<number>" in text
    else:
        assert "pi05" in text and "6 entries, quantiles" in text and "not inside" in text
        assert "missing: the tokenizer; policy.tokenizer=" in text and "policy.vision_heads=<number>" in text


def test_inspect_names_the_robots_to_choose_from(typed: Typed, tmp_path: Path) -> None:
    known = building.statistics()
    openpi(tmp_path / "openpi", "pi0", assets={"one": known, "two": known})
    code, out, _ = typed("inspect", "openpi")
    assert code == 0 and "one of one, two with policy.statistics=<asset>" in " ".join(out.split())


def test_mistakes_end_in_one_line(typed: Typed, tmp_path: Path, folder: Path) -> None:
    """Through every layer of the command line, without a traceback."""
    attached = (*RUN, "policy=pi0", f"policy.checkpoint={folder}")
    for words, message in (
        ((*attached, "policy.vision_heads=2"), "Assign cameras"),
        ((*attached, CAMERAS), "give policy.vision_heads=<number>"),
        ((*attached, *ATTACHED, "policy.horizon=9"), "leave policy.horizon out"),
        ((*RUN, "policy=pi05", f"policy.checkpoint={folder}", *ATTACHED), "set policy=pi0"),
        (("inspect", "nowhere"), "nowhere"),
        (("inspect", "nowhere", "--dry-run"), "checkpoint-missing"),
        (("inspect", "nowhere.safetensors", "--dry-run"), "nowhere.safetensors"),
        (("export", f"checkpoint={folder}", "out=back"), "checkpoint-not-imported"),
        (("export", "checkpoint=nowhere", "out=back"), "nowhere"),
    ):
        code, _, err = typed(*words)
        assert code == 2 and message in err and "Traceback" not in err, (words, err)
    assert not (tmp_path / "back").exists()


@pytest.mark.process
@pytest.mark.parametrize("form", ["lerobot", "openpi"])
def test_an_imported_policy_can_be_evaluated_and_exported_again(
    typed: Typed, tmp_path: Path, folder: Path, form: str
) -> None:
    """Without a step of training, nothing is another than in the folder."""
    words = ("policy=pi0", f"policy.checkpoint={folder}", *ATTACHED, *REACHING, "sim.horizon=6", "out=pi0.safetensors")
    told = succeeded(typed("import", *words))
    assert "lerobot checkpoint of pi0" in told and "pi0.safetensors" in told
    assert read_metadata(tmp_path / "pi0.safetensors").extra["denoise_steps"] == building.sizes.STEPS
    assert succeeded(typed("eval", "policy=pi0.safetensors", "episodes=2", "video.episodes=0", "plan=sync"))
    succeeded(typed("export", "checkpoint=pi0.safetensors", f"format={form}", "out=back"))
    found, wanted = load_file(tmp_path / "back/model.safetensors"), load_file(folder / "model.safetensors")
    assert all(torch.equal(value, wanted[f"model.{name.removeprefix('model.')}"]) for name, value in found.items())
    assert ((tmp_path / "back/config.json").read_bytes() == (folder / "config.json").read_bytes()) == (
        form == "lerobot"
    )
