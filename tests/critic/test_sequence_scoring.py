"""What a scorer is asked, what becomes of its answers, and what scripted judges are found to be worth."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embodied_rl.critic.assessment import MEANINGS, Assessment, assess_judge
from embodied_rl.critic.dataset_episodes import add_mismatches
from embodied_rl.critic.evaluation.critic_report import make_report, make_table
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.sequence_scoring import choose_goals, choose_kind, count_reasons, judge_episodes
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.judge.scorers.scripted import ScriptedConfig, ScriptedScorer
from tests.support.judging import (
    FRAMES,
    LIMITS,
    PROGRESS_SPEC,
    Judge,
    current_time,
    episode,
    episodes,
    goal,
    tell_truth,
)
from tests.support.refusals import refuses


def assess(answer: Callable[[ScoreRequest], Score], shown: list[JudgedEpisode] | None = None, **options: Any):
    shown = shown or episodes()
    return assess_judge(shown, judge_episodes(Judge(answer, **options), shown, LIMITS, 2), 0.95, seed=0)


def values(found: Assessment) -> dict[str, float | None]:
    return {name: each.value for name, each in found.measures.items()}


def test_every_frame_is_asked_under_own_and_other_words() -> None:
    judge = Judge(tell_truth)
    judge_episodes(judge, [episode(0, True)], LIMITS, others=2)
    asked = sorted((each.instruction, each.decision) for each in judge.asked)
    words = ("pick up the blue cube", "pick up the red cube", "press the button")
    assert asked == [(word, frame) for word in words for frame in range(FRAMES)]
    assert all(each.frames["top"].shape == (1, 8, 8, 3) and not each.first["top"].any() for each in judge.asked)
    assert all(each.frames["top"].max() == 20 * each.decision for each in judge.asked)


def test_what_the_truth_is_worth() -> None:
    found = values(assess(tell_truth))
    assert found["voc"] == found["failures"] == found["other_object"] == found["done_average_precision"] == 1
    assert found["gap_object"] == pytest.approx(0.8) == found["true_gap_object"]
    assert found["wrong_object"] == pytest.approx(0.2) and found["wrong_object_share"] == 0
    assert (found["done_recall"], found["done_precision"], found["done_false"], found["done_early"]) == (1, 1, 0, 0)
    assert found["progress_error"] == pytest.approx(0, abs=1e-6) and found["valid"] == 1
    assert found["tau"] == found["tau_reachable"] and set(found) == set(MEANINGS)


def test_who_rises_with_time_has_voc_and_nothing_else() -> None:
    found = values(assess(current_time))
    assert found["voc"] == 1 and found["gap_object"] == 0 and found["wrong_object_share"] == 1
    assert found["done_false"] == 1 and found["failures"] is not None and found["failures"] < 0.7


@pytest.mark.parametrize(("judge", "voc"), [("oracle", 1), ("inverted", -1), ("constant", 0)])
def test_scripted_judges(judge: Any, voc: float) -> None:
    shown = episodes()
    scorer = ScriptedScorer(ScriptedConfig(judge=judge), PROGRESS_SPEC)
    found = assess_judge(shown, judge_episodes(scorer, shown, LIMITS, 2), 0.95, 0).measures
    assert found["voc"].value == pytest.approx(voc)
    assert found["voc"].constant == (4 if judge == "constant" else 0)
    assert found["done_false"].value == 0 or judge == "inverted"


def test_invalid_scores_are_missing_and_counted() -> None:
    def answer(asked: ScoreRequest) -> Score:
        if asked.decision == 2:
            return Score.invalid("unsure")
        return Score(7.0) if asked.decision == 3 else tell_truth(asked)

    shown = episodes(2, 0)
    judged = judge_episodes(Judge(answer), shown, LIMITS, 2)
    assert all(np.isnan(each.values).tolist() == [False, False, True, True, False, False] for each in judged)
    assert count_reasons(judged) == {"ok": 24, "unsure": 6, "range": 6}
    found = assess_judge(shown, judged, 0.95, 0)
    assert found.measures["voc"].value == 1 and found.measures["valid"].value == pytest.approx(24 / 36)
    assert found.reasons == {"ok": 24, "unsure": 6, "range": 6}


def test_a_scorer_that_fails_everywhere_is_told() -> None:
    def answer(asked: ScoreRequest) -> Score:
        raise ScorerError("refused", "the server has no such model", permanent=True)

    with refuses("scorer-no-valid-scores", "refused", "no such model"):
        judge_episodes(Judge(answer), episodes(1, 0), LIMITS, 2)


def test_a_mistake_in_a_scorer_is_raised() -> None:
    def answer(asked: ScoreRequest) -> Score:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judge_episodes(Judge(answer), episodes(1, 0), LIMITS, 2)


def test_who_repeats_the_truth_needs_one() -> None:
    scorer = ScriptedScorer(ScriptedConfig(), PROGRESS_SPEC)
    with refuses("scorer-needs-ground-truth"):
        judge_episodes(scorer, episodes(1, 0, true=False), LIMITS, 0)


def test_kinds_that_cannot_be_evaluated_are_refused() -> None:
    assert choose_kind(ScorerTraits(("preference", "done"), "it")) == "done"
    with refuses("scorer-kind-unsupported", "preference"):
        choose_kind(ScorerTraits(("preference",), "it"))


def test_done_alone() -> None:
    found = values(assess(lambda asked: Score(float(asked.decision == FRAMES - 1)), kinds=("done",)))
    assert found["voc"] is None and found["done_recall"] == 1 and found["done_false"] == 1


def gain(asked: ScoreRequest) -> Score:
    """The difference of two pictures, which rise by 20 a frame."""
    before, after = (float(picture.max()) for picture in asked.frames["top"])
    return Score((after - before) / 100)


@pytest.mark.thorough
def test_pairs() -> None:
    found = assess(gain, kinds=("pair",)).measures
    assert found["voc"].value == 1 and found["negative_share"].value == 0 and found["swap_error"].value == 0
    assert found["voc_reversed"].value == 0 and found["voc_reversed"].constant == 4  # nothing is lost where nothing is
    found = assess(lambda asked: Score(0.3), kinds=("pair",)).measures  # always better
    assert found["swap_error"].value == pytest.approx(0.6) and found["voc_reversed"].value == 1


def test_a_pair_has_the_states_of_its_own_pictures() -> None:
    judge = Judge(lambda asked: Score(0.0), ("pair",))
    shown = episode(0, success=True)
    shown.state[:, 0] = np.arange(len(shown.state))
    judge_episodes(judge, [shown], LIMITS, 0)
    for asked in judge.asked:
        assert asked.state_before is not None
        numbers = [int(frame.max()) // 20 for frame in asked.frames["top"]]
        assert [int(asked.state_before[0]), int(asked.state[0])] == numbers
    assert len(judge.asked) == 2 * (len(shown.state) - 1)


def test_other_goals_are_chosen_one_relation_after_the_other() -> None:
    shown = episode(0, True)
    more = (*shown.goals, goal("pick up the green cube", "object", [0] * FRAMES))
    full = JudgedEpisode(shown.frames, shown.state, more, True, "", "")
    assert [each.relation for each in choose_goals(full, 3, 0)] == ["own", "object", "task", "object"]
    chosen = [choose_goals(full, 1, number)[1].instruction for number in (0, 1)]
    assert chosen == ["pick up the blue cube", "pick up the green cube"]


def test_datasets_get_the_words_of_another_episode() -> None:
    first, second = episode(0, True, true=False, others=False), episode(1, True, true=False, others=False)
    renamed = goal("open the drawer", "own", second.goals[0].progress.tolist(), true=False)
    second = JudgedEpisode(second.frames, second.state, (renamed,), True, "dataset", "drawer")
    shown = add_mismatches([first, second], seed=0)
    assert [each.goals[1].instruction for each in shown] == ["open the drawer", "pick up the red cube"]
    found = values(assess(current_time, shown))
    assert found["voc"] == 1 and found["gap_task"] == 0
    assert all(found[name] is None for name in ("failures", "true_gap_task", "progress_error", "done_calibration"))


def test_what_comes_after_success_is_not_measured() -> None:
    """An episode that goes on after success: VOC ends where the goal held first, and falling scores cost nothing."""
    rising = [0, 0.5, 1, 1, 0.2, 0.1]
    shown = episode(0, True)
    own = goal("pick up the red cube", "own", rising)
    full = [JudgedEpisode(shown.frames, shown.state, (own, *shown.goals[1:]), True, "", "")] * 2
    assert values(assess(tell_truth, full))["voc"] == 1


@pytest.mark.thorough
def test_early_and_late_done() -> None:
    def answer(asked: ScoreRequest) -> Score:
        return Score(0.5, done=float(asked.decision >= FRAMES - 2))

    found = assess(answer).measures
    assert found["done_early"].value == 1 and found["done_recall"].value == 1 and found["done_false"].value == 1
    assert found["done_precision"].value == 0.5 and found["done_mismatch"].value == 1
    found = assess(lambda asked: Score(0.5, done=float(asked.decision == FRAMES - 3))).measures
    assert found["done_early"].value == 1 and found["done_recall"].value == 0, "only before it holds"


def test_report_is_json_and_says_what_it_rests_on() -> None:
    shown = episodes()
    found = assess(tell_truth, shown)
    report = make_report(found, shown, {"identity": "x", "kind": "absolute", "source": {"seed": 3}}, 0.95)
    again = json.loads(json.dumps(report, allow_nan=False))
    assert again["rests_on"]["seed"] == 3 and again["rests_on"]["episodes"] == 8
    assert again["rests_on"]["actors"] == {"careful": {"episodes": 8, "successes": 4}}
    assert again["measures"]["voc"]["value"] == 1 and len(again["reliability"]["progress"]) == 10
    assert math.isclose(sum(each["count"] for each in again["reliability"]["done"]), 8 * 3 * FRAMES)
    assert make_table(found).row_count > 10
    assert again["rests_on"]["truth"] == "simulator"
