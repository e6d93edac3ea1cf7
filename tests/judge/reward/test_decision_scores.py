"""Which score counts at which decision, and what becomes of questions whose answers are slow."""

import logging
from dataclasses import replace
from pathlib import Path as Folder
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.scorer import Score, ScoreKind
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward import scoring_writer
from embodied_rl.judge.reward.decision_scores import DecisionScores
from embodied_rl.judge.reward.score_table import advance, summarise_scores
from embodied_rl.judge.scorers.score_log import ReplayConfig, ReplayScorer, read_scores
from embodied_rl.rollout.writer import Writer
from tests.support.collecting import half_skilled, inline, make
from tests.support.enumeration import GAMMA, walk
from tests.support.row_clock import (
    NODE,
    OPINIONS,
    SPEC,
    Environment,
    RowClockScorer,
    collect,
    give_opinion,
    make_environments,
    open_writer,
)
from tests.support.scoring import request

LONG = walk((1, 0) * 13, 3)
SHORT = [walk((1, 1), 6)] * 8


def late(rows: float) -> RowClockScorer:
    return RowClockScorer(lambda scorer, call: call.begun + rows, give_opinion)


def run(folder: Folder, scorer: Any, envs: list[Environment], **keys: Any) -> tuple[list[Any], dict[str, float]]:
    """Return the rollouts, and the figures of the last one."""
    with open_writer(folder, scorer, replace(NODE, **keys), len(envs), limit_ends=True) as writer:
        found = collect(writer, scorer, envs)
        return found, summarise_scores(writer.figures())


@pytest.mark.parametrize("rows, age", [(0.25, 0), (1.25, 1), (6.25, 6)])
def test_the_newest_score_that_has_come_before_the_action_counts(rows: float, age: int, tmp_path: Folder) -> None:
    """Half of a row's time passes before the action. An answer may take longer than a rollout of four rows."""
    rollouts, _ = run(tmp_path, late(rows), [Environment([LONG], [False])], in_flight=16)
    potential = np.concatenate([each.potential[:, 0].numpy() for each in rollouts])
    said = [0.0] * 7 + [float(OPINIONS[t, LONG.states[t]]) for t in range(12)]
    assert potential.tolist() == [said[7 + t - age] for t in range(12)]


def test_the_age_of_scores_is_a_figure(tmp_path: Folder) -> None:
    _, fast = run(tmp_path / "fast", late(0.25), [Environment([LONG], [False])], in_flight=16)
    _, slow = run(tmp_path / "slow", late(3.25), [Environment([LONG], [False])], in_flight=16)
    assert fast["reward/staleness"] == 0 and fast["reward/held"] == 0
    assert slow["reward/staleness"] >= 3 and slow["reward/held"] == 1


def test_answers_slower_than_episodes_are_named_once(tmp_path: Folder, caplog: pytest.LogCaptureFixture) -> None:
    envs = [Environment([*SHORT], [False] * 8) for _ in range(8)]
    with caplog.at_level(logging.WARNING):
        rollouts, figures = run(tmp_path, late(3), envs, in_flight=64)
    assert not any(each.shaping.any() for each in rollouts) and "reward/staleness" not in figures
    assert sum("reward.mode=distill" in record.message for record in caplog.records) == 1


def test_questions_of_ended_episodes_are_not_asked_any_more(tmp_path: Folder) -> None:
    """Neither those that wait nor those in flight, so that a slow server works on running episodes alone."""
    scorer = late(1e9)
    envs = [Environment([*SHORT], [False] * 8) for _ in range(4)]
    with open_writer(tmp_path, scorer, replace(NODE, in_flight=64), 4, limit_ends=True) as writer:
        collect(writer, scorer, envs)
        newest = {column: 4 * env.number + column for column, env in enumerate(envs)}
        assert {call.request.episode for call in scorer.running} <= set(newest.values())


def test_of_each_environment_only_the_newest_question_waits(tmp_path: Folder) -> None:
    scorer = late(1e9)
    envs = [Environment([LONG], [False]) for _ in range(3)]
    with open_writer(tmp_path, scorer, replace(NODE, in_flight=1), 3, limit_ends=True) as writer:
        collect(writer, scorer, envs[:])
        assert writer._service is not None
        waiting = [ticket.request for ticket in writer._service._queue.clear()]
    assert len(waiting) == 3 and {request.decision for request in waiting} <= {11, 12}


def test_a_log_repeats_scores_at_the_decisions_where_they_counted(tmp_path: Folder) -> None:
    envs = lambda: make_environments(LONG, truncated=True, count=3, before=False)  # noqa: E731
    before, _ = run(tmp_path, late(1.75), envs(), in_flight=2)
    counted = {line["counted"] - line["decision"] for line in read_scores(tmp_path / "scores") if line["used"]}
    assert len(counted) > 1, "the test needs scores of several ages"
    replay = ReplayScorer(ReplayConfig(str(tmp_path)), SPEC)
    replay.advance = lambda rows: None  # type: ignore[attr-defined]
    after, _ = run(tmp_path / "again", replay, envs(), wait_share=None, deadline=60.0)
    for one, other in zip(before, after, strict=True):
        assert one.potential.any() and (one.potential == other.potential).all() and (one.shaping == other.shaping).all()


def test_the_time_between_rollouts_is_no_reason_to_wait(tmp_path: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of rows, with a long update after each rollout."""
    scorer, updates, waits = late(0.25), [0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: scorer.now + 1000 * updates[0])
    monkeypatch.setattr(scoring_writer, "time", clock)
    node = replace(NODE, wait_share=0.5, deadline=60.0)
    with open_writer(tmp_path, scorer, node, 8, limit_ends=True) as writer:
        finish = writer.finish_rollout

        def finish_and_update(rollout: Any) -> None:
            finish(rollout)
            updates[0] += 1

        monkeypatch.setattr(writer, "finish_rollout", finish_and_update)
        monkeypatch.setattr(writer._service, "wait", lambda tickets, seconds: waits.append(seconds))
        collect(writer, scorer, [Environment([*SHORT], [False] * 8) for _ in range(8)])
    assert updates == [3] and 0 < max(waits) <= 1.0


def test_questions_come_before_inference_and_scores_are_settled_after_it() -> None:
    events: list[str] = []

    class Noting(Writer):
        final_pictures = False
        prepare = write_result = lose_episodes = lambda *_: None
        write_observation = lambda *_: events.append("observation")  # noqa: E731
        write_decision = lambda *_: events.append("decision")  # noqa: E731

    actor = half_skilled()
    act = actor.act
    actor.act = lambda *args, **keys: events.append("act") or act(*args, **keys)  # type: ignore[method-assign]
    collector, actor = make(inline(2), actor=actor, writers=[Noting()])
    collector.collect(actor)
    assert events[:6] == ["observation", "act", "decision"] * 2 and len(events) % 3 == 0


def test_a_checkpoint_of_an_earlier_version_continues(tmp_path: Folder) -> None:
    """It has no scores of running episodes: the potential at its boundary is held until the next score counts."""
    scorer, envs = late(0.25), [Environment([LONG], [False])]
    with open_writer(tmp_path / "before", scorer, NODE, 1, limit_ends=True) as writer:
        before = collect(writer, scorer, envs)[-1]
        state = {name: array for name, array in writer.state().items() if not name.startswith("scores/")}
    silent = RowClockScorer(lambda scorer, call: 1e9, give_opinion)
    with open_writer(tmp_path / "after", silent, NODE, 1, limit_ends=True) as writer:
        writer.load(state)
        after = collect(writer, silent, envs)[0]
    boundary = (before.shaping[-1] + before.potential[-1]) / GAMMA
    assert boundary > 0
    np.testing.assert_allclose(after.potential[:, 0], np.full(len(after.potential), float(boundary)), atol=1e-6)


def make_scores(count: int, kind: ScoreKind = "absolute") -> tuple[DecisionScores, list[Ticket], list[Ticket]]:
    """Scores of one environment, tickets of its first observations, and those that are given up later."""
    given_up: list[Ticket] = []
    service: Any = SimpleNamespace(abandon=given_up.extend)
    tickets = [Ticket(replace(request(decision=number), kind=kind), 0, 0.0) for number in range(count)]
    return DecisionScores(service, (4, 1), 0.0, kind == "pair"), tickets, given_up


@pytest.mark.parametrize("kind", ["absolute", "pair"])
def test_a_newer_score_makes_older_ones_useless_but_each_change_counts(kind: ScoreKind) -> None:
    scores, tickets, given_up = make_scores(3, kind)
    for ticket in tickets:
        scores.add({0: ticket})
    tickets[2].score = Score(0.5)
    scores.settle([2], [0], [2])
    left = tickets[:2] if kind == "pair" else []
    assert scores.list_pending() == left and given_up == [each for each in tickets[:2] if each not in left]
    tickets[0].score = Score(0.25)
    scores.settle([3], [0], [3])
    progress = float(advance(advance(np.array(0.0), np.array(0.5)), np.array(0.25)))
    assert scores.read().rows.value[3, 0] == (progress if kind == "pair" else 0.5)


def test_only_what_may_still_count_now_is_waited_for() -> None:
    """An observation that was settled with the rollout before is not; of an ended episode only the final one is."""
    scores, (first, second, final), _ = make_scores(3)
    scores.add({0: first})
    assert scores.list_awaited([0], [0]) == [first]
    scores.settle_lasts([0], [0])
    assert scores.list_awaited([0], [0]) == []
    scores.add({0: second})
    scores.end_episodes(0, [0], {0: final})
    assert scores.list_awaited([0], [0]) == [final]
    final.score = Score(0.5)
    scores.settle([0], [0], [0])
    assert final.counted == 1, "it is the score of the decision after the last one"


def test_a_resumed_run_knows_of_which_observation_its_score_is_and_what_was_settled() -> None:
    scores, tickets, _ = make_scores(3)
    tickets[1].score = Score(0.5)
    scores.add({0: tickets[1]})
    scores.settle_lasts([0], [2])
    resumed, _, _ = make_scores(0)
    resumed.load(scores.state())
    resumed.add({0: tickets[2]})
    assert resumed.list_awaited([0], [2]) == []
    resumed.settle([0], [0], [2])
    age = resumed.read().age
    assert age is not None and age[0, 0] == 1
