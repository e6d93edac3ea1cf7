"""Scores of a collector: each belongs to its own pictures, and the shaping follows from them, whenever they come."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError, ScorerTraits, Span
from embodied_rl.interfaces.sim import StepResult
from embodied_rl.judge.reward.score_table import advance
from embodied_rl.judge.reward.scoring_requests import Question
from embodied_rl.judge.reward.scoring_writer import ScoringWriter, choose_question, share_budget
from embodied_rl.judge.scorers.score_log import ReplayConfig, ReplayScorer, read_scores
from embodied_rl.rollout.buffer import Rollout
from tests.support import row_clock
from tests.support.collecting import SPEC, KillingActor, N, T, make, workers
from tests.support.refusals import refuses
from tests.support.row_clock import observe
from tests.support.scoring import Answer, ToldScorer, read_code
from tests.support.scoring_writers import GAMMA, NODE, collect, start

Writing = Callable[..., ScoringWriter]


def scores_by_observation(scorer: ToldScorer) -> dict[tuple[int, int], float]:
    found = [each for call in scorer.calls for each in call]
    keys = [(each.episode, each.decision) for each in found]
    assert len(set(keys)) == len(keys), "an observation was asked about twice"
    return {key: read_code(each).value for key, each in zip(keys, found, strict=True)}


def expect_shaping(rounds: Sequence[dict[str, Any]], known: dict[tuple[int, int], float]) -> list[np.ndarray]:
    """The shaping, one row after another, by its definition."""
    found = []
    for each in rounds:
        shaping = np.zeros(each["valid"].shape)
        for t, n in np.ndindex(shaping.shape):
            if not each["valid"][t, n]:
                continue
            episode, number = int(each["episode"][t, n]), int(each["decision"][t, n])
            following = 0.0 if each["terminated"][t, n] else known[episode, number + 1]
            gamma = GAMMA ** int(each["steps"][t, n])
            shaping[t, n] = 0.5 * (gamma * following - known[episode, number])
        found.append(shaping)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("parts, slices, order", [(1, 1, "exact"), (4, 4, "exact"), (4, 2, "exact"), (4, 4, "ready")])
def test_each_score_belongs_to_its_own_picture(writing: Writing, parts: int, slices: int, order: str) -> None:
    """Through ends of episodes and of rollouts."""
    scorer = ToldScorer(cacheable=False)
    rounds = collect(*start(writing(scorer), parts, slices=slices, order=order))
    known = scores_by_observation(scorer)
    for each in rounds:
        for t, n in zip(*np.nonzero(each["valid"]), strict=True):
            said = known[int(each["episode"][t, n]), int(each["decision"][t, n])]
            assert said == pytest.approx(float(each["code"][t, n]), abs=1e-6)
    assert sum(each["terminated"].sum() for each in rounds) and sum(each["truncated"].sum() for each in rounds)
    for each, expected in zip(rounds, expect_shaping(rounds, known), strict=True):
        np.testing.assert_allclose(each["shaping"], expected, atol=1e-6)
        assert not each["bonus"].any()


def test_the_first_frame_of_the_episode_comes_with_each_request(writing: Writing) -> None:
    scorer = ToldScorer(cacheable=False)
    collect(*start(writing(scorer)))
    found = [each for call in scorer.calls for each in call]
    first = {each.episode: each.frames["top"][0] for each in found if each.decision == 0}
    assert all(np.array_equal(each.first["top"], first[each.episode]) for each in found)
    assert {each.instruction for each in found} == {"go left", "go right"}


@pytest.mark.thorough
def test_when_scores_come_changes_nothing_as_long_as_they_come(writing: Writing) -> None:
    """Asked at each decision, or answered late and in any order: the same bits."""
    random = np.random.default_rng(1)
    slow = ToldScorer(cacheable=False, batch=3)
    answer = slow.score

    async def late(requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        slow._seconds = float(random.uniform(0, 0.01))
        return await answer(requests)

    slow.score = late  # type: ignore[method-assign]
    found = []
    for scorer, node in ((ToldScorer(cacheable=False), replace(NODE, mode="sync")), (slow, NODE)):
        collector, actor = start(writing(scorer, node=node, number=len(found)))
        found.append([each["shaping"] for each in collect(collector, actor)])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert np.abs(found[0]).max() > 0.1


def test_what_is_judged_together_does_not_depend_on_time(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions of a rollout wait, and each call still holds those of one slice at one decision."""
    gate, wait = threading.Event(), ScoringWriter._wait

    def release(writer: ScoringWriter, *args: Any) -> None:
        gate.set()
        wait(writer, *args)

    monkeypatch.setattr(ScoringWriter, "_wait", release)
    scorer = ToldScorer(judge_by_code, gate=gate, batch=64, cacheable=False)
    scorer.traits = replace(scorer.traits, judges_done=True)
    collect(*start(writing(scorer, node=replace(TERMINAL, in_flight=1))), 1)
    assert max(len(call) for call in scorer.calls) == N // 2
    assert len(scorer.calls) > T


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["absolute", "pair"])
def test_a_log_gives_the_same_shaping_again(writing: Writing, tmp_path: Path, kind: str) -> None:
    """With scores that were lost, or came too late."""
    random = np.random.default_rng(0)

    def sometimes(asked: ScoreRequest) -> Score:
        if random.random() < 0.3:
            raise ScorerError("refused", "not this one")
        return read_code(asked) if kind == "absolute" else compare(asked)

    scorer, node = ToldScorer(sometimes, cacheable=False, seconds=0.001), replace(NODE, deadline=0.0, wait_share=None)
    if kind == "pair":
        scorer, node = make_scorer(sometimes), NODE
    writer = writing(scorer, node=node)
    collector, actor = start(writer)
    before = [each["shaping"] for each in collect(collector, actor)]
    writer.close()
    lines = list(read_scores(tmp_path / "scores"))
    assert {line["kind"] for line in lines} == {kind} and (kind == "absolute" or any(each.any() for each in before))
    assert {line["reason"] for line in lines} > {"ok"}, "the test needs losses"
    again = ReplayScorer(ReplayConfig(str(tmp_path)), SPEC)
    collector, actor = start(writing(again, number=1))
    after = [each["shaping"] for each in collect(collector, actor)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.thorough
def test_a_scorer_that_never_answers_leaves_sparse_reward(writing: Writing) -> None:
    """All potentials are held from 0, so shaping is exactly 0, and the figures say so."""
    node = replace(NODE, deadline=0.01)
    writer = writing(ToldScorer(gate=threading.Event()), node=node)
    collector, actor = start(writer)
    for each in collect(collector, actor):
        assert not each["shaping"].any()
        figures = writer.figures()
        assert figures["valid"] == 0 and figures["asked"] > 0
        assert figures["held"] > 0.5 * figures["settled"]


@pytest.mark.thorough
def test_most_of_what_is_not_asked_is_held(writing: Writing) -> None:
    scorer = ToldScorer(cacheable=False)
    writer = writing(scorer, node=replace(NODE, every=2))
    collect(*start(writer))
    known = scores_by_observation(scorer)
    episodes = {episode for episode, _ in known}
    assert episodes and all((episode, 0) in known for episode in episodes)
    assert writer.figures()["held"] > 0


@pytest.mark.thorough
def test_a_resumed_run_uses_what_was_settled_before(writing: Writing) -> None:
    """Even if the scorer would judge differently now: the boundary's potential and first frames are kept."""
    other = lambda asked: Score(1 - read_code(asked).value)  # noqa: E731
    straight, actor = start(writing(ToldScorer(cacheable=False)))
    collect(straight, actor, 1)
    state = straight.state()
    expected = collect(straight, actor, 1)[0]["shaping"]
    same = ToldScorer(cacheable=False)
    resumed, actor = start(writing(same, number=1))
    resumed.load(state)
    assert np.array_equal(collect(resumed, actor, 1)[0]["shaping"], expected)
    inverted, actor = start(writing(ToldScorer(other, cacheable=False), number=2))
    inverted.load(state)
    shaping = collect(inverted, actor, 1)[0]
    carried = state["writer/0/carried"]
    going_on = shaping["decision"][0] > 0
    assert going_on.any()
    for n in np.flatnonzero(going_on & shaping["valid"][0] & ~shaping["terminated"][0]):
        gamma = GAMMA ** int(shaping["steps"][0, n])
        following = (shaping["shaping"][0, n] + carried[n]) / gamma
        assert 0 <= following <= 0.5 + 1e-6


@pytest.mark.thorough
@pytest.mark.process
def test_episodes_lost_with_their_worker_are_settled_as_new_ones(writing: Writing, closing: Callable) -> None:
    handles = closing(workers(2))
    scorer = ToldScorer(cacheable=False)
    collector, _ = make(handles, writers=[writing(scorer)])
    rollout = collector.collect(KillingActor(handles[1], call=8))
    assert collector.lost_episodes == N // 2
    assert not rollout.shaping[~rollout.valid].any()
    lost = ~rollout.valid
    assert lost.any() and torch.isfinite(rollout.shaping).all()


def test_a_scorer_that_is_down_may_end_the_run(writing: Writing) -> None:
    def gone(asked: ScoreRequest) -> Score:
        raise ScorerError("refused", "nobody answers at http://here", permanent=True)

    writer = writing(ToldScorer(gone), node=replace(NODE, on_down="abort"))
    collector, actor = start(writer)
    with refuses("scorer-down", "http://here", "reward.on_down=continue"):
        collector.collect(actor)


def test_scores_that_say_nothing_are_told_with_their_reason(writing: Writing) -> None:
    """They came in time, so that nobody should look for what made them late."""
    value = [7.0]
    writer = writing(ToldScorer(lambda asked: Score(value[0]).checked(asked.kind), cacheable=False))
    collector, actor = start(writer)
    assert writer.trouble() == ""
    assert not any(each["shaping"].any() for each in collect(collector, actor, 1))
    assert "no score was valid; most are 'range'" in writer.trouble() and writer.figures()["down"] == 0
    value[0] = 0.7
    collect(collector, actor, 1)
    assert writer.trouble() == ""


def test_a_budget_is_shared_by_the_collectors_and_survives_a_resume(writing: Writing) -> None:
    assert [share_budget(11, 3, number) for number in range(3)] == [4, 4, 3]
    scorer = ToldScorer(cacheable=False)
    writer = writing(scorer, node=replace(NODE, budget=30))
    collect(*start(writer), 1)
    assert sum(map(len, scorer.calls)) == 30 and "budget of 30" in writer.trouble()
    assert writer.figures()["valid"] == 30 and writer.figures()["down"] == 1
    again = ToldScorer(cacheable=False)
    resumed = writing(again, node=replace(NODE, budget=30), number=1)
    collector, actor = start(resumed)
    collector.load({**collector.state(), **{f"writer/0/{name}": each for name, each in writer.state().items()}})
    collect(collector, actor, 1)
    assert not again.calls


def judge_by_code(asked: ScoreRequest) -> Score:
    """Some pictures look done."""
    value = read_code(asked).value
    return Score(value, done=float(value > 0.7))


TERMINAL = replace(NODE, mode="terminal")


def test_done_ends_tasks_wherever_its_picture_comes(writing: Writing) -> None:
    """At the end of a rollout, at a time limit, or within an episode; by its definition, one row after another."""
    scorer = ToldScorer(judge_by_code, cacheable=False)
    scorer.traits = replace(scorer.traits, judges_done=True)
    rounds = collect(*start(writing(scorer, node=TERMINAL, limit_ends=True)))
    known = {(each.episode, each.decision): judge_by_code(each).done for call in scorer.calls for each in call}
    over: set[int] = set()
    seen = dict.fromkeys(("within", "at the end", "at the limit"), 0)
    for each in rounds:
        for t in range(T):
            for n in range(N):
                episode, number = int(each["episode"][t, n]), int(each["decision"][t, n])
                assert each["valid"][t, n] == (episode not in over)
                done = known.get((episode, number + 1)) == 1.0 and each["valid"][t, n]
                reward = GAMMA ** (int(each["steps"][t, n]) - 1)
                assert each["bonus"][t, n] == pytest.approx(reward if done else 0, abs=1e-6)
                assert each["ignore_env_reward"][t, n]
                if done:
                    over.add(episode)
                    assert each["terminated"][t, n] and not each["truncated"][t, n]
                    seen["at the end" if t == T - 1 else "within"] += 1
                    seen["at the limit"] += number == 2
    assert all(seen.values()), seen


def test_a_lost_episode_takes_no_judgements_of_the_one_before(writing: Writing) -> None:
    """The first episode was cut after a decision and is done; the next one of its environment is lost."""
    scorer = ToldScorer(lambda _: Score(1.0, done=1.0), cacheable=False)
    scorer.traits = replace(scorer.traits, judges_done=True)
    writer, columns, seen = writing(scorer, node=TERMINAL), torch.tensor([0]), observe([1])
    writer.prepare(row_clock.SPEC, 1, 1)
    rollout = Rollout.allocate(row_clock.ACTOR, 2, 1)
    rollout.steps[:], rollout.valid[:], rollout.truncated[0] = 1, torch.tensor([[True], [False]]), True
    rollout.episode[:, 0] = torch.arange(2)
    none, cut = np.zeros((1, 1), np.float32), np.array([True])
    result = StepResult(
        none, none > 0, np.array([1]), none, none.astype(np.uint8), ~cut, cut, seen, np.array([0]), observe([2])
    )
    for row in range(2):
        writer.write_observation(row, columns, seen, NoiseKeys(0, np.array([row]), np.array([0])))
        if row == 0:
            writer.write_result(row, columns, result, np.array([0]))
    writer.lose_episodes(1, columns, np.array([1]))
    writer.finish_rollout(rollout)
    assert rollout.bonus[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    "traits, mode, kind", [(True, "terminal", "absolute"), (False, "terminal", "done"), (False, "late", "absolute")]
)
def test_only_who_says_done_by_itself_is_asked_for_progress_alone(
    writing: Writing, traits: bool, mode: Any, kind: str
) -> None:
    """The value of a question about done is the judgement."""
    scorer = ToldScorer(judge_by_code if traits else read_code, cacheable=False)
    scorer.traits = replace(scorer.traits, judges_done=traits)
    writer = writing(scorer, node=replace(NODE, mode=mode, done_threshold=0.7))
    found = collect(*start(writer))
    assert {each.kind for call in scorer.calls for each in call} == {kind}
    assert any(each["bonus"].any() for each in found) == (mode == "terminal")


def compare(asked: ScoreRequest) -> Score:
    """How much brighter the last picture is than the one before, from -1 to 1."""
    before, now = (int(frame.max()) for frame in asked.frames["top"][-2:])
    return Score((now - before) / 255)


def make_scorer(answer: Answer = compare, frames: int = 2, span: Span = "latest", kind: Any = "pair") -> ToldScorer:
    scorer = ToldScorer(answer, cacheable=False)
    scorer.traits = ScorerTraits((kind,), "told", cacheable=False, frames=frames, span=span)
    return scorer


def list_asked(scorer: ToldScorer) -> dict[tuple[int, int], ScoreRequest]:
    found = [each for call in scorer.calls for each in call]
    keys = [(each.episode, each.decision) for each in found]
    assert len(set(keys)) == len(keys), "an observation was asked about twice"
    return dict(zip(keys, found, strict=True))


def expect_potentials(asked: dict[tuple[int, int], ScoreRequest], lost: set[tuple[int, int]]) -> dict[Any, float]:
    """The potential of each observation, by the recursion."""
    known: dict[tuple[int, int], float] = {}
    for episode in {episode for episode, _ in asked}:
        value, number = 0.0, 0
        known[episode, 0] = 0.0
        while (episode, number := number + 1) in asked:
            if (episode, number) not in lost:
                change = compare(asked[episode, number]).value
                value = float(advance(np.array(value), np.array(change)))
            known[episode, number] = value
    return known


def check_shaping(rounds: list[dict[str, Any]], known: dict[Any, float]) -> None:
    for each in rounds:
        for t, n in zip(*np.nonzero(each["valid"]), strict=True):
            episode, number = int(each["episode"][t, n]), int(each["decision"][t, n])
            following = 0.0 if each["terminated"][t, n] else known[episode, number + 1]
            expected = 0.5 * (GAMMA ** int(each["steps"][t, n]) * following - known.get((episode, number), 0.0))
            assert each["shaping"][t, n] == pytest.approx(expected, abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("parts, slices, order", [(1, 1, "exact"), (4, 4, "exact"), (4, 2, "ready")])
def test_pairs_are_neighbours_and_shape_by_their_progress(
    writing: Writing,
    parts: int,
    slices: int,
    order: str,
) -> None:
    """Through ends of episodes and of rollouts, some answers lost."""

    def sometimes(asked: ScoreRequest) -> Score:
        if (asked.episode + asked.decision) % 5 == 0:
            raise ScorerError("refused", "not this one")
        return compare(asked)

    scorer = make_scorer(sometimes)
    rounds = collect(*start(writing(scorer), parts, slices=slices, order=order))
    asked = list_asked(scorer)
    assert all(number > 0 for _, number in asked), "there is nothing to compare an episode's first picture with"
    codes = {
        (int(each["episode"][t, n]), int(each["decision"][t, n])): round(float(each["code"][t, n] * 255))
        for each in rounds
        for t, n in zip(*np.nonzero(each["valid"]), strict=True)
    }
    for (episode, number), request in asked.items():
        before, now = (int(frame.max()) for frame in request.frames["top"])
        assert before == codes[episode, number - 1] and codes.get((episode, number), now) == now
    lost = {key for key in asked if sum(key) % 5 == 0}
    assert lost and any(each["truncated"].any() for each in rounds)
    check_shaping(rounds, expect_potentials(asked, lost))


def test_the_frame_before_is_the_one_that_was_asked_about_before(writing: Writing) -> None:
    """So that changes follow each other without gaps where not every decision is asked about."""
    scorer = make_scorer()
    node = replace(NODE, every=2)
    collect(*start(writing(scorer, node=node)))
    asked = list_asked(scorer)
    chained = [
        (asked[episode, earlier], request)
        for (episode, number), request in asked.items()
        if (earlier := max((n for e, n in asked if e == episode and n < number), default=0))
    ]
    assert chained
    assert all(int(a.frames["top"][1].max()) == int(b.frames["top"][0].max()) for a, b in chained)


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, 2])
def test_the_state_before_belongs_to_the_picture_before(writing: Writing, every: int) -> None:
    """Also of the first pair after a resume; the state's last entry tells the picture's code."""
    scorer, later = make_scorer(), make_scorer()
    node = replace(NODE, every=every)
    first, actor = start(writing(scorer, node=node))
    collect(first, actor, 2)
    resumed, actor = start(writing(later, node=node, number=1))
    resumed.load(first.state())
    collect(resumed, actor, 1)
    for asked in [*list_asked(scorer).values(), *list_asked(later).values()]:
        assert asked.state_before is not None
        codes = [int(frame.max()) for frame in asked.frames["top"]]
        assert [round(255 * float(state[2])) for state in (asked.state_before, asked.state)] == codes
    absolute = make_scorer(lambda asked: Score(0.5), kind="absolute", frames=1)
    collect(*start(writing(absolute, number=2)), 1)
    assert all(asked.state_before is None for asked in list_asked(absolute).values())


def test_a_resumed_run_goes_on_from_the_progress_of_its_pairs(writing: Writing) -> None:
    straight, actor = start(writing(make_scorer()))
    collect(straight, actor, 1)
    state = straight.state()
    expected = collect(straight, actor, 1)[0]["shaping"]
    resumed, actor = start(writing(make_scorer(), number=1))
    resumed.load(state)
    assert np.array_equal(collect(resumed, actor, 1)[0]["shaping"], expected) and expected.any()


def test_a_scorer_of_absolutes_may_want_the_whole_episode(writing: Writing) -> None:
    scorer = make_scorer(lambda asked: Score(0.5), frames=4, span="episode", kind="absolute")
    collect(*start(writing(scorer)))
    asked = list_asked(scorer)
    for (episode, number), request in asked.items():
        shown = [int(frame.max()) for frame in request.frames["top"]]
        wanted = [int(asked[episode, n].frames["top"][-1].max()) for n in range(number + 1) if (episode, n) in asked]
        assert shown == wanted, "episodes of three decisions have no more than four observations"
    assert any(len(request.frames["top"]) == 4 for request in asked.values())


@pytest.mark.parametrize(
    "traits, mode, question",
    [
        (ScorerTraits(("absolute",), "it"), "late", Question("absolute")),
        (ScorerTraits(("pair", "absolute"), "", frames=8, span="episode"), "late", Question("absolute", 8, "episode")),
        (ScorerTraits(("pair",), "a log"), "audit", Question("pair", 2)),
        (ScorerTraits(("pair",), "it", frames=5), "late", Question("pair", 5)),
        (ScorerTraits(("pair",), "it", frames=2, judges_done=True), "terminal", Question("pair", 2)),
        (ScorerTraits(("pair", "done"), "it", frames=2), "terminal", Question("done", 2)),
    ],
)
def test_which_question_is_asked(traits: ScorerTraits, mode: Any, question: Question) -> None:
    assert choose_question(replace(NODE, mode=mode), traits) == question


def test_audit_changes_nothing(writing: Writing, tmp_path: Path) -> None:
    writer = writing(ToldScorer(cacheable=False), node=replace(NODE, mode="audit"), discount=None)
    collector, actor = start(writer)
    assert not any(each["shaping"].any() for each in collect(collector, actor))
    writer.close()
    assert len(list(read_scores(tmp_path / "scores"))) > N * T


def test_scores_of_little_confidence_count_as_missing(writing: Writing) -> None:
    unsure = ToldScorer(lambda asked: Score(0.9, confidence=0.4), cacheable=False)
    writer = writing(unsure, node=replace(NODE, confidence=0.5))
    collector, actor = start(writer)
    assert not any(each["shaping"].any() for each in collect(collector, actor))
