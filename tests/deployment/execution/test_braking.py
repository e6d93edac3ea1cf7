"""Stops of sampled motions: what is foreseen is what happens, and no stop is shorter."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.execution.braking import StopPlanner, find_acceleration, sum_fading
from tests.support.sampled_motion import sum_speeds, time_stop

NEAR = 1e-9


def roll_out(planner: StopPlanner, speed: float, acceleration: float) -> list[tuple[float, float, float]]:
    """Return position, speed and acceleration in each tick of a stop, which begins at 0."""
    made, position = [], 0.0
    while abs(speed) > 1e-12 * planner.jerk or abs(acceleration) > planner.jerk * (1 + NEAR):
        acceleration = planner.next_acceleration(speed, acceleration)
        speed += acceleration
        position += speed
        made.append((position, speed, acceleration))
        assert len(made) < 20_000, "the stop does not end"
    return made


def list_states(sample_whole: bool):
    """Return a strategy for limits and a state: the jerk is 1, the acceleration limit from half of it to 40 times."""
    numbers = st.integers if sample_whole else st.floats
    most = st.integers(1, 20) if sample_whole else st.floats(0.5, 40)
    return st.tuples(most, numbers(-500, 500), numbers(-40, 40)).map(lambda drawn: (drawn[0], drawn[1], _fit(drawn)))


def _fit(drawn: tuple[float, float, float]) -> float:
    return max(-drawn[0], min(drawn[0], drawn[2]))


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.one_of(list_states(False), list_states(True)), st.floats(1e-6, 10))
def test_a_stop_goes_where_it_was_foreseen(state: tuple[float, float, float], jerk: float):
    most, speed, acceleration = (each * jerk for each in state)
    planner = StopPlanner(most, jerk)
    foreseen, made = planner.stopping_points(speed, acceleration), roll_out(planner, speed, acceleration)
    places = [0.0, *(position for position, _, _ in made)]
    grain = 1e-9 * (jerk + max(map(abs, places)))
    assert foreseen.rest == pytest.approx(places[-1], abs=grain)
    assert foreseen.above == pytest.approx(max(places), abs=grain)
    assert foreseen.below == pytest.approx(-min(places), abs=grain)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.one_of(list_states(False), list_states(True)))
def test_a_stop_keeps_its_limits_and_reverses_only_where_it_must(state: tuple[float, float, float]):
    most, speed, acceleration = state
    made = roll_out(StopPlanner(most, 1.0), speed, acceleration)
    before = [acceleration, *(each for _, _, each in made)]
    assert all(abs(now - last) <= 1 + NEAR for last, now in pairwise(before))
    assert all(abs(each) <= most + NEAR for each in before)
    signs = [math.copysign(1, each) for each in (speed, *(v for _, v, _ in made)) if abs(each) > NEAR]
    turns = sum(last != now for last, now in pairwise(signs))
    must = (speed > 0 and speed < sum_fading(-acceleration, 1.0)) or (
        speed < 0 and -speed < sum_fading(acceleration, 1.0)
    )
    assert turns <= int(must)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 6), st.floats(0, 40), st.floats(-6, 6))
def test_no_stop_without_reversal_is_shorter(most: float, speed: float, acceleration: float):
    acceleration = _fit((most, speed, acceleration))
    assume(speed >= sum_fading(-acceleration, 1.0) + 1e-6)  # else it has to reverse
    planner = StopPlanner(most, 1.0)
    ticks = len(roll_out(planner, speed, acceleration)) + 10
    least = sum_speeds(speed, acceleration, ticks, (1e6, most, 1.0))
    assert least is not None
    assert planner.stopping_points(speed, acceleration).rest == pytest.approx(least, abs=1e-6 * (1 + least))


@pytest.mark.parametrize(("speed", "acceleration", "jerk"), [(1.0, 4.0, 40.0), (0.3, 10.0, 50.0), (2.0, 2.0, 1e4)])
def test_fine_ticks_come_near_the_closed_forms_of_continuous_time(speed: float, acceleration: float, jerk: float):
    period = 1e-4
    planner = StopPlanner(acceleration * period**2, jerk * period**3)
    made = roll_out(planner, speed * period, 0.0)
    lasts = time_stop(speed, acceleration, jerk)
    assert len(made) * period == pytest.approx(lasts, rel=0.005)
    assert made[-1][0] == pytest.approx(speed * lasts / 2, rel=0.005)


@given(st.floats(0, 1e6), st.floats(1e-6, 1e3))
def test_the_growth_of_speed_and_its_inverse_agree(growth: float, jerk: float):
    acceleration = find_acceleration(growth, jerk)
    assert acceleration + sum_fading(acceleration, jerk) == pytest.approx(growth, rel=1e-9, abs=1e-12)
