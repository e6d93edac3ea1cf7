"""Prompts are data: the shipped ones are sound, faults are named, and answers become numbers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import RANGES
from embodied_rl.judge.prompts.answer_parser import expect_value, read_log_probabilities
from embodied_rl.judge.prompts.prompt import FOLDER, list_prompts, load_prompt
from embodied_rl.judge.prompts.prompt_parts import PromptPictures, PromptText
from embodied_rl.serving.limits import RequestLimits

SOUND = {"version": 2, "kind": "absolute", "user": [{"text": "{instruction}"}, "frame"], "labels": {"Yes": 1, "No": 0}}
PAIR = {"kind": "pair", "frames": 2, "user": ["before", "frame"]}
LIST = {"labels": None, "entries": {"number": "n", "value": "v"}}
PLANTED = {
    "a: [": "is damaged", "- 1": "holds no keys", "!!python/object:os.system x": "is damaged",
    "kind: !!int ''": "is damaged", "kind: !!bool x": "is damaged", "kind: !!timestamp x": "is damaged",
    "kind: " + "[" * 50_000: "is damaged", "kind: pair\nkind: absolute": "is damaged: .*duplicate key",
}  # fmt: skip
TRAJECTORY = LIST | {"kind": "trajectory", "frames": 4, "user": ["shuffled"]}


def write(folder: Path, **changes: Any) -> str:
    keys = {key: value for key, value in (SOUND | changes).items() if value is not None}
    (folder / "mine.yaml").write_text(yaml.safe_dump(keys))
    return str(folder / "mine.yaml")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_what_is_shipped_is_sound(name: str) -> None:
    prompt = load_prompt(name)
    assert prompt.name == f"{name}@1" and prompt.pictures
    assert any("{instruction}" in part.text for part in prompt.parts if isinstance(part, PromptText))
    low, high = RANGES[prompt.kind]
    assert all(low <= value <= high for value in [*prompt.reading.labels.values(), *prompt.reading.words.values()])
    assert 10 < len(list_prompts()[name]) < 160, "its first line says what it is"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_a_server_of_ours_accepts_what_is_shipped(name: str) -> None:
    prompt, limits = load_prompt(name), RequestLimits()
    assert prompt.max_tokens <= limits.tokens and prompt.frames + ("first" in prompt.pictures) <= limits.pictures


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_words_of_others_name_source_and_licence(name: str) -> None:
    keys = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    ours = ("progress_digit", "progress_percent", "pair_delta", "done_yesno", "embedded", "embedded_done")
    assert (name in ours) == ("source" not in keys) == ("licence" not in keys)


@pytest.mark.parametrize(
    "name, said, value",
    [
        ("progress_percent", "It moved. Progress: 62.5 %.", 0.625),
        ("progress_percent", "I cannot say.", None),
        ("progress_percent", "progress: 300%", 3.0),  # its range is checked where scores are
        ("pair_delta", "J", 0.5),
        ("done_yesno", " No.", 0),
        ("vlac_pair", "-12", -0.12),
        ("vlac_pair", "first image progressing: 12%", None),
        ("vlac_done", "1", 1),
        ("roboreward", "The cup stands there.\nANSWER: 4", 0.75),
        ("roboreward", "ANSWER: <score>", None),
        ("dopamine", "<score>+33%</score>", 0.33),
        ("dopamine", "<score>-8%</score>", -0.08),
        ("dopamine", "33%", None),
        ("trend", '{"trend": "negative"}', -0.1),
        ("trend", "It went in a negative direction at first.\nPositive.", 0.1),
        ("trend", "It is not negative, but Positive.", None),
        ("trend", "positive, negative, or unclear", None),
        ("progress_percent", "<THINK>progress: 90%\n\nno</Think>\nprogress: 10%", 0.1),
        ("progress_percent", "progress: 90%, so\n</think>\nprogress: 10%", 0.1),
        ("progress_percent", "<think>a<think>progress: 20%</think>progress: 90%</think>progress: 10%", 0.1),
        ("progress_percent", "progress: 10% <think>or progress: 90%?</think>", 0.1),
        ("progress_percent", "progress: 10% <think>or progress: 90%", 0.1),
        ("progress_percent", "<think>progress: 90%", None),
        ("progress_percent", "◁think▷progress: 90%◁/think▷", None),
        ("progress_percent", "<think>" * 100_000, None),
        ("progress_percent", "First progress: 90%.\nNow progress: 10%.", 0.1),
        ("progress_percent", "progress: 10% or progress: 90%", None),
        ("progress_percent", "progress: 10%, yes, progress: 10%", 0.1),
        ("trend", "positively", None),
    ],
)
def test_answers_in_words(name: str, said: str, value: float | None) -> None:
    read = load_prompt(name).reading.read_text(said)
    assert read == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    "said, values",
    [
        ('[{"frame_number": 2, "task_completion_percentage": 50}]', (None, 0.5, None)),
        ('So:\n```json\n[{"frame_number": 1, "task_completion_percentage": "7%"}]\n```', (0.07, None, None)),
        ('[{"frame_number": 9, "task_completion_percentage": 50}]', None),
        ('[{"frame_number": 1, "task_completion_percentage": true}]', None),
        ('[{"frame_number": 1, "task_completion_percentage": 1e999}]', None),
        ('[{"frame_number": 1, "task_completion_percentage": 50}', None),
        (
            '<think>[{"frame_number": 1, "task_completion_percentage": 9}]</think>'
            '[{"frame_number": 1, "task_completion_percentage": 50}]',
            (0.5, None, None),
        ),
        (
            json.dumps(
                [{"frame_number": n, "task_completion_percentage": p} for n, p in ((1, 9), (1, 8), (2, 9), (2, 9))]
            ),
            (None, 0.09, None),
        ),
        ("[" * 100_000 + "]", None),
        ("[1, 2]", None),
        ("", None),
    ],
)
def test_lists_in_json(said: str, values: tuple[float | None, ...] | None) -> None:
    read = load_prompt("gvl").reading.read_entries(said, 3)
    wanted = values and tuple(float("nan") if value is None else value for value in values)
    assert read == (None if wanted is None else pytest.approx(wanted, nan_ok=True))


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    prompt = load_prompt(write(tmp_path))
    assert prompt.name == "mine@2" and prompt.reading.labels == {"yes": 1, "no": 0}
    assert prompt.reading.read_text(" yes.") == 1 and prompt.reading.read_text("maybe") is None
    assert prompt.parts == (PromptText("{instruction}"), PromptPictures("frame"))


def test_what_a_prompt_needs() -> None:
    dopamine, trend, plain = load_prompt("dopamine"), load_prompt("trend"), load_prompt("progress_digit")
    assert (dopamine.views, dopamine.needs_reference, dopamine.frames) == (3, True, 2)
    assert (trend.views, trend.needs_reference, trend.frames, trend.span) == (2, False, 5, "latest")
    assert (plain.views, plain.needs_reference, plain.frames) == (0, False, 1)
    assert load_prompt("topreward").span == "episode"


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"labels": None}, "either labels or a pattern"),
        ({"pattern": "(1)"}, "either labels or a pattern"),
        ({"words": {"good": 1}}, "one of them alone"),
        ({"labels": {str(n): 0.5 for n in range(21)}}, "21 labels"),
        ({"labels": {"Yes": 1, " yes": 0}}, "stands there twice"),
        ({"log_range": 3.0}, "goes with one label"),
        ({"labels": {"True": 1}, "log_range": 0.0}, "positive"),
        ({"scale": 0.0}, "scale"),
        ({"user": [{"text": "x"}]}, "'frame' is missing"),
        ({"user": ["frame", "last"]}, "'last'"),
        ({"user": ["frame", {"txt": "x"}]}, "txt"),
        ({"user": ["frame", {"text": "{task}"}]}, r"\{task\} is not a placeholder"),
        ({"user": ["frame", {"text": "{percent}"}]}, "percent"),
        ({"user": ["frame", {"pictures": "frames", "before": "{percent}"}]}, "percent"),
        ({"user": ["frame", {"pictures": "last"}]}, "'last'"),
        ({"user": ["frame", {"pictures": "frame", "vieew": 1}]}, "unknown key 'vieew'.*view"),
        ({"user": [{"pictures": "frame", "view": -1}]}, "view=-1"),
        ({"user": [{"pictures": "frame", "view": True}]}, "view=True"),
        ({"user": ["frame", {"pictures": "frame", "after": 3}]}, "texts"),
        ({"user": ["before", "frame"]}, "kind=pair alone"),
        ({"user": ["frames"]}, "frames=1 is too few"),
        ({"frames": 65}, "1 … 64"),
        ({"kind": "pair"}, "compares"),
        (PAIR | {"frames": 1}, "frames=1 is too few"),
        ({"kind": "trajectory"}, "go together"),
        (LIST, "go together"),
        (TRAJECTORY | {"user": ["shuffled", "frame"]}, "'frames' or 'shuffled'"),
        ({"frames": 4, "user": ["frame", "shuffled"]}, "for kind=trajectory"),
        ({"entries": {"number": "n"}, "labels": None}, "value"),
        ({"labels": None, "pattern": "("}, "pattern"),
        ({"labels": None, "pattern": "1"}, "0 groups"),
        ({"kind": "vibes"}, "kind"),
        ({"span": "all"}, "span"),
        ({"version": "x"}, "version"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_prompt(write(tmp_path, **changes))


@pytest.mark.thorough
def test_a_file_that_is_no_prompt(tmp_path: Path) -> None:
    for text, says in PLANTED.items():
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(UserError, match=says):
            load_prompt(str(tmp_path / "bad.yaml"))
    with pytest.raises(UserError, match="progress_digit"):
        load_prompt("progress_digits")


DIGITS = {str(digit): digit / 9 for digit in range(10)}


def tokens(**probabilities: float) -> list[tuple[str, float]]:
    return [(token, math.log(each)) for token, each in probabilities.items()]


def test_the_value_is_the_expectation() -> None:
    score = expect_value([("3", math.log(0.5)), ("6", math.log(0.3)), ("the", math.log(0.2))], DIGITS)
    assert score.value == pytest.approx((3 / 9 * 0.5 + 6 / 9 * 0.3) / 0.8)


def test_confidence_is_one_minus_the_share_of_entropy() -> None:
    assert expect_value(tokens(**{"4": 1.0}), DIGITS).confidence == pytest.approx(1.0)
    even = expect_value([(str(digit), math.log(0.1)) for digit in range(10)], DIGITS)
    assert even.confidence == pytest.approx(0.0, abs=1e-9) and even.value == pytest.approx(0.5)
    shares = np.array([0.7, 0.3])
    two = expect_value(tokens(**{"1": 0.7, "2": 0.3}), DIGITS)
    assert two.confidence == pytest.approx(1 + (shares * np.log(shares)).sum() / np.log(10))


@pytest.mark.parametrize("said", [[], [("I", -0.01)], [("3", math.log(0.3)), ("I", math.log(0.7))], [("3", -math.inf)]])
def test_an_answer_of_something_else_is_no_score(said: list[tuple[str, float]]) -> None:
    score = expect_value(said, DIGITS)
    assert score.reason == "unsure" and math.isnan(score.value)


def test_sums_above_one_by_rounding_stay_within_the_range() -> None:
    score = expect_value([("9", 1e-9), (" 9", math.log(1e-9))], DIGITS)
    assert score.value <= 1.0


@pytest.mark.parametrize(
    "entries",
    [
        None, {}, "x", [1], [{}], [{"token": "3"}], [{"token": 3, "logprob": -1}], [{"token": "3", "logprob": "x"}],
        [{"token": "3", "logprob": True}], [{"token": "3", "logprob": math.nan}], [{"token": "3", "logprob": 2.0}],
    ],
)  # fmt: skip
def test_what_is_no_list_of_log_probabilities_is_refused(entries: object) -> None:
    with pytest.raises(ValueError, match="top_logprobs"):
        read_log_probabilities(entries)
