"""A calibrated scorer changes valid scores alone, and belongs to the scorer that it was fitted to."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.critic.examination.examined import check_run_scorer
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
from embodied_rl.judge.scorers.choice import configure_scorer
from embodied_rl.schema import RewardNode
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.collecting import SPEC
from tests.support.scoring import Answer, ToldScorer, request


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
    (score,) = asyncio.run(scorer.score([request()]))
    return score


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
    ("changes", "message"),
    [
        ({"identity": "another"}, "is of another, and the scorer is told"),
        ({"format": "x"}, "is no calibration that"),
        ({"version": 9}, "is no calibration that"),
        ({"progress": {"slope": -1.0, "offset": 0.0}}, "are no calibration"),
        ({"progress": {"slope": 1e9, "offset": 0.0}}, "are no calibration"),
        ({"progress": {"slope": 1.0, "offset": float("nan")}}, "are no calibration"),
        ({"progress": {"slope": 1.0}}, "offset"),
        ({"progress": 3}, "progress"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(write(tmp_path, **changes), lambda asked: Score(0.5))


def test_a_scorer_of_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say how far a task is"):
        build(write(tmp_path), lambda asked: Score(0.5), kinds=("pair",))
    with pytest.raises(UserError, match="cannot be read"):
        read_calibration(tmp_path / "nothing.json")


def test_a_calibrated_critic_has_to_be_examined_anew(tmp_path: Path) -> None:
    """What its file tells is of scores without the calibration."""
    spec = spec_of(TabletopConfig())
    kind, options = configure_scorer(RewardNode("embedded"))
    file = write(tmp_path, identity=kind(options, spec).traits.identity)
    assert check_run_scorer(RewardNode("embedded"), spec) is None
    with pytest.raises(UserError, match=r"calibrated: .* was never examined"):
        check_run_scorer(RewardNode("embedded", calibration=file), spec)
    assert check_run_scorer(RewardNode("embedded", mode="audit", calibration=file), spec) is None


def test_a_map_without_slope_one_is_no_identity() -> None:
    values = np.array([0.1, 0.5, 0.9, np.nan])
    np.testing.assert_allclose(PlattMap(1.0, 0.0).apply(values), values, atol=1e-12)
