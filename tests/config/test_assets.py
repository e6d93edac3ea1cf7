"""Files that travel with the package."""

from pathlib import Path

import pytest

from embodied_rl.config import assets


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


def test_an_unknown_asset_is_answered_with_the_closest(folder) -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'base.safetensors'"):
        assets.resolve_path("asset:bse.safetensors")


def test_an_empty_folder_says_so(folder) -> None:
    (folder / "base.safetensors").unlink()
    with pytest.raises(ValueError, match="Nothing lies in"):
        assets.find_asset("base.safetensors")
