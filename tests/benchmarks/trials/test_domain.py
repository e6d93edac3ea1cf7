"""The files that keep a domain lie where no other user can put links."""

import os
import tempfile
from pathlib import Path

import pytest

from embodied_rl.benchmarks.trials.domain import DOMAINS, reserve_domain_id
from embodied_rl.interfaces.errors import RunFailed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"embodied-rl-domains-{os.getuid()}"


def test_a_file_is_not_emptied_through_a_link(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder.mkdir(0o700)
    for domain in DOMAINS:
        (folder / str(domain)).symlink_to(mine)
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert mine.read_text() == "precious"


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(RunFailed, match=str(folder)), reserve_domain_id():
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(0o700)
    owner = os.getuid()
    folder.rename(folder.with_name(f"embodied-rl-domains-{owner + 1}"))
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(RunFailed, match="embodied-rl-domains"), reserve_domain_id():
        pass


def test_the_folder_is_for_its_owner_alone(folder: Path) -> None:
    with reserve_domain_id():
        assert folder.stat().st_mode & 0o777 == 0o700
    with reserve_domain_id():
        pass
