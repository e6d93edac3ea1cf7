"""Logs of scores: what is written is read, and what is damaged is refused by file and line."""

import asyncio
import json
import math
from pathlib import Path

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score
from embodied_rl.judge.scorers.score_log import ReplayConfig, ReplayScorer, ScoreLog, describe_score, read_scores
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import request

LINE = describe_score(request(episode=3, decision=1, words="go"), Score(0.1 + 0.2), 0.5, used=True)


def write(folder: Path, *lines: dict) -> Path:
    log = ScoreLog(folder / "scores" / "0.jsonl", "told")
    log.write(lines)
    log.close()
    return folder


def answer(folder: Path, episode: int, decision: int) -> Score:
    scorer = ReplayScorer(ReplayConfig(str(folder)), SPEC)
    return asyncio.run(_first(scorer, episode, decision))


async def _first(scorer: ReplayScorer, episode: int, decision: int) -> Score:
    return (await scorer.score([request(episode=episode, decision=decision, words="go")]))[0]


def test_what_was_written_is_read_to_the_bit(tmp_path: Path) -> None:
    folder = write(tmp_path, LINE)
    assert list(read_scores(folder)) == [LINE]
    assert answer(folder, 3, 1).value == 0.1 + 0.2


def test_a_link_out_of_the_folder_is_not_written_to(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text("mine\n", encoding="utf-8")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "0.jsonl").symlink_to(own)
    with pytest.raises(UserError, match=r"outside of .* is not opened"):
        write(tmp_path, LINE)
    assert own.read_text(encoding="utf-8") == "mine\n"


def test_what_was_not_used_then_is_not_used_again(tmp_path: Path) -> None:
    second, third = (request(episode=3, decision=number, words="go") for number in (2, 3))
    late = describe_score(second, Score(0.5), 9.0, used=False)
    failed = describe_score(third, Score.invalid("timeout", "no answer"), 9.0, used=False)
    folder = write(tmp_path, late, failed)
    assert answer(folder, 3, 2).reason == "late"
    assert answer(folder, 3, 3).reason == "timeout" and math.isnan(answer(folder, 3, 3).value)
    assert answer(folder, 4, 0).reason == "unavailable"


def test_the_later_line_counts(tmp_path: Path) -> None:
    """A run that was killed and resumed asks again for what came after its checkpoint."""
    folder = write(tmp_path, LINE, LINE | {"value": 0.7})
    assert answer(folder, 3, 1).value == 0.7


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, LINE)
    with (folder / "scores" / "0.jsonl").open("a") as file:
        file.write(json.dumps(LINE)[:20])
    assert len(list(read_scores(folder))) == 1


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", json.dumps(LINE | {"value": "x"}), json.dumps(LINE | {"episode": None}), "\xff", "[" * 100_000],
)
def test_a_damaged_line_is_refused_by_name(tmp_path: Path, line: str) -> None:
    folder = write(tmp_path, LINE)
    with (folder / "scores" / "0.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with refuses("score-log-damaged", "0.jsonl, line 3"):
        list(read_scores(folder))


def test_a_folder_without_scores_is_refused(tmp_path: Path) -> None:
    with refuses("score-log-missing"):
        ReplayScorer(ReplayConfig(str(tmp_path)), SPEC)
    with refuses("key-missing", "reward.log"):
        ReplayScorer(ReplayConfig(), SPEC)


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "scores" / "0.jsonl").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be written"):
        log = ScoreLog(tmp_path / "scores" / "0.jsonl", "told")
        log.close()
        log.write([LINE])


@pytest.mark.parametrize("value", [math.nan, b"half"])
def test_a_line_that_json_does_not_hold_is_a_mistake_that_shows(tmp_path: Path, value: object) -> None:
    log = ScoreLog(tmp_path / "0.jsonl", "told")
    log.write([LINE | {"detail": value}])
    log.close()
    with pytest.raises((TypeError, ValueError), match="JSON"):
        log.write([LINE])
