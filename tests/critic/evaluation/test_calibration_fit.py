"""Scores are fitted to outcomes, as closed forms and SciPy do, and measured on episodes that were not fitted to."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.commands.critic_eval import check_evaluation, run
from embodied_rl.critic.evaluation.calibration_fit import (
    FILE,
    calibrate,
    describe_calibration,
    fit_platt,
    write_calibration,
)
from embodied_rl.critic.judged_episode import JudgedGoal
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.calibration import PlattMap, read_calibration
from embodied_rl.schema import CriticEvalConfig, RewardNode, SimChange
from tests.support.refusals import refuses

NONE = np.zeros(0)


def test_two_scores_are_fitted_exactly() -> None:
    """Two parameters, two points: the fit is the mean target of each."""
    said, true = np.repeat([0.3, 0.8], 50), np.arange(100) % 50 < np.repeat([10, 35], 50)
    high, low = 46 / 47, 1 / 57  # Platt's targets for 45 and 55 cases
    wanted = [(10 * high + 40 * low) / 50, (35 * high + 15 * low) / 50]
    np.testing.assert_allclose(fit_platt(said, true).apply(np.array([0.3, 0.8])), wanted, atol=1e-8)


def draw_cases(count: int, seed: int = 0, slope: float = 0.5, offset: float = -0.7) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    said = random.beta(0.8, 0.8, count)
    return said, random.random(count) < PlattMap(slope, offset).apply(said)


def test_the_likelihood_has_its_maximum_where_scipy_finds_it() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    said, true = draw_cases(300)
    odds = np.log(np.clip(said, 1e-4, 1 - 1e-4) / (1 - np.clip(said, 1e-4, 1 - 1e-4)))
    target = np.where(true, (true.sum() + 1) / (true.sum() + 2), 1 / ((~true).sum() + 2))

    def loss(weights: Array) -> float:
        x = weights[0] * odds + weights[1]
        return float(np.sum(np.logaddexp(0, x) - target * x))

    best = optimize.minimize(loss, [1.0, 0.0], tol=1e-12).x
    found = fit_platt(said, true)
    assert [found.slope, found.offset] == pytest.approx(best.tolist(), abs=1e-4)


def test_cases_that_one_threshold_divides_have_a_fit() -> None:
    said = np.linspace(0.01, 0.99, 40)
    found = fit_platt(said, said > 0.5)
    assert np.isfinite([found.slope, found.offset]).all() and found.apply(np.array([0.05, 0.95])) == pytest.approx(
        [0.0, 1.0], abs=0.06
    )


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(np.ones(30, bool), "calibration-outcomes-alike"), (np.arange(30) < 15, "calibration-not-informative")],
)
def test_uninformative_scores_are_refused(outcome: Array, code: str) -> None:
    with refuses(code):
        fit_platt(np.linspace(0.1, 0.9, 30), outcome)


def judge_some(count: int, seed: int = 1) -> list[JudgedSequence]:
    """Sequences of three frames: of the last one too much is said of progress, and too little of done."""
    ends, reached = draw_cases(count, seed)
    judged: list[JudgedSequence] = []
    for number in range(count):
        done = np.array([False, False, reached[number]])
        goal = JudgedGoal("lift it", "own", np.zeros(3, np.float32), done, true=True)
        values = np.array([0.0, ends[number] / 2, ends[number]])
        said = np.clip(0.05 + 0.3 * done + 0.02 * np.sin(np.arange(3) + number), 0, 1)
        judged.append(JudgedSequence(number, goal, values, said, ("ok",) * 3, NONE, NONE))
    return judged


def test_held_out_episodes_tell_what_was_gained(tmp_path: Path) -> None:
    found = calibrate("a judge", judge_some(800), 0)
    assert (found.fitted, found.held_out) == (400, 400) and found.fits["progress"].cases == 400
    for name, fit in found.fits.items():
        before, after = fit.before.value, fit.after.value
        assert before is not None and after is not None and after < 0.07 < 0.1 < before, name
    write_calibration(tmp_path / FILE, found)
    read = read_calibration(tmp_path / FILE)
    assert (read.identity, read.progress, read.done) == ("a judge", *(fit.map for fit in found.fits.values()))
    lines = describe_calibration(found)
    assert "400 episodes and measured on 400 others" in lines[0] and "before" in lines[1] and "after" in lines[2]


def test_an_episode_s_sequences_are_in_one_half() -> None:
    judged = judge_some(200)
    again = calibrate("a judge", [*judged, *judged], 0)
    assert (again.fitted, again.held_out) == (100, 100) and again.fits["progress"].cases == 200
    assert calibrate("a judge", judged, 0).fits["progress"].map != calibrate("a judge", judged, 1).fits["progress"].map


def test_missing_scores_are_no_cases_and_done_may_be_missing() -> None:
    judged = judge_some(200)
    silent = [replace(each, values=np.full(3, np.nan), done=np.full(3, np.nan)) for each in judged[:50]]
    found = calibrate("a judge", [*silent, *(replace(each, done=np.full(3, np.nan)) for each in judged[50:])], 0)
    assert set(found.fits) == {"progress"} and 50 <= found.fits["progress"].cases < 100


def test_too_few_outcomes_are_refused() -> None:
    with refuses("calibration-too-few-outcomes", "10"):
        calibrate("a judge", judge_some(24), 0)
    pairs = [replace(each, values=np.full(3, np.nan), done=np.full(3, np.nan)) for each in judge_some(50)]
    with refuses("scorer-without-progress"):
        calibrate("a judge", pairs, 0)


def configure(out: Path, **changes: Any) -> CriticEvalConfig:
    reward = RewardNode("scripted", timeout=60.0, options={"judge": "noisy", "noise": 0.3, "done_error": 0.2})
    sim = SimChange("tabletop", {"image_size": 16, "horizon": 24})
    return replace(CriticEvalConfig(reward, sim=sim, episodes=60, calibrate=True, out=str(out)), **changes)


@pytest.mark.thorough
def test_an_evaluation_calibrates_and_a_second_one_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(configure(tmp_path))
    out = capsys.readouterr().out
    assert "Calibration, fitted to 30 episodes and measured on 30 others" in out and "calibration.json" in out
    page = (tmp_path / "critic.html").read_text()
    assert "Calibration on outcomes" in page and "Outcomes where done was said, held-out episodes" in page
    before = json.loads((tmp_path / "critic.json").read_text())["measures"]["done_calibration"]["value"]
    calibrated = replace(configure(tmp_path).reward, calibration=str(tmp_path / FILE))
    run(configure(tmp_path / "again", reward=calibrated, calibrate=False))
    report = json.loads((tmp_path / "again" / "critic.json").read_text())
    assert report["measures"]["done_calibration"]["value"] < before / 2
    assert report["identity"].startswith("scripted noisy, calibrated: progress ")
    with refuses("keys-contradict", "reward.calibration"):
        check_evaluation(configure(tmp_path, reward=calibrated))
