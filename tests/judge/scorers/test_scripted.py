"""Scorers for experiments say what they should, and only where the simulator tells progress."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreRequest, ScorerError
from embodied_rl.judge.scorers.scripted import ScriptedConfig, ScriptedScorer
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.refusals import refuses
from tests.support.scoring import request, score

SPEC = replace(FakeSimulator.spec_of(FakeSimulator.Config()), reports_progress=True)


def judge(which: str, *requests: ScoreRequest) -> list[float]:
    scorer = ScriptedScorer(ScriptedConfig(judge=which), SPEC)  # type: ignore[arg-type]
    return [each.value for each in score(scorer, *requests)]


def at(progress: float | None, **options: int) -> ScoreRequest:
    return replace(request(**options), progress=progress)


def test_what_each_judge_says() -> None:
    asked = [at(0.0), at(0.25), at(1.0)]
    assert judge("oracle", *asked) == [0.0, 0.25, 1.0]
    assert judge("inverted", *asked) == [1.0, 0.75, 0.0]
    assert judge("constant", *asked) == [0.5] * 3


def test_noise_follows_from_episode_and_decision() -> None:
    asked = [at(0.5, episode=number // 10, decision=number % 10) for number in range(200)]
    said = judge("noisy", *asked)
    assert judge("noisy", *reversed(asked)) == said[::-1]
    assert np.std(said) == pytest.approx(0.2, abs=0.03) and min(said) >= 0 and max(said) <= 1


def test_a_hackable_judge_likes_bright_pictures() -> None:
    dark, bright = judge("hackable", at(1.0, code=0), at(0.0, code=255))
    assert (dark, bright) == (pytest.approx(0.3), pytest.approx(0.7))
    picture = np.full((1, 10, 20, 3), 153, np.uint8)
    picture[0, 0, :5] = 154
    picture[0, 1, :5, :2] = 255  # yellow: not all its colours are bright
    assert judge("hackable", replace(at(0.0), frames={"top": picture})) == [pytest.approx(0.7 * 0.25)]


def test_a_simulator_without_progress_is_refused() -> None:
    spec = replace(SPEC, reports_progress=False)
    with refuses("scorer-needs-ground-truth", "reward.judge=oracle", "sim.progress=true"):
        ScriptedScorer(ScriptedConfig(), spec)
    ScriptedScorer(ScriptedConfig(judge="constant"), spec)


def test_a_request_without_progress_is_no_zero() -> None:
    with pytest.raises(ScorerError, match="did not report progress"):
        judge("oracle", at(None))


def test_settings_out_of_bounds_are_refused() -> None:
    for options in ({"noise": -1.0}, {"latency": -1.0}, {"slots": 0}):
        with pytest.raises(UserError, match="reward"):
            ScriptedConfig(**options)  # type: ignore[arg-type]
