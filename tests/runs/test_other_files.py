"""Paths that are not checkpoints are described, with the step that makes a checkpoint of their content."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection
from embodied_rl.cli.main import main
from tests.support.building_checkpoints import lerobot
from tests.support.refusals import refuses
from tests.support.using_checkpoints import attach


def touched(folder: Path, *names: str, content: str = "{}") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def pickled(path: Path) -> Path:
    path.write_bytes(pickle.dumps([1.0]))
    return path


PEFT = json.dumps({"base_model_name_or_path": "lerobot/pi0_base", "peft_type": "LORA"})
FOUND: dict[str, tuple[Callable[[Path], Path], str]] = {
    "adapters": (
        lambda p: touched(p / "x", "adapter_config.json", "adapter_model.safetensors", content=PEFT),
        "'lerobot/pi0_base'",
    ),
    "damaged adapters": (lambda p: touched(p / "x", "adapter_config.json", content="["), "holds adapters"),
    "lerobot's training": (
        lambda p: touched(p / "x", "checkpoints/000100/pretrained_model/config.json", "checkpoints/last"),
        "checkpoints/000100/pretrained_model.",
    ),
    "lerobot's checkpoint": (lambda p: touched(p / "x", "pretrained_model/config.json"), "/x/pretrained_model."),
    "JAX": (lambda p: touched(p / "x", "params/_METADATA"), "convert_jax_model_to_pytorch.py --checkpoint_dir"),
    "JAX's parameters": (lambda p: touched(p / "x", "_METADATA", "manifest.ocdbt"), "checkpoint of JAX (Orbax)"),
    "dataset": (lambda p: touched(p / "x", "meta/info.json"), "embodied-rl sft"),
    "replay": (lambda p: touched(p / "x", "format.json", "texts.jsonl"), "is a replay storage"),
    "sweep": (lambda p: touched(p / "x", "multirun.yaml"), "is the record of a sweep"),
    "pickle": (lambda p: touched(p, "x.pt") / "x.pt", "x.pt is a pickle"),
    "pickle without a suffix": (lambda p: pickled(p / "x"), "x is a pickle"),
    "other file": (lambda p: touched(p, "x.txt") / "x.txt", "x.txt is a file"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_content_is_described(tmp_path: Path, what: str) -> None:
    make, said = FOUND[what]
    path = make(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        build.resolve_policy_file(str(path))
    assert said in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


COMMANDS = (
    "inspect {}",
    "eval {} --dry-run",
    "import policy=pi0 sim=tabletop policy.checkpoint={}",
    "train experiment=demo policy.checkpoint={} --dry-run",
)


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_describes_the_content(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    for what in ("adapters", "dataset", "pickle"):
        path = FOUND[what][0](tmp_path / what)
        assert main([word.format(path) for word in command.split()]) == 2
        assert FOUND[what][1] in capsys.readouterr().err, what


def test_a_name_on_a_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="type hf:lerobot/pi0_base, which downloads it"):
        build.resolve_policy_file("lerobot/pi0_base")
    with refuses("hub-name-invalid", "give hf:<owner>/<name>"):
        build.resolve_policy_file("hf://lerobot/pi0_base")


def test_a_mistyped_run_is_not_a_hub_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(CheckpointError, match=r"^No checkpoint at runs/x"):
        build.resolve_policy_file("runs/x")


def test_adapters_with_a_configuration_of_lerobot(tmp_path: Path) -> None:
    folder = touched(lerobot(tmp_path / "folder", "pi0"), "adapter_config.json", content=PEFT)
    with pytest.raises(CheckpointError, match="holds adapters"):
        detection.read_checkpoint(folder)


def test_weights_in_float8(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0")
    header = json.dumps({"a.weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(CheckpointError, match=r"model.safetensors holds weights in float8 \(F8_E4M3\)"):
        attach(folder, "pi0")
