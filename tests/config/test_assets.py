"""Files that travel with the package."""

from pathlib import Path

import pytest

from embodied_rl.config import assets
from tests.support.refusals import refuses


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "base.safetensors").write_bytes(b"x")
    monkeypatch.setattr(assets, "find_assets_folder", lambda: tmp_path)
    return tmp_path


def test_an_asset_is_found_by_name(folder) -> None:
    assert assets.find_asset("base.safetensors") == folder / "base.safetensors"
    assert assets.resolve_path("asset:base.safetensors") == folder / "base.safetensors"


def test_anything_else_is_a_path() -> None:
    assert assets.resolve_path("runs/x") == Path("runs/x")


def test_unknown_assets_are_refused(folder) -> None:
    with refuses("asset-unknown", "'base.safetensors'"):
        assets.resolve_path("asset:bse.safetensors")
    with refuses("asset-outside", "../base.safetensors"):
        assets.find_asset("../base.safetensors")
    (folder / "base.safetensors").unlink()
    with refuses("asset-unknown", folder):
        assets.find_asset("base.safetensors")
