"""The service never holds up who asks, never makes a score up, and says why one is missing."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Score, ScoreRequest, ScorerError
from embodied_rl.judge.requests.attempts import RETRIES
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits
from tests.support.ended import wait_for
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


def test_submit_waits_for_nobody() -> None:
    gate = threading.Event()
    with serving(ToldScorer(gate=gate)) as service:
        tickets = service.submit([request(code) for code in range(20)], range(20))
        service.wait(tickets, 0.05)
        assert all(ticket.score is None for ticket in tickets), "no score is made up"
        gate.set()
        service.wait(tickets, DEADLINE)
        assert all(ticket.score is not None and ticket.score.valid for ticket in tickets)


@pytest.mark.parametrize("seconds", [float("inf"), 1e20])
def test_one_may_wait_for_ever(seconds: float) -> None:
    """Locks refuse such times."""
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
        ask(service, replace(request(7), first=request(8).first))
        assert len(scorer.calls) == 3, "another first picture is another question"


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
        tickets = service.submit([request(code, decision=code) for code in range(1, 7)], [6, 5, 4, 3, 2, 1])
        wait_for(lambda: service.counts["dropped"] == 3)
        gate.set()
        service.wait([*first, *tickets], DEADLINE)
    assert [ticket.score.reason for ticket in tickets if ticket.score] == ["dropped"] * 3 + ["ok"] * 3
    assert [calls[0].decision for calls in scorer.calls] == [0, 6, 5, 4]


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    scorer = ToldScorer(seconds=0.005, cacheable=False)
    with serving(scorer, in_flight=3) as service:
        ask(service, *(request(code) for code in range(30)))
    assert scorer.most_at_once == 3


@pytest.mark.parametrize("reason", ["busy", "failed"])
def test_a_passing_failure_is_tried_again(reason: Reason) -> None:
    scorer = ToldScorer(raising(reason, times=1))
    with serving(scorer) as service:
        assert ask(service, request(9))[0].value == 9 / 255
    assert len(scorer.calls) == 2


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.01, 1.5])
def test_a_value_outside_of_its_range_is_no_score(value: float) -> None:
    with serving(ToldScorer(lambda asked: Score(value))) as service:
        score = ask(service, request())[0]
    assert score.reason == "range" and score.value != score.value


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


def test_a_permanent_failure_says_that_it_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving(ToldScorer(raising("refused", permanent=True))) as service:
        ask(service, request())
        assert service.status == "down"
    assert "It is not asked again." in caplog.text


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
    assert "The scorer answers again." in caplog.text


def test_abandoned_requests_are_not_asked_any_more() -> None:
    gate = threading.Event()
    scorer = ToldScorer(gate=gate)
    with serving(scorer, in_flight=1) as service:
        tickets = service.submit([request(code, decision=code) for code in range(5)], range(5))
        wait_for(lambda: bool(scorer.calls))
        service.abandon(tickets)
        assert {ticket.score.reason for ticket in tickets if ticket.score} == {"late"}
        gate.set()
        ask(service, request(99))
    assert len(scorer.calls) == 2


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


def test_a_scorer_that_cannot_open_is_told_at_once() -> None:
    class Closed(ToldScorer):
        async def open(self) -> None:
            raise UserError("reward.url=http://nowhere: nobody answers there.")

    with pytest.raises(UserError, match="nobody answers there"):
        ScoreService(Closed, ServiceLimits())


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


@pytest.mark.parametrize("done", [-0.1, 1.5, float("nan")])
def test_done_is_a_probability_or_the_score_is_not_valid(done: float) -> None:
    with serving(ToldScorer(lambda asked: Score(0.5, done=done), cacheable=False)) as service:
        (score,) = ask(service, request(1))
    assert (score.reason, score.done) == ("range", None)
