"""Timeouts follow from the plan, and ranks wait for long rollouts."""

from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import Plan
from embodied_rl.training.rollout_worker import REPORT
from embodied_rl.training.sources import SharedExperience
from embodied_rl.training.worker_pool import LEAST_TIMEOUT, worker_report_timeout


class Listening(Ranks):
    """Rank 1 of two; the reports of rank 0 are given."""

    rank, size = 1, 2

    def __init__(self, words: list[Any]) -> None:
        self.words = words

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        return [self.words.pop(0), value]


class Telling(Ranks):
    """Rank 0 of two; its reports are recorded."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.told: list[Any] = []

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        self.told.append(value)
        return [value, True]


class Slow:
    """A dispatcher with a rollout that is complete at the third call of `wait`."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, float]] = []

    def wait(self, number: int, seconds: float) -> bool:
        self.looks.append((number, seconds))
        return len(self.looks) == 3


def experience(ranks: Ranks, workers: Any) -> SharedExperience:
    """Of version 5, which learns from two segments."""
    rollouts, actor, sampler = [None, None], SimpleNamespace(version=5), None
    return SharedExperience(actor, ranks, rollouts, sampler, workers)  # type: ignore[arg-type]


def test_rank_0_reports_while_it_waits() -> None:
    ranks, slow = Telling(), Slow()
    experience(ranks, SimpleNamespace(dispatcher=slow))._await_parts()
    assert ranks.told == [False, False, True]
    assert slow.looks == [(10, REPORT)] * 3


def test_other_ranks_listen_until_the_rollout_is_there() -> None:
    ranks = Listening([False, False, False, True, "not reached"])
    experience(ranks, None)._await_parts()
    assert ranks.words == ["not reached"]


@pytest.mark.parametrize(("start", "call"), [(300.0, 120.0), (1.0, 1.0), (86400.0, 86400.0)])
def test_a_worker_s_deadline_holds_a_replaced_simulator_and_no_whole_rollout(start: float, call: float) -> None:
    """One call to notice, the start, one more call, and the time until the next report."""
    plan = Plan(start_timeout=start, call_timeout=call)
    assert worker_report_timeout(plan) == call + start + call + REPORT


def test_ranks_wait_longer_than_rank_0_is_silent() -> None:
    assert 10 * REPORT < LEAST_TIMEOUT
