"""Versions of a simulator's packages against its recipe."""

import importlib
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.runtime.simulators.python_environments import list_other_versions, read_recipe
from embodied_rl.schema import SimNode


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The packages of an environment with what MetaWorld's recipe installs; its interpreter is never started."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/false")
    python.chmod(0o755)
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for word in (word for step in read_recipe("metaworld").steps for word in step):
        install(site, *word.split("=="))
    return site


def install(site: Path, name: str, version: str) -> None:
    file = site / f"{name}-0.dist-info" / "METADATA"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_only_versions_that_the_recipe_does_not_install_are_told(site: Path) -> None:
    node = SimNode("metaworld", python=str(site.parents[2]))
    assert list_other_versions(node) == []
    install(site, "mujoco", "3.3.0+local")
    assert list_other_versions(node) == [], "what follows + is how it was built"
    install(site, "mujoco", "3.8.1")
    install(site, "metaworld", "3.2.0")
    assert list_other_versions(node) == ["metaworld 3.2.0 (tested: 3.1.1)", "mujoco 3.8.1 (tested: 3.3.0)"]


def test_nothing_is_told_where_a_package_is_missing_or_there_is_no_recipe(site: Path) -> None:
    importlib.import_module("importlib_metadata")  # as MLflow does: it takes the place of Python's own finder
    install(site, "mujoco", "3.8.1")
    (site / "metaworld-0.dist-info" / "METADATA").unlink()
    assert list_other_versions(SimNode("metaworld", python=str(site.parents[2]))) == [], "a rest without metadata"
    (site / "metaworld-0.dist-info").rmdir()
    assert list_other_versions(SimNode("metaworld", python=str(site.parents[2]))) == []
    assert list_other_versions(SimNode("tabletop")) == []


def test_commands_tell_untested_versions_before_they_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(python_environments, "list_other_versions", lambda node: [f"{node.name} 9 (tested: 1)"])
    assert main(["play", "sim=tabletop", "--dry-run"]) == 0
    assert "sim=tabletop has versions that were not tested: tabletop 9 (tested: 1)" in capsys.readouterr().err
