"""How many requests are in flight, and when a scorer is paused, by a clock of our own."""

from embodied_rl.judge.requests.limits import (
    FIRST_PAUSE,
    GROW_AFTER,
    LONGEST_PAUSE,
    TRIP_AFTER,
    WINDOW,
    Breaker,
    InFlightLimit,
)
from embodied_rl.judge.requests.priority import FIRST, rank_decision


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(TRIP_AFTER):
        breaker.note_failure("refused")
    return breaker


def test_overload_halves_and_answers_add_one() -> None:
    limit = InFlightLimit(32)
    limit.note_overload()
    limit.note_overload()
    assert limit.allowed == 8
    for _ in range(GROW_AFTER):
        limit.note_answer()
    assert limit.allowed == 9
    for _ in range(100):
        limit.note_overload()
    assert limit.allowed == 1, "one is always allowed"
    for _ in range(100 * GROW_AFTER):
        limit.note_answer()
    assert limit.allowed == 32, "and never more than the settings say"


def test_failures_in_a_row_open_the_breaker() -> None:
    breaker = Breaker(Clock())
    for _ in range(TRIP_AFTER - 1):
        breaker.note_failure("refused")
    assert breaker.allows() and not breaker.is_open
    breaker.note_answer()
    breaker.note_failure("refused")
    assert not breaker.is_open, "an answer between them counts"
    assert opened(Clock()).is_open
    assert opened(Clock()).cause == "refused"


def test_many_failures_among_answers_open_it_too() -> None:
    breaker = Breaker(Clock())
    seen = 0
    while not breaker.is_open and seen < 2 * WINDOW:
        breaker.note_failure("busy") if seen % 3 else breaker.note_answer()
        seen += 1
    assert WINDOW <= seen <= WINDOW + 1, "as soon as there are enough to judge by"


def test_one_request_is_tried_after_each_pause_which_doubles() -> None:
    clock = Clock()
    breaker, pause = opened(clock), FIRST_PAUSE
    while pause < LONGEST_PAUSE:
        clock.now += pause - 0.1
        assert not breaker.allows()
        clock.now += 0.2
        assert breaker.allows()
        breaker.begin()
        assert not breaker.allows(), "one at a time"
        breaker.note_failure("still gone")
        pause = min(2 * pause, LONGEST_PAUSE)
    clock.now += LONGEST_PAUSE + 0.1
    breaker.begin()
    breaker.note_answer()
    assert breaker.allows() and not breaker.is_open and not breaker.cause


def test_a_permanent_failure_is_not_tried_again() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.note_failure("no such model", permanent=True)
    clock.now += 10 * LONGEST_PAUSE
    assert not breaker.allows()


def test_rows_are_ranked_from_coarse_to_fine() -> None:
    for decisions in (1, 2, 5, 24, 36, 64):
        ranks = [rank_decision(row, decisions) for row in range(decisions)]
        assert len(set(ranks)) == decisions and min(ranks) > FIRST
        ordered = sorted(range(decisions), key=lambda row: ranks[row])
        for answered in range(1, decisions + 1):
            grid = sorted(ordered[:answered])
            gaps = [after - before for before, after in zip(grid, [*grid[1:], decisions], strict=True)]
            assert max(gaps) <= 2 * -(-decisions // answered) + 1, "no long stretch is left to the last"
