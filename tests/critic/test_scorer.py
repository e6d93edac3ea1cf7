"""The embedded scorer: answers in order, equal alone or together, and refuses what does not fit before a run starts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.config import plugins
from embodied_rl.critic.critic_file import save_critic
from embodied_rl.critic.scorer import EmbeddedConfig, EmbeddedScorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreRequest, ScorerError
from embodied_rl.judge.scorers.registry import configure_scorer, resolve_scorer
from embodied_rl.schema import RewardNode
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.critics import gather_some, make_critic
from tests.support.refusals import refuses

SPEC = spec_of(TabletopConfig())


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedScorer:
    file = tmp_path_factory.mktemp("critic") / "small.safetensors"
    save_critic(make_critic(), file, {})
    return EmbeddedScorer(EmbeddedConfig(str(file)), SPEC)


def requests() -> list[ScoreRequest]:
    return [
        ScoreRequest(
            number, frame, "absolute", goal.instruction, {"front": episode.frames["front"][frame : frame + 1]},
            {"front": episode.frames["front"][0]}, episode.state[frame],
        )
        for number, episode in enumerate(gather_some()[:4])
        for goal in episode.goals[:2]
        for frame in range(len(episode.state))
    ]  # fmt: skip


def answer(scorer: EmbeddedScorer, asked: list[ScoreRequest]):
    return asyncio.run(scorer.score(asked))


@pytest.mark.thorough
def test_answers_are_in_order_and_equal_alone(scorer: EmbeddedScorer) -> None:
    asked = requests()
    together = answer(scorer, asked)
    assert len({round(score.value, 5) for score in together}) > len(asked) // 2, "answers differ"
    for request, score in zip(asked, together, strict=True):
        (alone,) = answer(scorer, [request])
        assert alone.value == pytest.approx(score.value, abs=1e-6) and alone.done == pytest.approx(score.done, abs=1e-6)
        assert alone.confidence == pytest.approx(score.confidence, abs=1e-5)
        assert score.done is not None and 0 <= score.done <= 1
        assert 0 <= score.value <= 1 and 0 <= score.confidence <= 1
    assert scorer.traits.judges_done and scorer.traits.batch == 64 and scorer.traits.kinds == ("absolute",)


def test_the_last_frame_counts(scorer: EmbeddedScorer) -> None:
    request = requests()[2]
    older = np.concatenate([np.zeros_like(request.frames["front"]), request.frames["front"]])
    assert answer(scorer, [replace(request, frames={"front": older})]) == answer(scorer, [request])


def test_an_unknown_word_costs_its_own_request_alone(scorer: EmbeddedScorer) -> None:
    asked = requests()[:3]
    asked[1] = replace(asked[1], instruction="juggle the red cube")
    scores = answer(scorer, asked)
    assert [score.valid for score in scores] == [True, False, True]
    assert scores[1].reason == "refused" and "juggle" in scores[1].detail
    assert scores[2].value == pytest.approx(answer(scorer, asked[2:])[0].value, abs=1e-6)


def test_a_missing_camera_is_an_error_with_a_reason(scorer: EmbeddedScorer) -> None:
    with pytest.raises(ScorerError, match="front") as failed:
        answer(scorer, [replace(requests()[0], frames={}, first={})])
    assert failed.value.permanent


@pytest.mark.parametrize(
    ("file", "spec", "named"),
    [
        ("absent.safetensors", SPEC, "reward.file: .*absent.safetensors"),
        ("asset:tabletop_base.safetensors", SPEC, "reward.file: .*no critic"),
        (None, replace(SPEC, words=(*SPEC.words, "sphere")), "sphere"),
        (None, replace(SPEC, cameras=()), "front"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(tmp_path: Path, file: str | None, spec, named: str) -> None:
    save_critic(make_critic(), tmp_path / "good.safetensors", {})
    with pytest.raises(UserError, match=named):
        EmbeddedScorer(EmbeddedConfig(file or str(tmp_path / "good.safetensors")), spec)


def test_a_model_without_a_server_means_the_embedded_critic() -> None:
    kind, options = configure_scorer(RewardNode("vlm"))
    assert kind is EmbeddedScorer and options == EmbeddedConfig()
    assert resolve_scorer(RewardNode("vlm", options={"url": None})).name == "embedded"
    behind = RewardNode("vlm", options={"url": "http://127.0.0.1:1/v1"})
    assert resolve_scorer(behind) is behind and configure_scorer(behind)[0] is plugins.find_plugin("scorers", "vlm")
    with refuses("scorer-without-server", "reward.prompt", "reward.url"):
        resolve_scorer(RewardNode("vlm", options={"prompt": "progress_digit"}))
    nobody = RewardNode(None)
    assert resolve_scorer(nobody) is nobody
