"""Prompts are data: those that are shipped are sound, and what is wrong in one of one's own is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import RANGES
from embodied_rl.scorers.prompt import FOLDER, PromptText, load_prompt

SOUND = {"version": 2, "kind": "absolute", "user": [{"text": "{instruction}"}, "frame"], "labels": {"Yes": 1, "No": 0}}


def write(folder: Path, **changes: Any) -> str:
    keys = {key: value for key, value in (SOUND | changes).items() if value is not None}
    (folder / "mine.yaml").write_text(yaml.safe_dump(keys))
    return str(folder / "mine.yaml")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_what_is_shipped_is_sound(name: str) -> None:
    prompt = load_prompt(name)
    assert prompt.name == f"{name}@1" and "frame" in prompt.parts
    assert any("{instruction}" in part.text for part in prompt.parts if isinstance(part, PromptText))
    low, high = RANGES[prompt.kind]
    assert all(low <= value <= high for value in prompt.labels.values())


def test_percent_are_read_from_text() -> None:
    prompt = load_prompt("progress_percent")
    assert prompt.read_text("It moved. Progress: 62.5 %.") == pytest.approx(0.625)
    assert prompt.read_text("I cannot say.") is None
    assert prompt.read_text("progress: 300%") == 3.0, "its range is checked where scores are"


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    prompt = load_prompt(write(tmp_path))
    assert prompt.name == "mine@2" and prompt.labels == {"yes": 1, "no": 0}
    assert prompt.read_text(" yes.") == 1 and prompt.read_text("maybe") is None


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"labels": None}, "either labels or a pattern"),
        ({"pattern": "(1)"}, "either labels or a pattern"),
        ({"labels": {str(n): 0.5 for n in range(21)}}, "21 labels"),
        ({"user": [{"text": "x"}]}, "'frame' is missing"),
        ({"user": ["frame", "last"]}, "'last'"),
        ({"user": ["frame", {"txt": "x"}]}, "txt"),
        ({"labels": None, "pattern": "("}, "pattern"),
        ({"labels": None, "pattern": "1"}, "0 groups"),
        ({"kind": "vibes"}, "kind"),
        ({"version": "x"}, "version"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_prompt(write(tmp_path, **changes))


def test_a_file_that_is_no_prompt(tmp_path: Path) -> None:
    for text, says in (("a: [", "no YAML"), ("- 1", "holds no keys"), ("!!python/object:os.system x", "no YAML")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(UserError, match=says):
            load_prompt(str(tmp_path / "bad.yaml"))
    with pytest.raises(UserError, match="progress_digit"):
        load_prompt("progress_digits")
