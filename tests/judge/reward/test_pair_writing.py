"""A scorer of pairs in a run: each pair is two frames of one episode, and the shaping is that of its progress."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError, ScorerTraits, Span
from embodied_rl.judge.reward.score_table import advance
from embodied_rl.judge.reward.scoring_requests import Question
from embodied_rl.judge.reward.scoring_writer import ScoringWriter, choose_question
from embodied_rl.judge.scorers.score_log import ReplayConfig, ReplayScorer, read_scores
from tests.support.collecting import SPEC, half_skilled, inline, make
from tests.support.scoring import Answer, ToldScorer
from tests.support.scoring_writers import GAMMA, NODE, Coded, collect

Writing = Callable[..., ScoringWriter]


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
    collector, actor = make(
        inline(parts, kind=Coded), slices=slices, order=order, actor=half_skilled(), writers=[writing(scorer)]
    )
    rounds = collect(collector, actor)
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
    collector, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(scorer, node=node)])
    collect(collector, actor)
    asked = list_asked(scorer)
    chained = [
        (asked[episode, earlier], request)
        for (episode, number), request in asked.items()
        if (earlier := max((n for e, n in asked if e == episode and n < number), default=0))
    ]
    assert chained
    assert all(int(a.frames["top"][1].max()) == int(b.frames["top"][0].max()) for a, b in chained)


@pytest.mark.parametrize("every", [1, 2])
def test_the_state_before_belongs_to_the_picture_before(writing: Writing, every: int) -> None:
    """Also of the first pair after a resume; the state's last entry tells the picture's code."""
    scorer, later = make_scorer(), make_scorer()
    node = replace(NODE, every=every)
    first, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(scorer, node=node)])
    collect(first, actor, 2)
    resumed, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(later, node=node, number=1)])
    resumed.load(first.state())
    collect(resumed, actor, 1)
    for asked in [*list_asked(scorer).values(), *list_asked(later).values()]:
        assert asked.state_before is not None
        codes = [int(frame.max()) for frame in asked.frames["top"]]
        assert [round(255 * float(state[2])) for state in (asked.state_before, asked.state)] == codes
    absolute = make_scorer(lambda asked: Score(0.5), kind="absolute", frames=1)
    collector, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(absolute, number=2)])
    collect(collector, actor, 1)
    assert all(asked.state_before is None for asked in list_asked(absolute).values())


def test_a_resumed_run_compares_with_what_was_seen_before(writing: Writing) -> None:
    straight, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(make_scorer())])
    collect(straight, actor, 1)
    state = straight.state()
    expected = collect(straight, actor, 1)[0]["shaping"]
    resumed, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(make_scorer(), number=1)])
    resumed.load(state)
    assert np.array_equal(collect(resumed, actor, 1)[0]["shaping"], expected) and expected.any()


def test_a_log_of_pairs_gives_the_same_shaping_again(writing: Writing, tmp_path: Path) -> None:
    writer = writing(make_scorer())
    collector, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writer])
    before = [each["shaping"] for each in collect(collector, actor)]
    writer.close()
    assert {line["kind"] for line in read_scores(tmp_path / "scores")} == {"pair"}
    again = ReplayScorer(ReplayConfig(str(tmp_path)), SPEC)
    collector, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(again, number=1)])
    after = [each["shaping"] for each in collect(collector, actor)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)) and before[0].any()


def test_a_scorer_of_absolutes_may_want_the_whole_episode(writing: Writing) -> None:
    scorer = make_scorer(lambda asked: Score(0.5), frames=4, span="episode", kind="absolute")
    collector, actor = make(inline(2, kind=Coded), actor=half_skilled(), writers=[writing(scorer)])
    collect(collector, actor)
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
