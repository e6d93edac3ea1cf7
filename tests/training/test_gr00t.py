"""A GR00T folder of NVIDIA's from the command line: looked at, trained by Flow-SDE PPO, evaluated, and written back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import gr00t_sizes as sizes
from tests.support import small_gr00t
from tests.support.running import REACHING, SMALL

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str, str]]
TOLD = [f"policy.{key}={json.dumps(value)}" for key, value in small_gr00t.TOLD.items()]
OURS = ("policy.", "train.iterations", "train.eval_every", "algo.", "checkpoint.every")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the robot of the simulator "reaching": three state entries, two actions, one camera."""
    made = small_gr00t.nvidia(tmp_path_factory.mktemp("gr00t") / "folder")
    processor, known = (json.loads((made / name).read_text()) for name in ("processor_config.json", "statistics.json"))
    robot, numbers = processor["processor_kwargs"]["modality_configs"][sizes.TAG], known[sizes.TAG]
    robot["video"]["modality_keys"] = ["top"]
    robot["state"]["modality_keys"], robot["action"]["modality_keys"] = ["x", "gripper"], ["rot"]
    robot["action"]["action_configs"] = None
    for content, name in ((processor, "processor_config.json"), (known, "statistics.json")):
        (made / name).write_text(json.dumps(content))
    assert len(numbers["state"]["gripper"]["q01"]) == 2
    return made


def succeeded(result: tuple[int, str, str]) -> str:
    """What a command said, on one line."""
    code, out, err = result
    assert code == 0, err
    return " ".join(out.split())


@pytest.mark.process
@pytest.mark.parametrize("train", ["expert", "lora"])
def test_train_inspect_evaluate_and_write_back(typed: Typed, tmp_path: Path, folder: Path, train: str) -> None:
    """What is frozen comes back to the bit, and so do the weights of the other robots."""
    if train == "lora":
        pytest.importorskip("peft")
    found = ("policy=gr00t", f"policy.checkpoint={folder}", f"policy.tokenizer={folder.parent / 'tokenizer'}", *TOLD)
    succeeded(typed(
        "train", *REACHING, *(word for word in SMALL if not word.startswith(OURS)), "sim.num_envs=4", "sim.horizon=6",
        "train.iterations=2", "train.decisions=2", "train.eval_every=0", "algo=flow_sde", "algo.critic_warmup=0",
        "algo.minibatch=8", "plan=sync", "policy.executed=3", *found, f"policy.train={train}",
        *(["policy.lora.rank=2"] if train == "lora" else ["policy.cache_gigabytes=1"]),
    ))  # fmt: skip
    run = next((tmp_path / "runs").glob("*/*"))
    told = succeeded(typed("inspect", str(run)))
    assert "made from gr00t's" in told and "top" in told
    assert succeeded(typed("eval", f"policy={run}", "episodes=2", "video.episodes=0", "plan=sync"))
    assert "gr00t checkpoint of gr00t in back" in succeeded(
        typed("export", f"checkpoint={run}", "format=gr00t", "out=back")
    )
    old, new = load_file(folder / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert "action_head.action_decoder.layer2.W" in changed
    assert any("language_model" in name for name in changed) == (train == "lora")
    assert not any("visual" in name for name in changed)
    rows = (old["action_head.action_decoder.layer2.W"] != new["action_head.action_decoder.layer2.W"]).any((1, 2))
    assert rows.tolist() == [number == sizes.ROBOTS[sizes.TAG] for number in range(sizes.MOST_ROBOTS)]
    for name in ("processor_config.json", "statistics.json", "embodiment_id.json", "config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes(), name


def test_mistakes_end_in_one_line(typed: Typed, folder: Path) -> None:
    words = ("import", "policy=gr00t", f"policy.checkpoint={folder}", *REACHING, "out=p.safetensors", *TOLD)
    tokenizer = f"policy.tokenizer={folder.parent / 'tokenizer'}"
    for changes, message in (
        ((), "has no tokenizer.json"),
        ((tokenizer, "policy.embodiment=gr1"), "policy.embodiment=gr1"),
        ((tokenizer, "policy.embodiment=new_embodiment"), "Assign cameras"),
        ((tokenizer, "policy.layers=3"), "leave policy.layers out"),
    ):
        code, _, err = typed(*words, *changes)
        assert code == 2 and message in err and "Traceback" not in err, (changes, err)
