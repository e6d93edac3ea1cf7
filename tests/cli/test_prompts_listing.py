"""`embodied-rl list prompts` shows what a judge may be asked, and the words of one prompt."""

import pytest

from embodied_rl.cli.listing import list_choices
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.prompts.prompt import FOLDER


def test_all_prompts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_choices(["prompts"]) == 0
    shown = capsys.readouterr().out
    assert all(path.stem in shown for path in FOLDER.glob("*.yaml")) and "signed percent" in shown


def test_one_prompt_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_choices(["prompts", "vlac_pair"]) == 0
    assert capsys.readouterr().out == (FOLDER / "vlac_pair.yaml").read_text()
    with pytest.raises(UserError, match="vlac_pair"):
        list_choices(["prompts", "vlac_pear"])


def test_robots_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_choices(["robots"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("tabletop ") and "sim=tabletop" in line for line in lines)
    assert any(line.startswith("ur5e ") and "UR5e" in line for line in lines)
