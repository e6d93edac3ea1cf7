"""Loading the package asks nothing and leaves the process's environment as it was; assets are where the user says."""

import os
from pathlib import Path
from types import ModuleType

import pytest

from embodied_rl_sims.libero import loading, package

VARIABLE = "LIBERO_CONFIG_PATH"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """What the variable holds whenever the package is imported; the user's folder is empty."""
    found: list[str | None] = []
    monkeypatch.setattr(package, "find_benchmark_folder", lambda: tmp_path / "package")
    monkeypatch.setattr(
        loading, "import_module", lambda name: found.append(os.environ.get(VARIABLE)) or ModuleType(name)
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return found


def configuration(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("assets: elsewhere\n")
    return folder


def has_configuration(folder: str | None) -> bool:
    return folder is not None and (Path(folder) / "config.yaml").is_file()


def test_without_a_configuration_the_package_finds_one_and_the_variable_goes(seen: list[str | None]) -> None:
    loading._import_quietly()
    assert has_configuration(seen[0])
    assert VARIABLE not in os.environ


def test_the_user_s_own_configuration_is_used(seen: list[str | None], tmp_path: Path) -> None:
    configuration(tmp_path / "home" / ".libero")
    loading._import_quietly()
    assert seen == [None] and VARIABLE not in os.environ


@pytest.mark.parametrize("exists", [True, False])
def test_the_user_s_variable_is_as_before(
    seen: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    folder = tmp_path / "mine"
    if exists:
        configuration(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    loading._import_quietly()
    assert has_configuration(seen[0]) and (seen[0] == str(folder)) == exists
    assert os.environ[VARIABLE] == str(folder)


def test_assets_are_where_the_user_s_configuration_says(seen: list[str | None], tmp_path: Path) -> None:
    downloaded, packaged, named = (
        tmp_path / "home/.cache/libero/assets",
        tmp_path / "package/assets",
        tmp_path / "named",
    )
    assert package.find_assets_folder(None) == downloaded, "none exists: where a download would bring them"
    downloaded.mkdir(parents=True)
    packaged.mkdir(parents=True)
    assert package.find_assets_folder(None) == packaged
    named.mkdir()
    (configuration(tmp_path / "home" / ".libero") / "config.yaml").write_text(f"assets: {named}\nbenchmark_root: x\n")
    assert package.find_assets_folder(None) == named
    assert package.find_assets_folder("/chosen") == Path("/chosen")
