"""What `export` and `import` would do is told without doing it, and a policy file that lies is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from tests.support import strangers
from tests.support.building_checkpoints import lerobot


def test_a_dry_run_says_what_an_export_would_read_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = strangers.policy_of_pi0(tmp_path, lambda header: None, {})
    assert main(["export", str(file), f"out={tmp_path / 'made'}", "--dry-run"]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert str(file) in said and str(tmp_path / "made") in said
    assert not (tmp_path / "made").exists()


def test_a_dry_run_says_what_an_import_would_read_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = lerobot(tmp_path / "pi0", "pi0"), tmp_path / "made.safetensors"
    typed = ("policy=pi0", f"policy.checkpoint={folder}", "sim=tabletop", f"out={out}", "--dry-run")
    assert main(["import", *typed]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert str(folder) in said and str(out) in said
    assert not out.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("steps", ["evil", float("nan"), 1.5, [], None, True, 0, -(10**30)])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_denoise_steps_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: Any, dry: tuple[str, ...]
) -> None:
    file = strangers.policy_of_pi0(tmp_path, lambda header: header["extra"].update(denoise_steps=steps), {})
    assert main(["export", str(file), f"out={tmp_path / 'made'}", *dry]) == 2
    assert f"{file}: denoise_steps=" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("form", ["gr00t", "openvla"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_format_of_other_policies_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, dry: tuple[str, ...]
) -> None:
    file = strangers.policy_of_pi0(tmp_path, lambda header: None, {})
    assert main(["export", str(file), f"format={form}", f"out={tmp_path / 'made'}", *dry]) == 2
    error = capsys.readouterr().err
    assert "[format-does-not-support-policy]" in error and form in error and "format=lerobot" in error
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("form", ["lerobot", "openpi"])
def test_a_condition_is_refused_as_no_other_format_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """With and without guidance."""
    said = {"condition": "advantage: positive", "guidance": 1.5}
    file = strangers.policy_of_pi0(tmp_path, lambda header: header["embodiment"].update(said), {})
    assert main(["export", str(file), f"format={form}", f"out={tmp_path / 'made'}"]) == 2
    told = capsys.readouterr().err
    assert "[format-does-not-support-condition]" in told and "'advantage: positive'" in told and "guidance=1.5" in told
    assert not (tmp_path / "made").exists()
