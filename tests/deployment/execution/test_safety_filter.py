"""Safety filter: commands keep all limits for any input, and a target within the limits passes unchanged."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.execution.limits import ENTRY_KINDS, CommandLimits, EntryLimits
from embodied_rl.deployment.execution.safety_filter import SafetyFilter, measure_longest_ramp
from tests.support.refusals import refuses

PERIOD = 0.01
JOINT = EntryLimits("elbow", "position", -2.0, 2.0, 1.0, 10.0, 200.0)
SLOW = EntryLimits("shoulder", "position", -2.0, 2.0, 1.0, 2.0, 200.0)
DRIVE = EntryLimits("drive", "velocity", -0.5, 0.5, 1.0, 10.0, 200.0)
TABLETOP = CommandLimits(
    (
        EntryLimits("move_x", "displacement", 0.24, 0.72, 0.375, 2 * 0.375 / 0.08, 4 * 0.75 / 0.08**2),
        EntryLimits("gripper", "position", -1.0, 1.0, 2 / 0.08, 4 / 0.08**2, 8 / 0.08**3),
    )
)


def start(*entries: EntryLimits, at: float = 0.0, period: float = PERIOD) -> SafetyFilter:
    made = SafetyFilter(CommandLimits(entries), period)
    made.begin(np.full(len(entries), at))
    return made


def find_excess(entry: EntryLimits, commands: list[float], begun: float, period: float) -> float:
    """Return the largest derivative of the commands in parts of its limit, from the commands alone."""
    moves = entry.kind == "position"
    values = np.array([begun] * 4 + commands if moves else [0.0] * 4 + commands)
    speed = np.diff(values) / period if moves else values
    acceleration = np.diff(speed) / period
    jerk = np.diff(acceleration) / period
    parts = ((speed, entry.speed), (acceleration, entry.acceleration), (jerk, entry.jerk))
    return max(float(np.abs(motion).max()) / limit for motion, limit in parts)


NUMBERS = st.one_of(st.floats(-3, 3), st.floats(allow_nan=True, allow_infinity=True))
INPUTS = st.one_of(st.none(), NUMBERS)


@st.composite
def draw_entry(draw: st.DrawFn) -> tuple[EntryLimits, float]:
    """An entry and a period."""
    kind, middle, width = draw(st.sampled_from(ENTRY_KINDS)), draw(st.floats(-2, 2)), draw(st.floats(0.01, 5))
    speed, rise, bend = draw(st.floats(0.05, 10)), draw(st.floats(0.3, 50)), draw(st.floats(0.3, 20))
    period = draw(st.floats(0.001, 0.2))
    acceleration, jerk = speed / rise / period, speed / (period * rise * bend) / period
    return EntryLimits("q", kind, middle - width, middle + width, speed, acceleration, jerk), period


@settings(max_examples=300, deadline=None)
@given(draw_entry(), st.lists(st.tuples(INPUTS, st.integers(1, 40)), max_size=30), st.floats(0, 1))
def test_with_any_input_commands_keep_all_limits_and_the_box(
    drawn: tuple[EntryLimits, float], inputs: list[tuple[float | None, int]], share: float
):
    entry, period = drawn
    begun = min(max(entry.low + share * (entry.high - entry.low), entry.low), entry.high)
    tested, at, made = start(entry, at=begun, period=period), begun, []
    for wanted, count in [*inputs, (None, 0)]:
        for _ in range(count):
            filtered = tested.step(None if wanted is None else np.array([wanted]), np.array([at]))
            made.append(float(filtered.command[0]))
            at = made[-1] if entry.kind == "position" else at + made[-1] * period
            grain = 0.0 if entry.kind == "position" else 1e-9 * (entry.high - entry.low)
            assert entry.low - grain <= at <= entry.high + grain
    assert np.isfinite(made).all()
    assert find_excess(entry, made, begun, period) <= 1 + 1e-9


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(draw_entry(), st.lists(st.tuples(INPUTS, INPUTS), max_size=200))
def test_with_any_input_measured_the_commands_of_a_speed_keep_their_limits(
    drawn: tuple[EntryLimits, float], inputs: list[tuple[float | None, float | None]]
):
    entry, period = replace(drawn[0], kind="velocity"), drawn[1]
    tested = start(entry, at=entry.low, period=period)
    read = [[None if value is None else np.array([value]) for value in pair] for pair in inputs]
    made = [float(tested.step(wanted, measured).command[0]) for wanted, measured in read]
    assert np.isfinite(made).all()
    assert not made or find_excess(entry, made, 0.0, period) <= 1 + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=200), st.sampled_from(ENTRY_KINDS))
def test_what_keeps_the_limits_passes_to_the_bit(bends: list[float], kind: str):
    """The wanted motion comes from random jerks, which are cut so that acceleration and speed keep their limits."""
    entry = replace(JOINT, kind=kind, low=-50.0, high=50.0)
    unit = PERIOD if kind == "position" else 1.0
    at, speed, acceleration, wanted = 0.0, 0.0, 0.0, []
    for bend in bends:
        fading = speed + np.sign(acceleration) * acceleration**2 / (2 * entry.jerk) * 1.2
        if abs(fading) > 0.8 * entry.speed:
            bend = -math.copysign(1, fading)
        acceleration = max(-9.9, min(9.9, acceleration + 0.99 * bend * entry.jerk * PERIOD))
        speed += acceleration * PERIOD
        at += speed * PERIOD
        wanted.append(at if kind == "position" else speed * unit)
    if find_excess(entry, wanted, 0.0, PERIOD) > 1:
        return
    tested = start(entry)
    made = [tested.step(np.array([each]), np.zeros(1)) for each in wanted]
    assert [float(each.command[0]) for each in made] == wanted
    assert not any(each.why for each in made)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([-0.375, 0.375, 0.0, 0.1]), st.sampled_from([-1.0, 1.0, 0.3])), max_size=60),
    st.booleans(),
)
def test_in_lockstep_the_whole_range_of_the_actions_passes_to_the_bit(actions: list[tuple[float, float]], ends: bool):
    """The simulator's own box is 4 cm narrower, and clips by itself."""
    tested, at = SafetyFilter(TABLETOP, 0.08), 0.68 if ends else 0.5
    tested.begin(np.array([at, math.nan]))
    for action in actions:
        made = tested.step(np.array(action), np.array([at, math.nan]))
        assert made.command.tolist() == list(action)
        assert not made.why
        at = min(max(at + action[0] * 0.08, 0.28), 0.68)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (None, "ramp to rest"),
        (np.array([0.5, math.nan]), "not a finite number: drive"),
        (np.array([-math.inf, math.nan]), "not a finite number: elbow, drive"),
        (np.zeros(3), "not one number per entry"),
        (np.array(["a", "b"]), "not one number per entry"),
    ],
)
def test_what_is_no_command_ramps_the_whole_robot_to_rest(wanted: np.ndarray | None, said: str):
    tested, at, made = start(JOINT, DRIVE), 0.0, []
    for tick in range(80):
        filtered = tested.step(np.array([0.5, 0.2]) if tick < 30 else wanted, np.array([0.0, at]))
        at += filtered.command[1] * PERIOD
        made.append(filtered)
    assert {each.why for each in made[30:]} == {said}
    rest = [each.still for each in made].index(True, 1)
    assert rest > 30, "it takes time"
    assert all(each.still and (each.command == made[rest].command).all() for each in made[rest:])
    assert made[-1].command[1] == 0.0
    for column, entry in enumerate((JOINT, DRIVE)):
        assert find_excess(entry, [float(each.command[column]) for each in made], 0.0, PERIOD) <= 1 + 1e-9


def test_a_ramp_does_not_last_longer_than_the_longest():
    limits = CommandLimits((JOINT, DRIVE))
    longest = measure_longest_ramp(limits, PERIOD)
    assert longest == pytest.approx(1.0 / 10.0 + 10.0 / 200.0 + 10.0 / 200.0, abs=3 * PERIOD)
    tested = start(JOINT, DRIVE)
    for _ in range(40):
        tested.step(np.array([2.0, 1.0]), np.zeros(2))
    ticks = next(tick for tick in range(1, 100) if tested.step(None, np.zeros(2)).still)
    assert 0.1 <= ticks * PERIOD <= longest


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["measured", "frozen"])
def test_a_speed_stops_at_the_edge_and_turns_back_when_asked(share: float):
    tested, at, made = start(DRIVE), 0.0, []
    for tick in range(400):
        drift = np.array([at - share * at])
        filtered = tested.step(np.array([1.0 if tick < 200 else -1.0]), np.array([share * at]), drift)
        at += filtered.command[0] * PERIOD
        made.append((at, filtered))
    assert max(at for at, _ in made) == pytest.approx(0.5, abs=1e-6)
    assert made[199][1].why == "box: drive"
    assert abs(made[199][1].command[0]) < 1e-6
    assert at == pytest.approx(-0.5, abs=1e-6)


@pytest.mark.parametrize("measured", [np.array([math.nan]), None, np.zeros(4)])
@pytest.mark.parametrize("entry", [DRIVE, replace(DRIVE, low=-math.inf), replace(DRIVE, high=math.inf)])
def test_a_speed_with_a_box_that_is_not_measured_ramps_to_rest(measured: np.ndarray | None, entry: EntryLimits):
    tested = start(entry)
    for _ in range(30):
        tested.step(np.array([0.4]), np.zeros(1))
    made = [tested.step(np.array([0.4]), measured) for _ in range(40)]
    assert made[-1].still
    assert made[-1].why == "not measured: drive"


def test_a_speed_without_a_box_needs_no_measurement():
    tested = start(replace(DRIVE, low=-math.inf, high=math.inf))
    assert [tested.step(np.array([0.4]), None) for _ in range(60)][-1].command[0] == 0.4


@pytest.mark.parametrize("side", [1, -1])
def test_outside_the_box_a_robot_moves_inwards_alone(side: int):
    at = np.array([side * 0.7])
    tested = start(DRIVE, at=side * 0.7)
    assert tested.command.tolist() == [0.0]
    assert all(side * tested.step(np.array([side * 1.0]), at).command[0] <= 0 for _ in range(50))
    tested.begin(at)
    wanted = [side * 0.1 * (math.cos(0.05 * tick) - 1) for tick in range(300)]
    made = [tested.step(np.array([each]), at) for each in wanted]
    assert [each.command[0] for each in made] == wanted
    assert not any(each.why for each in made)


def test_a_position_begins_where_it_is_measured():
    tested = start(JOINT, at=0.7)
    assert tested.step(None, np.array([0.7])).command[0] == 0.7
    assert abs(tested.step(np.array([1.0]), np.array([0.7])).command[0] - 0.7) <= JOINT.jerk * PERIOD**3 * (1 + 1e-9)


def test_noise_at_the_edge_begins_at_the_edge():
    assert start(JOINT, at=2.003).step(None, np.array([2.003])).command[0] == 2.0


def test_a_position_outside_its_box_is_not_commanded():
    with refuses("entry-outside-box", "elbow", 2.005, "-2 to 2"):
        start(JOINT, at=2.005)


@pytest.mark.parametrize(
    ("low", "given_start", "begins"), [(1.0, None, 1.0), (1.0, np.array([1.5]), 1.5), (-2.0, None, 0.0)]
)
def test_an_unmeasured_entry_starts_at_the_given_position(low: float, given_start: np.ndarray | None, begins: float):
    tested = SafetyFilter(CommandLimits((replace(JOINT, low=low),)), PERIOD)
    tested.begin(np.array([math.nan]), given_start)
    assert tested.step(None, None).command[0] == begins


@pytest.mark.parametrize("period", [0.0, -0.01, math.nan, math.inf])
def test_an_invalid_period_is_refused(period: float):
    with refuses("value-out-of-range", f"period_s={period}"):
        SafetyFilter(CommandLimits((JOINT,)), period)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": "force"}, "entry-kind-unknown"),
        ({"low": 2.0}, "limits-reversed"),
        ({"low": math.nan}, "limits-reversed"),
        ({"speed": 0.0}, "value-out-of-range"),
        ({"acceleration": -1.0}, "value-out-of-range"),
        ({"jerk": math.nan}, "value-out-of-range"),
    ],
)
def test_invalid_limits_are_refused(changes: dict, code: str):
    ((name, value),) = changes.items()
    with refuses(code, "elbow", f"{name}={value!r}"):
        replace(JOINT, **changes)


def test_a_step_before_begin_raises_runtime_error():
    with pytest.raises(RuntimeError, match="begin"):
        SafetyFilter(CommandLimits((JOINT,)), PERIOD).step(None, None)


def test_the_longest_ramp_is_that_of_the_slowest_entry():
    alone = [measure_longest_ramp(CommandLimits((entry,)), PERIOD) for entry in (JOINT, SLOW)]
    assert alone[0] < alone[1] == measure_longest_ramp(CommandLimits((JOINT, SLOW)), PERIOD)
