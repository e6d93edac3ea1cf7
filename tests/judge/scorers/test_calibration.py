"""A calibrated scorer changes valid scores alone, and belongs to the scorer that it was fitted to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.critic.evaluation.validation import check_run_scorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScorerTraits
from embodied_rl.judge.scorers.calibration import (
    FORMAT,
    VERSION,
    CalibratedConfig,
    CalibratedScorer,
    PlattMap,
    read_calibration,
)
from embodied_rl.judge.scorers.registry import configure_scorer
from embodied_rl.schema import RewardNode
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import Answer, ToldScorer, request, score


def write(folder: Path, **changes: Any) -> str:
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
    found = ask(build(write(tmp_path), lambda asked: Score(0.8, done=0.9, confidence=0.7)))
    assert found.value == pytest.approx(sigmoid(0.5 * np.log(4) - 1)) and found.confidence == 0.7
    assert found.done == pytest.approx(sigmoid(2 * np.log(9) + 0.5))
    alone = ask(build(write(tmp_path, done=None), lambda asked: Score(0.8, done=0.9)))
    assert alone.done == 0.9 and alone.value == found.value
    assert ask(build(write(tmp_path), lambda asked: Score(0.8))).done is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_ends_stay_within_the_range(tmp_path: Path, value: float) -> None:
    found = ask(build(write(tmp_path), lambda asked: Score(value, done=value)))
    assert 0 < found.value < 1 and found.checked("absolute").valid


@pytest.mark.parametrize("score", [Score.invalid("unsure", "who knows"), Score(1.7), Score(0.5, done=-3.0)])
def test_what_is_no_score_stays_none(tmp_path: Path, score: Score) -> None:
    assert ask(build(write(tmp_path), lambda asked: score)) is score


def test_the_identity_tells_the_maps(tmp_path: Path) -> None:
    scorer = build(write(tmp_path), lambda asked: Score(0.5))
    assert scorer.traits.identity == "told, calibrated: progress 0.5 -1, done 2 0.5" and scorer.traits.judges_done


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"identity": "another"}, "calibration-of-another-scorer", "another"),
        ({"format": "x"}, "calibration-damaged", "calibrate=true"),
        ({"version": 9}, "calibration-damaged", "calibrate=true"),
        ({"progress": {"slope": -1.0, "offset": 0.0}}, "calibration-damaged", "slope -1"),
        ({"progress": {"slope": 1e9, "offset": 0.0}}, "calibration-damaged", "slope 1e+09"),
        ({"progress": {"slope": 1.0, "offset": float("nan")}}, "calibration-damaged", "offset nan"),
        ({"progress": {"slope": 1.0}}, "key-missing", "offset"),
        ({"progress": 3}, "value-wrong-type", "progress"),
    ],
)
def test_unsuitable_calibrations_are_refused(tmp_path: Path, changes: dict[str, Any], code: str, named: str) -> None:
    with refuses(code, named):
        build(write(tmp_path, **changes), lambda asked: Score(0.5))


def test_a_scorer_of_changes_is_refused(tmp_path: Path) -> None:
    with refuses("scorer-without-progress"):
        build(write(tmp_path), lambda asked: Score(0.5), kinds=("pair",))
    with pytest.raises(UserError, match="cannot be read"):
        read_calibration(tmp_path / "nothing.json")


def test_a_calibrated_critic_has_to_be_examined_anew(tmp_path: Path) -> None:
    """What its file tells is of scores without the calibration."""
    spec = spec_of(TabletopConfig())
    kind, options = configure_scorer(RewardNode("embedded"))
    file = write(tmp_path, identity=kind(options, spec).traits.identity)
    assert check_run_scorer(RewardNode("embedded"), spec) is None
    with refuses("scorer-not-evaluated", "calibrated: "):
        check_run_scorer(RewardNode("embedded", calibration=file), spec)
    assert check_run_scorer(RewardNode("embedded", mode="audit", calibration=file), spec) is None


def test_a_map_without_slope_one_is_no_identity() -> None:
    values = np.array([0.1, 0.5, 0.9, np.nan])
    np.testing.assert_allclose(PlattMap(1.0, 0.0).apply(values), values, atol=1e-12)
