"""A takeover: what is wanted continues place and speed, reaches the human's command, and never jumps to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from embodied_rl.deployment.control.mode_targets import Takeover
from embodied_rl.deployment.execution.limits import CommandLimits
from tests.support.control_loop import ARM, TOOL, make_settings

SLOW = CommandLimits(tuple(replace(entry, speed=0.5) for entry in ARM.entries))
SETTINGS = make_settings(SLOW, blend_s=0.5, approach=0.5)
PERIOD = SETTINGS.period_s


def follow(takeover: Takeover, human, ticks: int) -> np.ndarray:
    return np.stack([takeover.follow(np.array(human, np.float64)) for _ in range(ticks)])


@pytest.mark.thorough
@budget(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(-1, 1), st.floats(-2, 2))
def test_positions_begin_at_the_command_with_its_speed_and_end_at_the_human(
    start: float, speed: float, human: float
) -> None:
    takeover = Takeover(SETTINGS)
    takeover.begin(np.array([start, 0.0]), np.array([speed, 0.0]))
    wanted = follow(takeover, [human, 0.0], 1300)[:, 0]
    places = np.concatenate([[start - speed * PERIOD, start], wanted])
    most = 0.5 * 0.5  # of the approach, beside what is left of the speed at the takeover
    change = np.diff(places) / PERIOD
    assert np.abs(change).max() <= most + abs(speed) + 1e-9
    length = max(0.5, 1.5 * abs(start - human) / most)
    steepest = (6 * abs(start - human) / length**2 + 4 * abs(speed) / length) * PERIOD
    assert np.abs(np.diff(change)).max() <= steepest + 1e-9
    assert wanted[-1] == human and (wanted[round(length / PERIOD) + 1 :] == human).all()


def test_the_human_moves_relatively_while_the_offset_fades() -> None:
    takeover = Takeover(SETTINGS)
    takeover.begin(np.zeros(2), np.zeros(2))
    steps = [takeover.follow(np.array([1.0 + 0.001 * tick, 0.0]))[0] for tick in range(1, 600)]
    assert steps[0] < 0.01 and abs(steps[-1] - 1.599) < 1e-9 and (np.diff(steps) > 0).all()


def test_what_the_human_does_not_touch_comes_to_rest_without_reversing() -> None:
    takeover = Takeover(SETTINGS)
    takeover.begin(np.array([0.3, 0.0]), np.array([0.6, 0.0]))
    wanted = follow(takeover, [np.nan, np.nan], 60)
    change = np.diff(np.concatenate([[0.3], wanted[:, 0]])) / PERIOD
    assert abs(change[0] - 0.6) < 0.05 and (np.diff(change) <= 1e-12).all() and (change >= -1e-12).all()
    assert wanted[-1, 0] == pytest.approx(0.3 + 0.6 * 0.5 / 3) and (wanted[:, 1] == 0).all()


def test_speeds_blend_from_the_command_and_untouched_ones_end_at_once() -> None:
    takeover = Takeover(make_settings(TOOL, blend_s=0.5))
    takeover.begin(np.array([0.3, 0.3, 1.0]), np.array([5.0, 5.0, 5.0]))
    wanted = follow(takeover, [-0.2, np.nan, np.nan], 30)
    assert 0.28 < wanted[0, 0] <= 0.3 and (np.diff(wanted[:, 0]) <= 0).all() and wanted[-1, 0] == -0.2
    assert (wanted[:, 1] == 0).all()
    assert (follow(takeover, [np.nan] * 3, 5)[:, :2] == 0).all()
    again = follow(takeover, [-0.2, 0.1, np.nan], 30)
    assert (np.diff(np.abs(again[:, :2]), axis=0) >= 0).all() and (again[-1, :2] == [-0.2, 0.1]).all()


def test_a_position_that_is_let_go_comes_to_rest_from_the_speed_that_it_has() -> None:
    takeover = Takeover(SETTINGS)
    takeover.begin(np.zeros(2), np.zeros(2))
    last = [takeover.follow(np.array([0.002 * tick, 0.0]))[0] for tick in range(400)][-1]
    change = np.diff([last, *follow(takeover, [np.nan, 0.0], 60)[:, 0]])
    assert 0.0018 < change[0] < 0.002 and (np.diff(change) <= 1e-12).all() and (change >= -1e-12).all()
    assert takeover.wanted[0] == pytest.approx(last + 0.1 * 0.5 / 3)


def test_an_entry_that_is_touched_again_begins_where_it_is() -> None:
    takeover = Takeover(SETTINGS)
    takeover.begin(np.zeros(2), np.zeros(2))
    first = follow(takeover, [0.1, np.nan], 100)[-1]
    assert (first == [0.1, 0.0]).all()
    let_go = follow(takeover, [np.nan, np.nan], 100)[-1]
    again = follow(takeover, [-1.0, 0.5], 400)
    assert (np.abs(again[0] - let_go) < 0.002).all() and (again[-1] == [-1.0, 0.5]).all()
    assert np.abs(np.diff(again, axis=0)).max() / PERIOD <= 0.25 + 1e-9
