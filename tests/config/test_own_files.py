"""The user's own YAML, by `--config-dir`: mistakes in it are reported in one line that names the file."""

from pathlib import Path

import pytest

from embodied_rl.cli.command import read_config_folder
from embodied_rl.cli.main import USER_ERROR, main
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.option_files import list_experiments
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
