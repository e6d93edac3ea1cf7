"""A user's own YAML, by `--config-dir`: what is wrong in it is told in one line that names the file."""

from pathlib import Path

import pytest

from embodied_rl.cli.main import USER_ERROR, main
from embodied_rl.cli.options import read_config_folder
from embodied_rl.config.compose import compose_config, list_experiments
from embodied_rl.interfaces.errors import UserError


def write_algorithm(folder: Path, text: str) -> Path:
    """Write `algo/mine.yaml` below the folder; return the folder."""
    (folder / "algo").mkdir()
    (folder / "algo" / "mine.yaml").write_text(text, encoding="utf-8")
    return folder


def test_an_alias_stands_for_its_value(tmp_path: Path) -> None:
    folder = write_algorithm(tmp_path, "name: ppo\nlr: &rate 1e-3\nlr_final: *rate\n")
    assert compose_config("train", ["algo=mine"], config_dir=folder)["algo"]["lr_final"] == 1e-3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: ppo\nlr: *rate\n", "found undefined alias 'rate'"),
        ("name: ppo\nlr: 1\nlr: 2\n", "found duplicate key lr"),
        ("name: ppo\n\tlr: 1\n", "mine.yaml"),
        ("name: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("name: ppo\n---\nname: grpo\n", "but found another document"),
        ("defaults:\n  - mine\nname: ppo\n", "choose each other in a circle"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(tmp_path: Path, text: str, expected: str) -> None:
    folder = write_algorithm(tmp_path, text)
    with pytest.raises(UserError) as raised:
        compose_config("train", ["algo=mine"], config_dir=folder)
    assert expected in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("option", ["-m", "--cfg=all"])
def test_a_sweep_tells_it_too(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_algorithm(tmp_path, "name: ppo\nlr: *rate\n")
    assert main(["train", "algo=mine", "--config-dir", str(folder), "--dry-run", option]) == USER_ERROR
    assert "found undefined alias 'rate'" in capsys.readouterr().err


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes("# train: café\n".encode("latin-1"))
    for read in (lambda: read_config_folder(str(tmp_path)), lambda: list_experiments(tmp_path)):
        with pytest.raises(UserError, match=r"mine\.yaml is not text in UTF-8"):
            read()


@pytest.mark.parametrize("typed", ["experiment=null", "experiment=null,demo", "algo=[grpo],flow_sde"])
def test_what_is_chosen_has_a_name(typed: str) -> None:
    with pytest.raises(UserError, match="is chosen by name"):
        compose_config("train", [typed])
