"""Provenance of a run."""

import json
import os
import re
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from embodied_rl.assembly.machine_doctor import check_cores
from embodied_rl.runs import provenance
from tests.support.refusals import refuses


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "code.py").write_text("one = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return tmp_path, git


def test_a_change_is_kept_as_a_patch(repository, tmp_path_factory):
    folder, git = repository
    assert provenance.read_git_state(folder / "source") == (git("rev-parse", "HEAD"), "")
    (folder / "source" / "code.py").write_text("one = 2\n")
    out = tmp_path_factory.mktemp("run")
    found = provenance.write_provenance(out, folder / "source")
    assert found.dirty and json.loads((out / "provenance.json").read_text())["commit"] == git("rev-parse", "HEAD")
    git("checkout", "-q", ".")
    git("apply", str(out / "git.diff"))
    assert (folder / "source" / "code.py").read_text() == "one = 2\n"


def test_an_ignored_folder_of_a_repository_has_no_commit(repository):
    folder, _ = repository
    (folder / ".gitignore").write_text("installed\n")
    (folder / "installed").mkdir()
    (folder / "installed" / "code.py").write_text("")
    assert provenance.read_git_state(folder / "installed") == (None, "")


def test_no_repository_and_no_git_have_no_commit(tmp_path, monkeypatch):
    assert provenance.read_git_state(tmp_path) == (None, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.read_git_state(tmp_path) == (None, "")


@pytest.mark.parametrize(
    ("program", "expected"),
    [("/opt/bin/embodied-rl", "embodied-rl"), ("/opt/lib/embodied_rl/__main__.py", "python -m embodied_rl")],
)
def test_the_command_is_recorded_as_typed(monkeypatch, program, expected):
    monkeypatch.setattr("sys.argv", [program, "train", "task=put it", "seed=0,1", "-m"])
    assert provenance.describe_command() == f"{expected} train 'task=put it' seed=0,1 -m"


def test_a_report_lists_selected_packages(tmp_path):
    began = asdict(provenance.write_provenance(tmp_path, tmp_path))
    assert began["hardware"]["cores"] >= 1 and began["hardware"]["cpu"] and not (tmp_path / "git.diff").exists()
    kind = r"\S+ family \d+ model \d+ stepping \d+" if "vendor_id" in Path("/proc/cpuinfo").read_text() else ".*"
    assert re.fullmatch(kind, began["hardware"].get("cpu_id", ""))
    shown = provenance.select_for_report(provenance.read_provenance(tmp_path))
    assert shown["packages"]["numpy"] == version("numpy") and len(shown["packages"]) < len(began["packages"])
    assert {name: shown[name] for name in ("commit", "command", "started", "load", "hardware")} == {
        name: began[name] for name in ("commit", "command", "started", "load", "hardware")
    }
    assert provenance.read_provenance(tmp_path / "elsewhere") == {}


def test_notes_are_added(tmp_path):
    began = asdict(provenance.write_provenance(tmp_path))
    provenance.add_note(tmp_path, "first")
    provenance.add_note(tmp_path, "second")
    content = json.loads((tmp_path / "provenance.json").read_text())
    notes = content.pop("notes")
    assert content == began and [note["note"] for note in notes] == ["first", "second"]
    assert {"time", "command", "commit"} <= notes[0].keys()


@pytest.mark.parametrize("content", ["[", "[]"])
def test_no_note_is_added_to_a_damaged_file(tmp_path, content):
    (tmp_path / "provenance.json").write_text(content)
    with refuses("provenance-damaged", "provenance.json"):
        provenance.add_note(tmp_path, "lost")
    assert (tmp_path / "provenance.json").read_text() == content


def test_cores_are_counted_on_a_system_without_affinity(monkeypatch):
    assert provenance.count_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert provenance.count_cores() == os.cpu_count()
    assert check_cores().status in ("ok", "warn")
