"""The service never holds up its caller, never makes a score up, and gives the reason of a missing one."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Score, ScoreKind, ScoreRequest, ScorerError
from embodied_rl.judge.requests import request_queue
from embodied_rl.judge.requests import service as service_module
from embodied_rl.judge.requests.attempts import RETRIES
from embodied_rl.judge.requests.request_queue import RequestQueue, Ticket, hash_request
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits
from embodied_rl.judge.scorers import shared_images
from embodied_rl.judge.scorers.shared_images import Picture, SharedImages
from tests.support.ended import wait_for
from tests.support.refusals import refuses
from tests.support.scoring import DEADLINE, ToldScorer, read_code, request, serving


def raising(reason: Reason, times: int = 10**9, **options: object) -> Callable[[ScoreRequest], Score]:
    """Fails so many times, then answers."""
    left = [times]

    def answer(asked: ScoreRequest) -> Score:
        left[0] -= 1
        if left[0] >= 0:
            raise ScorerError(reason, f"told to be {reason}", **options)  # type: ignore[arg-type]
        return read_code(asked)

    return answer


def ask(service: ScoreService, *requests: ScoreRequest) -> list[Score]:
    tickets = service.submit(requests, [0] * len(requests))
    service.wait(tickets, DEADLINE)
    scores = [ticket.score for ticket in tickets]
    assert None not in scores
    return [score for score in scores if score is not None]


@pytest.mark.parametrize("batch", [1, 4])
def test_each_request_gets_the_answer_to_its_own_picture(batch: int) -> None:
    scorer = ToldScorer(batch=batch)
    with serving(scorer) as service:
        scores = ask(service, *(request(code, decision=code) for code in range(50)))
    assert [round(score.value * 255) for score in scores] == list(range(50))
    assert max(map(len, scorer.calls)) <= batch
    assert scorer.closed


def test_a_call_holds_requests_of_one_submission() -> None:
    """The rounding of a network may depend on what is judged together."""
    gate = threading.Event()
    scorer = ToldScorer(batch=4, gate=gate, cacheable=False)
    with serving(scorer, in_flight=1, apart=True) as service:
        tickets = [*service.submit([request(0)], [0])]
        tickets += service.submit([request(1), request(2)], [0, 0])
        tickets += service.submit([request(code) for code in range(3, 8)], [0] * 5)
        gate.set()
        service.wait(tickets, DEADLINE)
    assert [len(call) for call in scorer.calls] == [1, 2, 4, 1]


def test_submit_waits_for_nobody() -> None:
    gate = threading.Event()
    with serving(ToldScorer(gate=gate)) as service:
        tickets = service.submit([request(code) for code in range(20)], range(20))
        service.wait(tickets, 0.05)
        assert all(ticket.score is None for ticket in tickets), "no score is made up"
        gate.set()
        service.wait(tickets, DEADLINE)
        assert all(ticket.score is not None and ticket.score.valid for ticket in tickets)


@pytest.mark.parametrize("seconds", [float("inf"), 1e20, 0.5])
def test_one_may_wait_for_ever(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks refuse such times. By a clock that stands still, any time is for ever."""
    monkeypatch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    gate = threading.Event()
    with serving(ToldScorer(gate=gate)) as service:
        tickets = service.submit([request(7)], [0])
        threading.Timer(0.2, gate.set).start()
        service.wait(tickets, seconds)
        assert tickets[0].score == read_code(request(7))


def test_equal_requests_are_asked_once_in_flight_and_later() -> None:
    gate, scorer = threading.Event(), None
    scorer = ToldScorer(gate=gate)
    with serving(scorer, in_flight=4) as service:
        tickets = service.submit([request(7, decision=number) for number in range(64)], [0] * 64)
        gate.set()
        service.wait(tickets, DEADLINE)
        assert {ticket.score.value for ticket in tickets if ticket.score} == {7 / 255}
        ask(service, request(7, episode=3))
        assert len(scorer.calls) == 1
        ask(service, request(7, words="go right"))
        assert len(scorer.calls) == 2, "other words are another question"


def test_the_scores_that_were_not_used_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "CACHED", 2)
    scorer = ToldScorer()
    with serving(scorer) as service:
        for code in (1, 2, 1, 3, 1, 3, 2):
            ask(service, request(code))
    assert [round(255 * read_code(call[0]).value) for call in scorer.calls] == [1, 2, 3, 2]


def test_a_scorer_that_says_so_is_asked_each_time() -> None:
    scorer = ToldScorer(cacheable=False)
    with serving(scorer) as service:
        ask(service, *[request(7)] * 5)
    assert sum(map(len, scorer.calls)) == 5


def test_failures_are_not_remembered() -> None:
    scorer = ToldScorer(raising("refused", times=1))
    with serving(scorer) as service:
        assert not ask(service, request(7))[0].valid
        assert ask(service, request(7))[0].valid


def test_the_most_important_requests_are_answered_first_and_the_others_dropped() -> None:
    gate = threading.Event()
    scorer = ToldScorer(gate=gate)
    with serving(scorer, in_flight=1, queued=3) as service:
        first = service.submit([request(0)], [0])
        wait_for(lambda: bool(scorer.calls))
        tickets = service.submit([request(code, decision=code) for code in range(1, 7)], [2, 4, 1, 5, 6, 3])
        wait_for(lambda: service.counts["dropped"] == 3)
        gate.set()
        service.wait([*first, *tickets], DEADLINE)
    reasons = [ticket.score.reason for ticket in tickets if ticket.score]
    assert reasons == ["ok", "dropped", "ok", "dropped", "dropped", "ok"]
    assert [calls[0].decision for calls in scorer.calls] == [0, 3, 1, 6]


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    scorer = ToldScorer(seconds=0.005, cacheable=False)
    with serving(scorer, in_flight=3) as service:
        ask(service, *(request(code) for code in range(30)))
    assert scorer.most_at_once == 3


@pytest.mark.thorough
@pytest.mark.parametrize("reason, attempts", [("busy", 1 + RETRIES), ("failed", 1 + RETRIES), ("refused", 1)])
def test_a_lasting_failure_has_its_reason(reason: Reason, attempts: int) -> None:
    scorer = ToldScorer(raising(reason))
    with serving(scorer) as service:
        score = ask(service, request())[0]
    assert score.reason == reason and score.value != score.value and "told to be" in score.detail
    assert 1 <= len(scorer.calls) <= attempts


def test_a_scorer_that_hangs_is_given_up() -> None:
    with serving(ToldScorer(gate=threading.Event()), timeout=0.05) as service:
        assert ask(service, request())[0].reason == "timeout"
        assert service.status in ("degraded", "down")


@pytest.mark.parametrize(
    "answer",
    [*map(Score, (math.nan, math.inf, -0.01, 1.5)), *(Score(0.5, done=done) for done in (-0.1, 1.5, math.nan))],
)
def test_a_value_outside_of_its_range_is_no_score(answer: Score) -> None:
    with serving(ToldScorer(lambda asked: answer)) as service:
        score = ask(service, request())[0]
    assert (score.reason, score.done) == ("range", None) and math.isnan(score.value)


def test_too_few_answers_are_a_failure() -> None:
    class Short(ToldScorer):
        async def score(self, requests):
            return []

    with serving(Short()) as service:
        assert ask(service, request())[0].reason == "failed"


def test_a_scorer_that_is_gone_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """And says so once, with the cause."""
    scorer = ToldScorer(raising("refused"))
    with caplog.at_level(logging.WARNING), serving(scorer) as service:
        scores = ask(service, *(request(code, decision=code) for code in range(200)))
        assert service.status == "down" and "told to be refused" in service.cause
        assert ask(service, request(250))[0].reason == "unavailable"
    assert {score.reason for score in scores} <= {"refused", "unavailable"}
    assert len(scorer.calls) < 60
    assert sum("The scorer is down" in line.message for line in caplog.records) == 1


def test_a_busy_scorer_is_sent_less_and_is_not_down() -> None:
    scorer = ToldScorer(raising("busy", times=100, retry_after=0.0))
    with serving(scorer, in_flight=8) as service:
        scores = ask(service, *(request(code, decision=code) for code in range(80)))
        assert {score.reason for score in scores} == {"busy"} and service.status == "degraded"
        ask(service, *(request(code) for code in range(100, 200)))
        assert ask(service, request(200))[0].valid and service.status == "healthy"


def test_only_the_newest_request_of_a_slot_waits_in_the_place_of_the_first() -> None:
    gate = threading.Event()
    scorer = ToldScorer(gate=gate, cacheable=False)
    with serving(scorer, in_flight=1) as service:
        first = service.submit([request(0)], [0])
        wait_for(lambda: bool(scorer.calls))
        asked = [(1, "a"), (2, "b"), (3, "a"), (4, "c"), (5, "a")]
        tickets = [service.submit([request(code)], [0], [slot])[0] for code, slot in asked]
        wait_for(lambda: service.counts["dropped"] == 2)
        gate.set()
        service.wait([*first, *tickets], DEADLINE)
    assert [ticket.score.reason for ticket in tickets if ticket.score] == ["dropped", "ok", "dropped", "ok", "ok"]
    assert [round(255 * read_code(call[0]).value) for call in scorer.calls] == [0, 5, 2, 4]


@pytest.mark.parametrize("cacheable", [True, False])
def test_an_abandoned_call_is_cancelled_and_its_place_is_free(cacheable: bool) -> None:
    """Unless another ticket waits for the same answer."""
    gate = threading.Event()
    scorer = ToldScorer(gate=gate, cacheable=cacheable)
    with serving(scorer, in_flight=2 if cacheable else 1) as service:
        given_up, kept = service.submit([request(1), request(1)], [0, 0])
        wait_for(lambda: scorer.at_once == 1)
        service.abandon([given_up])
        other = service.submit([request(2)], [0])
        wait_for(lambda: len(scorer.calls) == 2)
        assert scorer.at_once == (2 if cacheable else 1) and service.status == "healthy"
        gate.set()
        service.wait([kept, *other], DEADLINE)
    assert given_up.score is not None and given_up.score.reason == "late"
    assert [ticket.score.valid for ticket in (kept, *other) if ticket.score] == [True, True]
    assert len(scorer.calls) == (2 if cacheable else 3)


def test_a_cancelled_probe_lets_another_one_be_sent() -> None:
    now, gate = [0.0], threading.Event()
    scorer = ToldScorer(raising("refused", times=5), gate=gate)
    service = ScoreService(lambda: scorer, ServiceLimits(in_flight=2), clock=lambda: now[0])
    try:
        gate.set()
        for code in range(5):
            ask(service, request(code))
        gate.clear()
        now[0] = 6.0
        probe, other = service.submit([request(6), request(60)], [0, 1])
        service.wait([other], DEADLINE)
        assert other.score is not None and other.score.reason == "unavailable", "one is sent after a pause"
        wait_for(lambda: scorer.at_once == 1)
        now[0] = 7.5
        service.abandon([probe])
        assert probe.seconds == 1.5
        wait_for(lambda: scorer.at_once == 0)
        gate.set()
        now[0] = 13.0
        assert ask(service, request(7))[0].valid
    finally:
        service.close()


def test_hashing_holds_up_nobody_who_submits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is being hashed for as long as the test likes."""
    hashing, go_on = threading.Event(), threading.Event()

    def slow_hash(asked: ScoreRequest, identity: str) -> bytes:
        hashing.set()
        assert go_on.wait(DEADLINE)
        return bytes([asked.decision])

    monkeypatch.setattr(request_queue, "hash_request", slow_hash)
    with serving(ToldScorer()) as service:
        first = service.submit([request(1)], [0])
        assert hashing.wait(DEADLINE)
        submitting = threading.Thread(target=lambda: service.submit([request(2, decision=2)], [0]), daemon=True)
        submitting.start()
        submitting.join(DEADLINE)
        assert not submitting.is_alive() and not go_on.is_set()
        go_on.set()
        service.wait(first, DEADLINE)


def test_it_comes_back_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    scorer = ToldScorer(raising("refused", times=5))
    service = ScoreService(lambda: scorer, ServiceLimits(in_flight=1), clock=lambda: now[0])
    try:
        with caplog.at_level(logging.WARNING):
            for code in range(5):
                ask(service, request(code))
            assert ask(service, request(6))[0].reason == "unavailable"
            now[0] = 6.0
            assert ask(service, request(6))[0].valid
            assert service.status == "healthy"
    finally:
        service.close()
    assert caplog.text.count("The scorer answers again.") == 1


def test_abandoned_requests_are_not_asked_any_more() -> None:
    gate = threading.Event()
    scorer = ToldScorer(gate=gate)
    with serving(scorer, in_flight=1, queued=5) as service:
        tickets = service.submit([request(code, decision=code) for code in range(5)], range(5))
        wait_for(lambda: bool(scorer.calls))
        service.abandon(tickets)
        assert {ticket.score.reason for ticket in tickets if ticket.score} == {"late"}
        later = service.submit([request(code) for code in (0, 96, 97, 98, 99)], [9] * 5)
        gate.set()
        service.wait(later, DEADLINE)
        assert all(ticket.score is not None and ticket.score.valid for ticket in later), "they are dropped for nothing"
    assert len(scorer.calls) == 6


def test_a_call_goes_on_while_one_of_its_questions_is_waited_for() -> None:
    gate = threading.Event()
    scorer = ToldScorer(gate=gate, batch=2)
    with serving(scorer, in_flight=1) as service:
        given_up, kept = service.submit([request(1), request(2)], [0, 0])
        wait_for(lambda: scorer.at_once == 1)
        service.abandon([given_up])
        gate.set()
        service.wait([kept], DEADLINE)
        assert kept.score == read_code(request(2))


def test_closing_ends_what_is_in_flight_and_asks_nothing_more() -> None:
    class Slow(ToldScorer):
        async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
            try:
                return await super().score(requests)
            finally:
                for _ in range(9):
                    await asyncio.sleep(0)
                self.hung_up = True

        async def close(self) -> None:
            self.closed = self.hung_up

    scorer = Slow(gate=threading.Event())
    with serving(scorer, in_flight=1) as service:
        service.submit([request(1), request(2)], [0, 0])
        wait_for(lambda: bool(scorer.calls))
    assert scorer.closed and len(scorer.calls) == 1


def test_a_mistake_in_a_scorer_is_not_taken_for_a_failing_server() -> None:
    def broken(asked: ScoreRequest) -> Score:
        raise KeyError("a mistake")

    with serving(ToldScorer(broken)) as service:
        tickets = service.submit([request()], [0])
        began = time.monotonic()
        service.wait(tickets, DEADLINE)
        assert time.monotonic() - began < DEADLINE / 2, "nobody waits for a thread that has ended"
        with pytest.raises(KeyError, match="a mistake"):
            service.check()
        service.abandon(tickets)
        assert tickets[0].score is not None and tickets[0].score.reason == "late"


def test_a_mistake_in_the_service_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(asked: ScoreRequest, identity: str) -> bytes:
        raise KeyError("a mistake")

    monkeypatch.setattr(request_queue, "hash_request", broken)
    with serving(ToldScorer()) as service:
        service.wait(service.submit([request()], [0]), DEADLINE)
        with pytest.raises(KeyError, match="a mistake"):
            service.check()


def test_a_scorer_that_cannot_open_is_told_at_once() -> None:
    class Closed(ToldScorer):
        async def open(self) -> None:
            raise UserError("reward.url=http://nowhere: nobody answers there.")

    with pytest.raises(UserError, match="nobody answers there"):
        ScoreService(Closed, ServiceLimits())


@pytest.mark.thorough
@pytest.mark.parametrize("held_up", ["loop", "thread"])
def test_a_scorer_that_never_opens_is_given_up_and_named(held_up: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Slow(ToldScorer):
        async def open(self) -> None:
            if held_up == "thread":
                ended.wait(DEADLINE)
            await asyncio.sleep(DEADLINE)

    monkeypatch.setattr("embodied_rl.judge.requests.service.CLOSE_TIMEOUT", 1.0)
    try:
        with refuses("scorer-timeout", "told", "1 s"):
            ScoreService(Slow, ServiceLimits(opening=1.0))
    finally:
        ended.set()


@pytest.mark.parametrize("batch", [1, 4])
def test_a_budget_is_spent_to_the_last_request_and_then_nobody_is_asked(
    batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a pause, but for good; what is remembered costs nothing."""
    scorer = ToldScorer(batch=batch)
    with serving(scorer, budget=10) as service:
        first = ask(service, *(request(code, decision=code) for code in range(7)))
        assert all(score.valid for score in first) and service.status == "healthy" and service.spent == 7
        assert all(score.valid for score in ask(service, *(request(code, decision=code) for code in range(7))))
        assert service.spent == 7
        second = ask(service, *(request(code, decision=code) for code in range(100, 120)))
        assert [score.valid for score in second].count(True) == 3 and sum(map(len, scorer.calls)) == 10
        assert {score.reason for score in second if not score.valid} == {"unavailable"}
        assert service.status == "down" and "budget of 10 requests is spent (reward.budget)" in service.cause
        assert second[-1].detail == service.cause
        ask(service, request(200))
    assert caplog.text.count("is not asked any more") == 1


def test_abandoned_requests_take_no_place_and_leave_the_order_as_it_is() -> None:
    queue = RequestQueue(ToldScorer().traits, most=6, apart=False)
    tickets = [Ticket(request(priority), priority, 0.0) for priority in (1, 4, 2, 5, 6, 3)]
    assert queue.add(tickets) == []
    tickets[0].score = Score.invalid("late")
    queue.remove_answered()
    assert queue.add([Ticket(request(7), 7, 0.0)]) == [] and len(queue) == 6
    assert [queue.take()[0][0].priority for _ in range(6)] == [2, 3, 4, 5, 6, 7]
    queue.add(tickets[1:3])
    assert queue.clear() == tickets[1:3] and len(queue) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"instruction": "go right"}, {"kind": "pair"}, {"frames": request(8).frames}, {"first": request(8).first},
        {"frames": {"side": request(7).frames["top"]}}, {"state": np.ones(3, np.float32)},
        {"state_before": np.ones(3, np.float32)},
    ],
    ids=["words", "kind", "frames", "first frame", "camera", "state", "state before"],
)  # fmt: skip
def test_questions_that_differ_have_another_hash(other: dict[str, Any]) -> None:
    asked, differs = request(7), replace(request(7), **other)
    assert hash_request(asked, "it") != hash_request(differs, "it")
    assert hash_request(differs, "it") == hash_request(replace(differs, decision=3), "it")
    assert hash_request(differs, "it") != hash_request(differs, "another")


@pytest.mark.parametrize(
    "kind, given_up, codes", [("pair", False, [0, 1, 3]), ("pair", True, [1, 2, 3]), ("absolute", False, [1, 2, 3])]
)
def test_a_pair_shows_what_was_before_the_one_that_it_replaces(
    kind: ScoreKind, given_up: bool, codes: list[int]
) -> None:
    """Not of one that was given up, whose episode has ended."""
    shown = np.zeros((4, 1, 1, 3), np.uint8) + np.arange(4, dtype=np.uint8)[:, None, None, None]
    states = np.eye(3, dtype=np.float32)
    earlier = replace(request(), frames={"top": shown[:3]}, state_before=states[0], state=states[1])
    later = replace(request(decision=2), frames={"top": shown[1:]}, state_before=states[1], state=states[2])
    first, second = (Ticket(replace(each, kind=kind), 0, 0.0, slot="a") for each in (earlier, later))
    queue = RequestQueue(ToldScorer().traits, most=6, apart=False)
    queue.add([first])
    first.score = Score.invalid("late") if given_up else None
    assert queue.add([second]) == [first]
    asked = second.request
    assert asked.frames["top"][:, 0, 0, 0].tolist() == codes and asked.decision == 2
    assert asked.state_before is not None and np.array_equal(asked.state_before, states[codes[0]])
    assert np.array_equal(asked.state, states[2])


def test_pictures_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [Picture(np.full((2, 2, 3), code, np.uint8)) for code in range(5)]
    hashed: list[bytes] = []
    real = shared_images.hashlib.sha256
    monkeypatch.setattr(shared_images.hashlib, "sha256", lambda data: hashed.append(data) or real(data))
    found = set()
    for end in range(1, 6):
        frames = SharedImages({"top": tuple(shown[:end])})
        asked = replace(request(), frames=frames, first=SharedImages({"top": shown[0]}))
        found.add(hash_request(asked, "it"))
        plain = replace(asked, frames=dict(frames), first=dict(asked.first))
        assert hash_request(plain, "it") in found, "arrays are the same question"
    assert len(found) == 5
