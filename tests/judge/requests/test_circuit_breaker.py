"""How many requests are in flight, and when a scorer is paused, by a clock of our own."""

from embodied_rl.judge.requests.attempts import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TRIP_AFTER,
    WINDOW,
    Breaker,
    InFlightLimit,
)


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
    limit.note_overload(limit.halvings)
    limit.note_overload(limit.halvings)
    assert limit.allowed == 8
    for _ in range(8):
        limit.note_answer()
    assert limit.allowed == 9
    for _ in range(100):
        limit.note_overload(limit.halvings)
    assert limit.allowed == 1, "one is always allowed"
    for _ in range(495):
        limit.note_answer()
    assert limit.allowed == 31
    limit.note_answer()
    assert limit.allowed == 32, "one more for each round trip, 1 + 2 + … + 31 answers"
    for _ in range(100):
        limit.note_answer()
    assert limit.allowed == 32, "and never more than the settings say"
    limit.note_overload(limit.halvings)
    for _ in range(15):
        limit.note_answer()
    assert limit.allowed == 16, "answers before the halving do not count"


def test_requests_sent_before_a_halving_halve_no_further() -> None:
    limit = InFlightLimit(32)
    sent = limit.halvings
    for _ in range(32):
        limit.note_overload(sent)
    assert limit.allowed == 16
    limit.note_overload(limit.halvings)
    assert limit.allowed == 8


def test_failures_in_a_row_open_the_breaker() -> None:
    breaker = Breaker(Clock())
    for _ in range(TRIP_AFTER - 1):
        breaker.note_failure("refused")
    assert breaker.allows() and not breaker.is_open
    breaker.note_answer()
    for _ in range(TRIP_AFTER - 1):
        breaker.note_failure("refused")
    assert not breaker.is_open, "an answer between them counts"
    assert opened(Clock()).is_open
    assert opened(Clock()).cause == "refused"


def test_many_failures_among_answers_open_it_too() -> None:
    breaker, half = Breaker(Clock()), Breaker(Clock())
    for _ in range(WINDOW):
        half.note_answer()
        half.note_failure("busy")
        assert not half.is_open
    seen = 0
    while not breaker.is_open and seen < 2 * WINDOW:
        breaker.note_failure("busy") if seen % 3 else breaker.note_answer()
        seen += 1
    assert WINDOW <= seen <= WINDOW + 1, "as soon as there are enough to judge by"
    breaker.note_answer()
    breaker.note_failure("busy")
    assert not breaker.is_open, "what was before the pause is forgotten"


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
    for _ in range(TRIP_AFTER):
        assert not breaker.is_open, "it counts from 0 again"
        breaker.note_failure("gone once more")
    clock.now += FIRST_PAUSE
    assert breaker.allows(), "and pauses as at first"


def test_a_request_that_says_nothing_lets_another_one_be_tried() -> None:
    """One that was cancelled, or refused as busy, after the pause."""
    clock = Clock()
    breaker = opened(clock)
    clock.now += FIRST_PAUSE
    breaker.begin()
    breaker.note_unknown()
    assert breaker.is_open and not breaker.allows()
    clock.now += FIRST_PAUSE
    assert breaker.allows(), "the pause has not grown"
