"""Lock files of domain ids: the folder must belong to the user, and links are not followed."""

import os
import tempfile
from pathlib import Path

import pytest

from embodied_rl.benchmarks.robot_runs.processes import DOMAINS, reserve_domain_id
from embodied_rl.interfaces.errors import RunFailed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"embodied-rl-domains-{os.getuid()}"


def test_links_in_the_folder_are_not_followed(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder.mkdir(0o700)
    for domain in DOMAINS:
        (folder / str(domain)).symlink_to(mine)
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert mine.read_text() == "precious"


def test_linked_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720])
def test_folder_writable_by_others_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert list(folder.iterdir()) == []


def test_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(0o700)
    owner = os.getuid()
    folder.rename(folder.with_name(f"embodied-rl-domains-{owner + 1}"))
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(RunFailed, match="embodied-rl-domains"), reserve_domain_id():
        pass


def test_folder_is_private_and_domain_id_is_released(folder: Path) -> None:
    with reserve_domain_id():
        assert folder.stat().st_mode & 0o777 == 0o700
    with reserve_domain_id():
        pass
