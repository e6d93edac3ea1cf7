"""What a judge costs: by hand, within its budget, and unknown where nobody counted."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.judge.scorers.cost import CostMeter, Prices, check_budget, check_prices, describe_cost, find_prices
from embodied_rl.schema import RewardNode
from tests.support.ended import wait_for
from tests.support.refusals import refuses
from tests.support.scoring import ToldScorer, request, serving

PRICES = Prices(2.0, 10.0)
ANSWER = Score(0.5, tokens=(400, 20))  # 0.8 + 0.2


class Paid(ToldScorer):
    """Counts tokens."""

    def __init__(self, answer: Callable[[ScoreRequest], Score] = lambda asked: ANSWER, **options: Any) -> None:
        super().__init__(answer, **options)
        self.traits = replace(self.traits, counts_tokens=True)


def test_tokens_times_prices() -> None:
    assert PRICES.of((400, 20)) == pytest.approx(1.0)
    assert describe_cost(1200, 60, 0, PRICES)["reward/cost"] == pytest.approx(3.0)
    assert "reward/cost" not in describe_cost(1200, 60, 0, None) and not describe_cost(0, 0, 0, PRICES)
    assert find_prices(RewardNode(price_per_1k_tokens=2.0)) == Prices(2.0, 2.0)
    assert find_prices(RewardNode(price_per_1k_tokens=2.0, price_per_1k_written=10.0)) == PRICES


def test_what_was_not_counted_is_unknown_and_never_0() -> None:
    assert describe_cost(0, 0, 3, PRICES)["reward/cost"] == "unknown"
    assert describe_cost(1200, 60, 1, PRICES)["reward/cost"] == "unknown"
    with serving(Paid(lambda asked: Score(0.5))) as service:
        service.wait(service.submit([request(1)], [0]), 60)
        assert service.cost.uncounted == 1 and service.cost.read == 0


def test_what_a_cancelled_call_cost_is_unknown() -> None:
    scorer = Paid(gate=threading.Event())
    with serving(scorer) as service:
        tickets = service.submit([request(1)], [0])
        wait_for(lambda: scorer.at_once == 1)
        service.abandon(tickets)
        wait_for(lambda: service.cost.uncounted == 1)


def test_answers_that_may_not_be_used_cost_as_much() -> None:
    """One that cannot be read, and one out of its range; but none from a server that refuses."""

    def answer(asked: ScoreRequest) -> Score:
        if asked.decision == 2:
            raise ScorerError("refused", "not this one")
        return replace(Score.invalid("unreadable") if asked.decision else Score(7.0), tokens=(400, 20))

    with serving(Paid(answer, cacheable=False), prices=PRICES) as service:
        tickets = service.submit([request(each, decision=each) for each in range(3)], [0] * 3)
        service.wait(tickets, 60)
        assert [each.score.reason for each in tickets if each.score] == ["range", "unreadable", "refused"]
        assert (service.cost.read, service.cost.written, service.cost.uncounted) == (800, 40, 0)


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_budget_of_money_is_not_exceeded_by_what_is_in_flight(in_flight: int) -> None:
    scorer = Paid(cacheable=False, seconds=0.002)
    with serving(scorer, prices=PRICES, money=5.5, in_flight=in_flight) as service:
        tickets = service.submit([request(each, decision=each) for each in range(20)], [0] * 20)
        service.wait(tickets, 60)
        assert sum(map(len, scorer.calls)) == 5 and service.cost.spent == pytest.approx(5.0)
        reasons = [each.score.reason for each in tickets if each.score]
        assert reasons.count("ok") == 5 and reasons.count("unavailable") == 15
        assert service.status == "down" and "budget of 5.5" in service.cause and "budget_money" in service.cause


def test_the_first_question_is_asked_alone_where_money_is_limited() -> None:
    """Until its answer has come, nobody knows what a question costs."""
    gate = threading.Event()
    scorer = Paid(gate=gate, cacheable=False, batch=4)
    with serving(scorer, prices=PRICES, money=100.0, in_flight=8) as service:
        tickets = service.submit([request(each, decision=each) for each in range(9)], [0] * 9)
        wait_for(lambda: bool(scorer.calls))
        assert len(scorer.calls) == 1
        gate.set()
        service.wait(tickets, 60)
        assert len(scorer.calls) == 9


def test_a_server_that_does_not_count_ends_a_budget_of_money() -> None:
    scorer = Paid(lambda asked: Score(0.5), cacheable=False)
    with serving(scorer, prices=PRICES, money=100.0) as service:
        tickets = service.submit([request(each, decision=each) for each in range(3)], [0] * 3)
        service.wait(tickets, 60)
        assert len(scorer.calls) == 1 and "does not count tokens" in service.cause
        assert service.status == "down"


def test_what_came_too_late_may_have_been_paid_for() -> None:
    meter = CostMeter(PRICES, 2.5)
    meter.note(ANSWER)
    assert meter.has_room(0) and not meter.has_room(1)
    meter.note(Score.invalid("timeout"))
    assert meter.spent == pytest.approx(2.0) and meter.uncounted == 1 and "budget of 2.5" in meter.cause
    meter.note(Score.invalid("busy"))
    assert meter.uncounted == 1


def test_a_resumed_run_goes_on_with_what_is_left() -> None:
    meter, again = CostMeter(PRICES, 3.0), CostMeter(PRICES, 3.0)
    for score in (ANSWER, ANSWER, Score.invalid("timeout")):
        meter.note(score)
    again.load(meter.state())
    assert again.cause == meter.cause != "" and again.spent == meter.spent


def test_what_is_in_flight_at_a_checkpoint_is_reserved_after_a_resume() -> None:
    """Its answer may come, and be paid for, without the resumed run."""
    gate = threading.Event()
    gate.set()
    scorer, again = Paid(gate=gate, cacheable=False), CostMeter(PRICES, 5.5)
    with serving(scorer, prices=PRICES, money=5.5, in_flight=2) as service:
        service.wait(service.submit([request(0)], [0]), 60)
        gate.clear()
        tickets = service.submit([request(each, decision=each) for each in (1, 2)], [0] * 2)
        wait_for(lambda: len(scorer.calls) == 3)
        again.load(service.cost.state())
        gate.set()
        service.wait(tickets, 60)
        assert service.cost.spent == again.spent == pytest.approx(3.0)
        again.load(service.cost.state())
    assert again.spent == pytest.approx(3.0), "nothing is in flight any more"


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"budget_money": 1.0}, "reward.budget_money needs reward.price_per_1k_tokens"),
        ({"price_per_1k_written": 1.0}, "reward.price_per_1k_written needs reward.price_per_1k_tokens"),
    ],
)
def test_a_budget_without_a_price_is_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_prices(RewardNode(name="vlm", **settings), counts_tokens=True)


def test_prices_without_tokens_are_refused() -> None:
    node = RewardNode(name="embedded", price_per_1k_tokens=1.0)
    with refuses("key-unused", "reward=embedded"):
        check_prices(node, counts_tokens=False)
    check_prices(node, counts_tokens=True)
    check_budget(node, counts_tokens=False)
    with refuses("token-usage-missing", "budget_money=2", "reward.budget"):
        check_budget(replace(node, budget_money=2.0), counts_tokens=False)
