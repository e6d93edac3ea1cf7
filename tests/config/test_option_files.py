"""The user's own YAML by `--config-dir`; overrides without Hydra mean what Hydra takes them to mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from embodied_rl.cli.command import read_config_folder
from embodied_rl.cli.main import USER_ERROR, main
from embodied_rl.cli.run_command import Preparation
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.freeze import to_yaml
from embodied_rl.config.option_files import list_experiments, parse_overrides
from tests.support.refusals import refuses


def write_algorithm(folder: Path, text: str) -> Path:
    """Write `algo/mine.yaml` below the folder; return the folder."""
    (folder / "algo").mkdir()
    (folder / "algo" / "mine.yaml").write_text(text, encoding="utf-8")
    return folder


def test_yaml_aliases_are_resolved(tmp_path: Path) -> None:
    folder = write_algorithm(tmp_path, "name: ppo\nlr: &rate 1e-3\nlr_final: *rate\n")
    assert compose_config("train", ["algo=mine"], config_dir=folder)["algo"]["lr_final"] == 1e-3


@pytest.mark.parametrize(
    ("text", "code", "data"),
    [
        ("name: ppo\nlr: *rate\n", "config-damaged", "'rate'"),
        ("name: ppo\nlr: 1\nlr: 2\n", "config-damaged", "duplicate key lr"),
        ("name: ppo\n\tlr: 1\n", "config-damaged", "mine.yaml"),
        ("name: !!python/object/apply:os.getcwd []\n", "config-damaged", "os.getcwd"),
        ("name: ppo\n---\nname: grpo\n", "config-damaged", "document"),
        ("defaults:\n  - mine\nname: ppo\n", "config-circular", "defaults"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, code: str, data: str) -> None:
    folder = write_algorithm(tmp_path, text)
    with refuses(code, data) as raised:
        compose_config("train", ["algo=mine"], config_dir=folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("option", ["-m", "--cfg=all"])
def test_sweeps_refuse_damaged_files(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_algorithm(tmp_path, "name: ppo\nlr: *rate\n")
    assert main(["train", "algo=mine", "--config-dir", str(folder), "--dry-run", option]) == USER_ERROR
    err = capsys.readouterr().err
    assert "[config-damaged]" in err and "'rate'" in err


def test_files_in_another_encoding_are_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes("# train: café\n".encode("latin-1"))
    for read in (lambda: read_config_folder(str(tmp_path)), lambda: list_experiments(tmp_path)):
        with refuses("file-not-utf8", "mine.yaml"):
            read()


@pytest.mark.parametrize("typed", ["experiment=null", "experiment=null,demo", "algo=[grpo],flow_sde"])
def test_choices_are_names(typed: str) -> None:
    with refuses("choice-not-a-name", typed):
        compose_config("train", [typed])


@pytest.mark.parametrize(
    "value",
    ["3", "-3", "1e-3", "2.", ".5", "+4", "true", "False", "null", "word", "two words", "ws://127.0.0.1:8000",
     "a.yaml", "[1,b,null]", "[]", "{a: 1, b/c: [x,y]}", "'3'", "['3',4]",
     "yes", "off", "2026-11-24", "0x10", "~/x", "a:b",
     "nan-x"],
)  # fmt: skip
def test_a_value_means_what_hydra_takes_it_to_mean(value: str) -> None:
    assert parse_overrides([f"key={value}"]) == compose_config(None, [f"key={value}"])


def test_keys_are_nested() -> None:
    assert parse_overrides(["a.b=1", "a.c.d=x", "e=2"]) == {"a": {"b": 1, "c": {"d": "x"}}, "e": 2}


@pytest.mark.parametrize(
    ("words", "code", "data"),
    [
        (["word"], "setting-invalid", "word"),
        (["~key"], "setting-invalid", "~key"),
        (["+key=1"], "setting-invalid", "+key=1"),
        (["a=[1"], "setting-invalid", "a=[1"),
        (["a=[&x [*x]]"], "setting-invalid", "a=[&x"),
        (["a={b: 1, b: 2}"], "setting-invalid", "a={b"),
        (["a=1", "a=2"], "key-set-twice", "a"),
        (["a=1", "a.b=2"], "key-set-twice", "a.b=2"),
        (["robot.rate=3"], "key-only-in-file", "robot.rate=3"),
    ],
)
def test_what_is_no_setting_is_refused(words: list[str], code: str, data: str) -> None:
    with refuses(code, data):
        parse_overrides(words)


def test_a_robot_in_the_users_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "mine.yaml").touch()
    assert parse_overrides(["robot=mine"], tmp_path) == {"robot": str(tmp_path / "robot" / "mine.yaml")}
    assert parse_overrides(["robot=other"], tmp_path) == {"robot": "other"}


@pytest.mark.parametrize("word", ["-m", "--hydra-help", "--cfg=all"])
def test_a_robots_command_is_not_swept(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "robot=tabletop", word]) == USER_ERROR
    found = capsys.readouterr().err
    assert "[command-not-swept]" in found and f"leave {word} out" in found


def test_two_processes_do_not_drive_one_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation = Preparation()
    assert preparation.adapt("bridge", 3) == 3
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refuses("torchrun-not-train", "bridge"):
        preparation.adapt("bridge", 3)


@dataclass(frozen=True)
class Anything:
    value: Any


@pytest.mark.thorough
@given(st.text("0123456789eE+-._:yYnNotrufalsiOFx '\"#äß\n\t{}[],&*!|>%@`=~", max_size=6))
@example("oN")
@example("y")
@example("1e3")
@example("1_0")
@example(".inf")
@example("12:30")
@example("2026-11-24")
def test_text_in_yaml_is_quoted_as_omegaconf_quotes_it(text: str) -> None:
    value = {"text": text, "list": [text, 1.5, None, True], "empty": {}, "none": []}
    assert to_yaml(Anything(value)) == OmegaConf.to_yaml(OmegaConf.create({"value": value}))
