"""The limiter of one entry: the motion of least time to what is wanted, and the wanted motion itself where possible."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.execution.limiter import ROUNDS, Correction, Limiter, find_root
from embodied_rl.deployment.execution.limits import EntryKind, EntryLimits
from embodied_rl.interfaces.errors import UserError
from tests.support.refusals import refuses
from tests.support.sampled_motion import find_farthest, time_move, time_stop

PERIOD = 0.01


def make_limits(kind: EntryKind = "position", edge: float = 3.0, **others: float) -> EntryLimits:
    return EntryLimits("joint", kind, -edge, edge, **({"speed": 1.0, "acceleration": 4.0, "jerk": 40.0} | others))


def reach(limiter: Limiter, wanted: float, at_most: int = 3000) -> list[float]:
    """Return the commands until the first one that is wanted, and check that it stays."""
    made = []
    while limiter.command != wanted or limiter.acceleration != 0 or (limiter.moves_position and limiter.speed != 0):
        made.append(limiter.follow(wanted, math.nan)[0])
        assert len(made) < at_most, f"at {limiter.command}, {wanted} was not reached"
    for _ in range(10):
        assert limiter.follow(wanted, math.nan) == (wanted, None)
    return made[:-1]  # without the tick that shows the rest


@pytest.mark.parametrize("distance", [1e-3, 0.02, 0.1, 0.3, 0.36, 1.0, 2.9])
@pytest.mark.parametrize(("acceleration", "jerk"), [(4.0, 40.0), (20.0, 200.0), (1.0, 1000.0)])
def test_a_move_from_rest_to_rest_takes_the_least_time(distance: float, acceleration: float, jerk: float):
    made = reach(Limiter(make_limits(acceleration=acceleration, jerk=jerk), PERIOD), distance)
    assert max(made) <= distance, "it overshot"
    per_tick = (PERIOD, acceleration * PERIOD**2, jerk * PERIOD**3)
    ticks = len(made) + 1  # the optimum counts the tick in which the acceleration goes back to 0
    assert find_farthest(ticks - 1, per_tick) < distance * (1 + 1e-6), "less time would do"
    assert len(made) * PERIOD <= time_move(distance, 1.0, acceleration, jerk) * 1.05 + 2 * PERIOD


@pytest.mark.parametrize(("speed", "acceleration", "jerk"), [(1.0, 4.0, 40.0), (1.0, 20.0, 60.0)])
def test_a_ramp_to_rest_takes_the_time_and_the_way_of_the_closed_forms(speed: float, acceleration: float, jerk: float):
    limiter = Limiter(make_limits(edge=10.0, acceleration=acceleration, jerk=jerk), 0.001)
    while limiter.speed < speed * 0.001 * (1 - 1e-6):
        limiter.follow(9.0, math.nan)
    begun, ticks = limiter.command, 0
    while not limiter.still:
        limiter.stop(math.nan)
        ticks += 1
    lasts = time_stop(speed, acceleration, jerk)
    assert ticks * 0.001 == pytest.approx(lasts, rel=0.01)
    assert limiter.command - begun == pytest.approx(speed * lasts / 2, rel=0.01)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-4, 4), max_size=60),
    st.floats(-3, 3),
    st.floats(0.05, 5),
    st.floats(0.1, 200),
    st.floats(1, 1e5),
)
def test_from_any_state_a_wanted_position_is_reached_and_kept(
    before: list[float], wanted: float, speed: float, acceleration: float, jerk: float
):
    limiter = Limiter(make_limits(speed=speed, acceleration=acceleration, jerk=jerk), PERIOD)
    for each in before:
        limiter.follow(each, math.nan)
    reach(limiter, wanted, 30_000)
    assert limiter.still


@pytest.mark.parametrize("slope", [0.3, -0.7, 0.95])
def test_a_moving_position_is_caught_up_with_and_then_followed_to_the_bit(slope: float):
    limiter = Limiter(make_limits(edge=40.0), PERIOD)
    wanted = [1.0 + slope * PERIOD * tick for tick in range(2500)]
    made = [limiter.follow(each, math.nan) for each in wanted]
    joined = next(tick for tick, (_, why) in enumerate(made) if why is None)
    assert made[0][1] is not None, "it began one unit away"
    assert [each for each, _ in made[joined:]] == wanted[joined:]
    rising = 1.0 / 4.0 + 4.0 / 40.0  # to top speed
    assert joined * PERIOD < (1.0 + abs(slope) * rising) / (1.0 - slope) + 2 * rising


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rising_speed_is_caught_up_with_and_then_followed_to_the_bit(sign: int):
    limiter = Limiter(make_limits("velocity", math.inf), PERIOD)
    wanted = [sign * (0.3 + PERIOD * tick) for tick in range(60)]
    made = [limiter.follow(each, math.nan) for each in wanted]
    joined = next(tick for tick, (_, why) in enumerate(made) if why is None)
    assert [each for each, _ in made[joined:]] == wanted[joined:]
    assert joined * PERIOD <= 0.3 / (4.0 - 1.0) + 2 * 4.0 / 40.0, "its own acceleration is 1"


def test_a_sequence_of_segments_is_followed_without_growing_lag():
    limiter = Limiter(make_limits(edge=20.0, acceleration=20.0, jerk=2000.0), PERIOD)
    knots = np.cumsum(np.random.default_rng(0).uniform(-0.02, 0.02, 40))  # 80 ms apart
    wanted = np.interp(np.arange(8 * 40) / 8, np.arange(41), [0.0, *knots])
    error = [abs(limiter.follow(each, math.nan)[0] - each) for each in wanted]
    assert 0 < max(error) < 0.02
    assert np.mean(np.array(error) == 0) > 0.2


@pytest.mark.parametrize("wanted", [0.8, -0.8, 1.0])
def test_a_wanted_speed_is_reached_in_least_time_and_not_passed(wanted: float):
    limiter = Limiter(make_limits("velocity", math.inf), PERIOD)
    made = reach(limiter, wanted)
    assert max(map(abs, made)) <= abs(wanted)
    assert len(made) * PERIOD == pytest.approx(time_stop(abs(wanted), 4.0, 40.0), abs=2 * PERIOD)


@pytest.mark.parametrize("speed", [0.05, 0.4, 1.0])
def test_a_speed_towards_the_edge_ends_at_the_edge_in_least_time(speed: float):
    limiter, at, ticks = Limiter(make_limits("velocity", 0.5, speed=speed), PERIOD), 0.0, 0
    while at < 0.5 - 1e-6:
        at += limiter.follow(2.0, at)[0] * PERIOD
        ticks += 1
        assert at <= 0.5 * (1 + 1e-9)
        assert ticks < 3000
    assert ticks * PERIOD <= time_move(0.5, speed, 4.0, 40.0) * 1.05 + 2 * PERIOD


def test_what_is_wanted_beyond_the_box_leads_to_its_edge():
    limiter = Limiter(make_limits(edge=0.5), PERIOD)
    made = [limiter.follow(7.0, math.nan) for _ in range(300)]
    assert made[-1] == (0.5, Correction.BOX)
    assert max(each for each, _ in made) == 0.5


@pytest.mark.parametrize(
    ("kind", "wanted", "others", "reason"),
    [
        ("position", 0.9, {"speed": 20.0, "acceleration": 4e3}, Correction.SPEED),
        ("position", 0.9, {"speed": 100.0, "acceleration": 4e3}, Correction.ACCELERATION),
        ("position", 0.9, {"speed": 100.0, "acceleration": 1e4, "jerk": 5e5}, Correction.JERK),
        ("velocity", 1.5, {}, Correction.SPEED),
        ("velocity", 0.9, {}, Correction.ACCELERATION),
        ("velocity", 0.03, {}, Correction.JERK),
    ],
)
def test_the_reason_is_the_first_limit_that_the_wanted_value_breaks(
    kind: EntryKind, wanted: float, others: dict[str, float], reason: Correction
):
    assert Limiter(make_limits(kind, **others), PERIOD).follow(wanted, 0.0)[1] is reason


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", ["position", "velocity"])
def test_an_acceleration_that_could_not_fade_before_top_speed_is_not_admitted(kind: EntryKind, sign: int):
    """The wanted speed rises by the largest acceleration, which needs ten ticks to fade, up to top speed and beyond."""
    limiter, moves = Limiter(make_limits(kind, 10.0), PERIOD), kind == "position"
    speed = np.cumsum(np.minimum(np.arange(1, 60) * 40.0 * PERIOD, 4.0)) * PERIOD
    wanted = np.cumsum(speed) * PERIOD if moves else speed
    made = [limiter.follow(sign * float(each), math.nan)[0] for each in wanted]
    assert made[:20] == list(sign * wanted[:20]), "it begins as wanted"
    motion = np.array([0.0, 0.0, 0.0, *made])
    motion = np.diff(motion) / PERIOD if moves else motion
    for limit in (1.0, 4.0, 40.0):
        assert np.abs(motion).max() <= limit * (1 + 1e-9)
        motion = np.diff(motion) / PERIOD


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=1, max_size=100), st.floats(0.1, 200), st.floats(1, 1e5))
@example([-1.0, 0.0, 1.0, 0.0, -1.0, 0.0], 167.0, 23334.0)
def test_no_ramp_lasts_longer_than_the_longest(before: list[float], acceleration: float, jerk: float):
    limiter, ticks = Limiter(make_limits(acceleration=acceleration, jerk=jerk), PERIOD), 0
    for each in before:
        limiter.follow(each, math.nan)
    while not limiter.still:
        limiter.stop(math.nan)
        ticks += 1
    assert ticks <= limiter.count_ramp_ticks()


@pytest.mark.parametrize("edges", [(-4.0, 4.0), (-4.0, 0.1), (-0.1, 4.0)])
def test_limits_that_double_precision_cannot_hold_are_refused_with_the_numbers(edges: tuple[float, float]):
    """The jerk must change a command by 1000 grains within a tick; a grain is four rounding steps at the far edge."""
    least, (low, high) = 1000 * 4 * math.ulp(4.0) / PERIOD**3, edges
    Limiter(replace(make_limits(jerk=1.1 * least), low=low, high=high), PERIOD)
    with refuses("jerk-too-small", "joint", "jerk=", 4):
        Limiter(replace(make_limits(jerk=0.9 * least), low=low, high=high), PERIOD)


@pytest.mark.parametrize(("kind", "power"), [("position", 3), ("velocity", 2)])
def test_a_limiter_that_was_stopped_forgets_how_fast_the_wanted_value_moved(kind: EntryKind, power: int):
    stopped, fresh = (Limiter(make_limits(kind), PERIOD) for _ in range(2))
    assert stopped.follow(0.0, math.nan) == (0.0, None)
    assert stopped.stop(math.nan) == 0.0
    wanted = 1.5 * 40.0 * PERIOD**power  # beyond what one tick allows
    assert stopped.follow(wanted, math.nan) == fresh.follow(wanted, math.nan)


@pytest.mark.parametrize("kind", ["position", "velocity"])
def test_a_limiter_that_was_stopped_follows_at_once_what_keeps_the_limits(kind: EntryKind):
    limiter = Limiter(make_limits(kind), PERIOD)
    for _ in range(10):
        limiter.follow(0.9, math.nan)
    for _ in range(limiter.count_ramp_ticks() + 5):
        limiter.stop(math.nan)
    small = limiter.command + 40.0 * PERIOD ** (3 if kind == "position" else 2)
    assert limiter.follow(small, math.nan) == (small, None)


def test_a_command_that_turns_round_is_not_still():
    """Its speed is 0 for one tick, and it could not stay there within the limit of jerk."""
    limiter = Limiter(make_limits(), PERIOD)
    jerk = 40.0 * PERIOD**3
    assert limiter.still
    limiter.acceleration = -2 * jerk
    assert not limiter.still
    limiter.acceleration = jerk / 2
    assert limiter.still


@pytest.mark.thorough
def test_rounding_exceeds_no_limit_by_more_than_the_documented_figure():
    """1e-9 of a limit and 1000 rounding steps of the largest number of the box, which is narrow and far from 0."""
    random, ticks = Random(5), 0
    while ticks < 40_000:
        entry, period = sample_adversarial(random)
        try:
            limiter = Limiter(entry, period)
        except UserError:  # too fine for double precision
            continue
        limiter.begin(random.uniform(entry.low, entry.high))
        made, wanted, stops = [limiter.command] * 4, limiter.command, False
        for _ in range(150):
            if random.random() < 0.15:
                stops = random.random() < 0.1
                edges = (entry.low, entry.high, math.nextafter(entry.high, 0), limiter.command + limiter.speed)
                wanted = random.choice((*edges, random.uniform(entry.low, entry.high)))
            made.append(limiter.stop(math.nan) if stops else limiter.follow(wanted, math.nan)[0])
            ticks += 1
        grain = 1000 * math.ulp(max(abs(entry.low), abs(entry.high)))
        changes = [Fraction(value) for value in made]
        for power, limit in enumerate((entry.speed, entry.acceleration, entry.jerk), 1):
            changes = [after - before for before, after in itertools.pairwise(changes)]
            assert max(map(abs, changes)) <= limit * period**power * (1 + 1e-9) + grain


def sample_adversarial(random: Random) -> tuple[EntryLimits, float]:
    """A box up to 20,000 from 0, of 2 mm to 20 m, and a period; limits from idle to a thousandth of one another."""
    middle, width = random.uniform(-2, 2) * 10 ** random.uniform(-1, 4), 10 ** random.uniform(-3, 1)
    period, speed = 10 ** random.uniform(-3, -0.7), 10 ** random.uniform(-3, 1)
    acceleration = speed / 10 ** random.uniform(-0.5, 3) / period
    jerk = acceleration / 10 ** random.uniform(-0.5, 3) / period
    return EntryLimits("q", "position", middle - width, middle + width, speed, acceleration, jerk), period


@pytest.mark.parametrize(
    ("function", "root"),
    [
        (lambda x: x - 0.3, 0.3),
        (lambda x: (x - 0.3) * (1 if x < 0.3 else 1e9), 0.3),
        (lambda x: x**3 - 1e-9, 1e-3),
        (lambda x: x + 5, -1.0),
        (lambda x: x - 5, 2.0),
        (lambda x: x - 2.0, 2.0),
    ],
)
@pytest.mark.parametrize("guess", [-1.0, -0.4, 0.3, 1.7, 2.0])
def test_the_root_or_the_nearer_end_is_found(function: Callable[[float], float], root: float, guess: float):
    calls: list[float] = []
    found = find_root(lambda x: calls.append(x) or function(x), -1.0, 2.0, guess, 1e-14)
    assert found == pytest.approx(root, abs=1e-4 if root == 1e-3 else 1e-12)
    assert len(calls) <= ROUNDS + 2


def test_the_root_of_a_straight_line_is_found_at_once():
    calls: list[float] = []
    assert find_root(lambda x: calls.append(x) or 2 * x - 0.6, -1.0, 2.0, 1.7, 1e-14) == pytest.approx(0.3, abs=1e-14)
    assert len(calls) <= 4


def test_a_root_next_to_an_end_is_not_taken_for_the_other_end():
    """False position alone rounds to the end here, where the value is noise above 0."""
    assert find_root(lambda x: x - 1.0 if x < 1.0 else 1e-17, 0.0, 1.0, 1.0, 1e-18) == pytest.approx(1.0, abs=1e-12)
