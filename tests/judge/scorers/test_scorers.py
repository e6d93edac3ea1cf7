"""Scorers without a server: scripted, replayed from a log, and calibrated on outcomes."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.critic.evaluation.validation import check_run_scorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.judge.scorers.calibration import (
    FORMAT,
    VERSION,
    CalibratedConfig,
    CalibratedScorer,
    PlattMap,
    read_calibration,
)
from embodied_rl.judge.scorers.registry import configure_scorer
from embodied_rl.judge.scorers.score_log import ReplayConfig, ReplayScorer, ScoreLog, describe_score, read_scores
from embodied_rl.judge.scorers.scripted import ScriptedConfig, ScriptedScorer
from embodied_rl.schema import RewardNode
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import Answer, ToldScorer, request, score

PROGRESS_SPEC = replace(FakeSimulator.spec_of(FakeSimulator.Config()), reports_progress=True)


def ask_judge(which: str, *requests: ScoreRequest) -> list[float]:
    scorer = ScriptedScorer(ScriptedConfig(judge=which), PROGRESS_SPEC)  # type: ignore[arg-type]
    return [each.value for each in score(scorer, *requests)]


def at(progress: float | None, **options: int) -> ScoreRequest:
    return replace(request(**options), progress=progress)


def test_what_each_judge_says() -> None:
    asked = [at(0.0), at(0.25), at(1.0)]
    assert ask_judge("oracle", *asked) == [0.0, 0.25, 1.0]
    assert ask_judge("inverted", *asked) == [1.0, 0.75, 0.0]
    assert ask_judge("constant", *asked) == [0.5] * 3


def test_noise_follows_from_episode_and_decision() -> None:
    asked = [at(0.5, episode=number // 10, decision=number % 10) for number in range(200)]
    said = ask_judge("noisy", *asked)
    assert ask_judge("noisy", *reversed(asked)) == said[::-1]
    assert np.std(said) == pytest.approx(0.2, abs=0.03) and min(said) >= 0 and max(said) <= 1


def test_a_hackable_judge_likes_bright_pictures() -> None:
    dark, bright = ask_judge("hackable", at(1.0, code=0), at(0.0, code=255))
    assert (dark, bright) == (pytest.approx(0.3), pytest.approx(0.7))
    picture = np.full((1, 10, 20, 3), 153, np.uint8)
    picture[0, 0, :5] = 154
    picture[0, 1, :5, :2] = 255  # yellow: not all its colours are bright
    assert ask_judge("hackable", replace(at(0.0), frames={"top": picture})) == [pytest.approx(0.7 * 0.25)]


def test_a_simulator_without_progress_is_refused() -> None:
    spec = replace(PROGRESS_SPEC, reports_progress=False)
    with refuses("scorer-needs-ground-truth", "reward.judge=oracle", "sim.progress=true"):
        ScriptedScorer(ScriptedConfig(), spec)
    ScriptedScorer(ScriptedConfig(judge="constant"), spec)


def test_a_request_without_progress_is_no_zero() -> None:
    with pytest.raises(ScorerError, match="did not report progress"):
        ask_judge("oracle", at(None))


def test_settings_out_of_bounds_are_refused() -> None:
    for options in ({"noise": -1.0}, {"latency": -1.0}, {"slots": 0}):
        with pytest.raises(UserError, match="reward"):
            ScriptedConfig(**options)  # type: ignore[arg-type]


LINE = describe_score(request(episode=3, decision=1, words="go"), Score(0.1 + 0.2), 0.5, used=True)


def write_log(folder: Path, *lines: dict) -> Path:
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
    folder = write_log(tmp_path, LINE)
    assert list(read_scores(folder)) == [LINE]
    assert answer(folder, 3, 1).value == 0.1 + 0.2


def test_a_link_out_of_the_folder_is_not_written_to(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text("mine\n", encoding="utf-8")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "0.jsonl").symlink_to(own)
    with pytest.raises(UserError, match=r"outside of .* is not opened"):
        write_log(tmp_path, LINE)
    assert own.read_text(encoding="utf-8") == "mine\n"


def test_what_was_not_used_then_is_not_used_again(tmp_path: Path) -> None:
    second, third = (request(episode=3, decision=number, words="go") for number in (2, 3))
    late = describe_score(second, Score(0.5), 9.0, used=False)
    failed = describe_score(third, Score.invalid("timeout", "no answer"), 9.0, used=False)
    folder = write_log(tmp_path, late, failed)
    assert answer(folder, 3, 2).reason == "late"
    assert answer(folder, 3, 3).reason == "timeout" and math.isnan(answer(folder, 3, 3).value)
    assert answer(folder, 4, 0).reason == "unavailable"


def test_the_later_line_counts(tmp_path: Path) -> None:
    """A run that was killed and resumed asks again for what came after its checkpoint."""
    folder = write_log(tmp_path, LINE, LINE | {"value": 0.7})
    assert answer(folder, 3, 1).value == 0.7


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_log(tmp_path, LINE)
    with (folder / "scores" / "0.jsonl").open("a") as file:
        file.write(json.dumps(LINE)[:20])
    assert len(list(read_scores(folder))) == 1


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", json.dumps(LINE | {"value": "x"}), json.dumps(LINE | {"episode": None}), "\xff", "[" * 100_000],
)
def test_a_damaged_line_is_refused_by_name(tmp_path: Path, line: str) -> None:
    folder = write_log(tmp_path, LINE)
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


def write_calibration(folder: Path, **changes: Any) -> str:
    content = {
        "format": FORMAT, "version": VERSION, "identity": "told", "progress": {"slope": 0.5, "offset": -1.0},
        "done": {"slope": 2.0, "offset": 0.5}, "reliability": {"anything": 1},
    }  # fmt: skip
    file = folder / "calibration.json"
    file.write_text(json.dumps(content | changes), encoding="utf-8")
    return str(file)


def build(file: str, answer: Answer, kinds: Any = ("absolute",)) -> CalibratedScorer:
    scorer = ToldScorer(answer)
    scorer.traits = ScorerTraits(kinds, "told", judges_done=True)
    kind: Any = lambda _config, _spec: scorer  # noqa: E731 - stands for a class
    return CalibratedScorer(CalibratedConfig((kind, None), file), SPEC)


def ask(scorer: CalibratedScorer) -> Score:
    return score(scorer, request())[0]


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def test_progress_and_done_have_maps_of_their_own(tmp_path: Path) -> None:
    found = ask(build(write_calibration(tmp_path), lambda asked: Score(0.8, done=0.9, confidence=0.7)))
    assert found.value == pytest.approx(sigmoid(0.5 * np.log(4) - 1)) and found.confidence == 0.7
    assert found.done == pytest.approx(sigmoid(2 * np.log(9) + 0.5))
    alone = ask(build(write_calibration(tmp_path, done=None), lambda asked: Score(0.8, done=0.9)))
    assert alone.done == 0.9 and alone.value == found.value
    assert ask(build(write_calibration(tmp_path), lambda asked: Score(0.8))).done is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_ends_stay_within_the_range(tmp_path: Path, value: float) -> None:
    found = ask(build(write_calibration(tmp_path), lambda asked: Score(value, done=value)))
    assert 0 < found.value < 1 and found.checked("absolute").valid


@pytest.mark.parametrize("score", [Score.invalid("unsure", "who knows"), Score(1.7), Score(0.5, done=-3.0)])
def test_what_is_no_score_stays_none(tmp_path: Path, score: Score) -> None:
    assert ask(build(write_calibration(tmp_path), lambda asked: score)) is score


def test_the_identity_tells_the_maps(tmp_path: Path) -> None:
    scorer = build(write_calibration(tmp_path), lambda asked: Score(0.5))
    assert scorer.traits.identity == "told, calibrated: progress 0.5 -1, done 2 0.5" and scorer.traits.judges_done


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"identity": "another"}, "calibration-of-another-scorer", "another"),
        ({"format": "x"}, "calibration-damaged", "calibrate=true"),
        ({"version": 9}, "calibration-damaged", "calibrate=true"),
        ({"progress": {"slope": -1.0, "offset": 0.0}}, "calibration-damaged", "slope -1"),
        ({"progress": {"slope": 1e9, "offset": 0.0}}, "calibration-damaged", "slope 1e+09"),
        ({"progress": {"slope": 1.0, "offset": float("nan")}}, "value-not-finite", "progress.offset"),
        ({"progress": {"slope": 1.0}}, "key-missing", "offset"),
        ({"progress": 3}, "value-wrong-type", "progress"),
    ],
)
def test_unsuitable_calibrations_are_refused(tmp_path: Path, changes: dict[str, Any], code: str, named: str) -> None:
    with refuses(code, named):
        build(write_calibration(tmp_path, **changes), lambda asked: Score(0.5))


def test_a_scorer_of_changes_is_refused(tmp_path: Path) -> None:
    with refuses("scorer-without-progress"):
        build(write_calibration(tmp_path), lambda asked: Score(0.5), kinds=("pair",))
    with pytest.raises(UserError, match="cannot be read"):
        read_calibration(tmp_path / "nothing.json")


def test_a_calibrated_critic_has_to_be_examined_anew(tmp_path: Path) -> None:
    """What its file tells is of scores without the calibration."""
    spec = spec_of(TabletopConfig())
    kind, options = configure_scorer(RewardNode("embedded"))
    file = write_calibration(tmp_path, identity=kind(options, spec).traits.identity)
    assert check_run_scorer(RewardNode("embedded"), spec) is None
    with refuses("scorer-not-evaluated", "calibrated: "):
        check_run_scorer(RewardNode("embedded", calibration=file), spec)
    assert check_run_scorer(RewardNode("embedded", mode="audit", calibration=file), spec) is None


def test_a_map_without_slope_one_is_no_identity() -> None:
    values = np.array([0.1, 0.5, 0.9, np.nan])
    np.testing.assert_allclose(PlattMap(1.0, 0.0).apply(values), values, atol=1e-12)
