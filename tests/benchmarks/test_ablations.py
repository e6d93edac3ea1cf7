"""The series of ablations: an unfinished run is continued, a missing one started."""

from types import SimpleNamespace

import pytest

from embodied_rl.benchmarks import ablations


@pytest.mark.parametrize("stopped", [True, False], ids=["continued", "started"])
def test_a_row_is_continued_or_started(tmp_path, monkeypatch, stopped: bool) -> None:
    name, overrides = "noise a = 0.2", ablations.ROWS["noise a = 0.2"]
    folder, commands = tmp_path / ablations.make_label(name) / "20260101-000000_s4", []
    monkeypatch.setattr(ablations.checkpoint, "list_steps", lambda path: [3] if stopped else [])
    monkeypatch.setattr(
        ablations.subprocess, "run", lambda words, check: commands.append(words[3:]) or SimpleNamespace()
    )
    folder.mkdir(parents=True)
    ablations.start_or_continue(tmp_path, name, overrides, 4)
    new = ["experiment=demo", f"run.root={tmp_path}", f"run.experiment={folder.parent.name}", "seed=4", *overrides]
    assert commands == [["train", *([f"resume={folder}", f"run.root={tmp_path}"] if stopped else new)]]
