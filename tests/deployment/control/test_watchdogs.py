"""Each watchdog: what triggers it, and when it releases the robot."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.control.freshness import FreshnessGate
from embodied_rl.deployment.control.settings import CoreSettings, StreamRule
from embodied_rl.deployment.control.watchdogs import (
    FORGETTING,
    LatchedFault,
    LoopWatch,
    PictureWatch,
    TrackingWatch,
    Watchdogs,
)
from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.tick import StreamReading
from tests.support.control_loop import TOOL, make_settings
from tests.support.refusals import refuses


def test_a_reason_holds_until_it_was_absent_for_the_settling_time() -> None:
    trip = LatchedFault(0.5)
    assert [trip.update(now, "blind" if now in (1.0, 1.25) else "") for now in (0.5, 1.0, 1.125, 1.25)] == [
        "", "blind", "blind; well for less than 0.5 s", "blind",
    ]  # fmt: skip
    assert trip.update(1.74, "") and not trip.update(1.75, "") and not trip.update(0.0, "")
    trip.update(5.0, "blind")
    trip.restart(1.0)  # the clock went back
    assert trip.update(1.4, "") and not trip.update(1.5, "")


def test_a_late_loop_and_an_invalid_clock_are_detected() -> None:
    watch = LoopWatch(0.1)
    said = [watch.update(now) for now in (5.0, 5.09, 5.3, 5.31, 4.0, 4.01, 4.01, 4.01, 4.01, 4.01, 4.01, 4.02)]
    words = [each.split(":")[0] for each, _ in said]
    assert words[:6] == ["", "", "the loop was late", "", "the clock went back by 1.310 s", ""]
    assert words[6:] == ["", "", *["the clock stands still"] * 3, ""]
    assert [back for _, back in said] == [tick == 4 for tick in range(12)] and (watch.overruns, watch.jumps) == (1, 2)
    watch.forget()
    assert watch.update(0.0) == ("", False)
    watch = LoopWatch(0.1, lost_s=0.3)
    lost = [(watch.update(now), watch.lost) for now in (0.0, 0.25, 0.75, 0.76)]
    assert [each for _, each in lost] == [False, False, True, False] and not any(back for (_, back), _ in lost)
    assert (watch.is_lost(1.0), watch.is_lost(1.1), watch.overruns) == (False, True, 2)


def test_a_position_that_is_not_followed_trips() -> None:
    watch = TrackingWatch(make_settings(tracking_error=(np.inf, 0.1)))
    assert watch.update(0.0, np.array([1.0, 0.0]), np.array([0.0, 0.09])) == ""
    assert watch.update(0.0, np.array([1.0, 0.0]), np.array([0.0, -0.11])).startswith("elbow is 0.11 from its command")


def test_a_speed_that_is_not_followed_trips_and_a_followed_one_does_not() -> None:
    settings = make_settings(TOOL, tracking_error=(0.05, 0.05, np.inf))
    watch, blocked = TrackingWatch(settings), TrackingWatch(settings)
    command, place = np.array([0.2, -0.2, 1.0]), np.array([0.0, 0.0, np.nan])
    tripped = []
    for tick in range(1, 100):
        now = place + tick * settings.period_s * np.array([0.2, -0.2, 1.0])
        time = tick * settings.period_s
        assert watch.update(time, command, now) == ""
        tripped.append(blocked.update(time, command, np.array([now[0], 1e-6 * (tick % 2), np.nan])))
    first = next(tick for tick, each in enumerate(tripped) if each)
    assert 12 <= first < 14 and tripped[first].startswith("y is 0.05") and all(tripped[first:])
    assert np.abs(watch.drift).max() < 0.01 and blocked.drift[1] < -0.3
    rest = [blocked.update(time, np.zeros(3), np.array([now[0], 0.0, np.nan])) for _ in range(2)]
    assert rest[0] and not rest[1]  # a robot that stands still does as it is commanded


def follow(measure: Callable[[float], float], ticks: int = 150, **changes) -> tuple[TrackingWatch, list[str]]:
    """Command x 0.2 m/s, and let a function of the true place measure it; return the reasons of each tick."""
    settings = make_settings(TOOL, **{"tracking_error": (0.1, 0.1, np.inf)} | changes)
    watch, said = TrackingWatch(settings), []
    for tick in range(ticks):
        time = tick * settings.period_s
        measured = np.array([measure(0.2 * time), 0.0, np.nan])
        said.append(watch.update(time, np.array([0.2 if tick else 0.0, 0.0, 1.0]), measured))
    return watch, said


@pytest.mark.parametrize(("age", "moved", "tick"), [(0.1, 0.0, 11), (0.5, 0.0, 26), (0.5, 0.1, 51)])
def test_a_measured_speed_that_stays_the_same_to_the_bit_is_frozen_before_its_tracking_error_is_reached(
    age: float, moved: float, tick: int
) -> None:
    streams = (StreamRule("joints", 0.1, True, measures=True), StreamRule("tool", age, True, measures=True))
    watch, said = follow(lambda place: min(place, moved), streams=streams, tracking_error=(0.2, 0.2, np.inf))
    first = next(tick for tick, each in enumerate(said) if each)
    assert "x has been the same" in said[first] and "commanded to move by 0." in said[first]
    assert first == tick, "0.04 m, of a box of 2 m, are visible, and it is older than both topics may be"
    assert moved or watch.drift[0] == pytest.approx(0.2 * 149 * 0.02), "dead reckoning is exact"


def test_a_reason_from_before_the_clock_went_back_ends_after_the_settling_time() -> None:
    watchdogs, zeros = Watchdogs(make_settings(tracking_error=(0.1, 0.1)), None), np.zeros(2)
    watchdogs.update(100.0, np.ones(2), zeros)
    seen = []
    for now in (50.0, 50.4, 50.6):
        watchdogs.update(now, zeros, zeros)
        seen.append(watchdogs.reasons["tracking"] != "")
    assert seen == [True, True, False]


def test_a_clock_that_went_back_hides_no_frozen_state() -> None:
    watchdogs, place = Watchdogs(make_settings(TOOL, tracking_error=(0.1, 0.1, np.inf)), None), np.zeros(3)
    watchdogs.update(100.0, place, place)
    found = []
    for tick in range(20):
        watchdogs.update(50.0 + 0.02 * tick, np.array([0.21 if tick else 0.0, 0.0, 0.0]), place)
        found.append("has been the same" in watchdogs.reasons["tracking"])
    assert found.index(True) == 10, "as without it: 0.04 m, of a box of 2 m, are visible"


@pytest.mark.parametrize(
    ("scale", "trips"),
    [(1.0, False), (0.9, False), (1.1, False), (-1.0, True), (1e3, True), (1e-3, True), (57.3, True), (1 / 57.3, True)],
)
def test_a_speed_that_is_measured_in_another_unit_or_direction_trips(scale: float, trips: bool) -> None:
    _, said = follow(lambda place: scale * place)
    assert any("from its command" in each for each in said) == trips


def test_an_error_of_scale_settles_where_as_much_is_forgotten_as_comes() -> None:
    watch, _ = follow(lambda place: 0.9 * place, 3000)
    assert watch.drift[0] == pytest.approx(FORGETTING * 0.1 * (1 - 0.9) / 0.9), "d · 0.9 v / (F · limit) = 0.1 v"


def drive_back_and_forth(measure: Callable[[float, int], float], share: float, ticks: int) -> list[str]:
    """Command x 0.1 m/s, forward for a share of each second and back for the rest; return the reasons of each tick."""
    settings = make_settings(TOOL, tracking_error=(0.1, 0.1, np.inf))
    watch, said, place, command = TrackingWatch(settings), [], 0.0, 0.0
    for tick in range(ticks):
        place += command * settings.period_s
        measured = np.array([measure(place, tick), 0.0, np.nan])
        said.append(watch.update(tick * settings.period_s, np.array([command, 0.0, 1.0]), measured))
        command = 0.1 if tick * settings.period_s % 1.0 < share else -0.1
    return said


def test_noise_of_a_frozen_state_is_no_motion() -> None:
    noise = np.random.default_rng(3).normal(0, 2e-3, 2000)
    said = drive_back_and_forth(lambda place, tick: noise[tick], 0.55, 2000)
    assert next((tick for tick, each in enumerate(said) if each), 2000) < 600, "0.1 m after 10 s of 10 mm/s net"


@pytest.mark.parametrize("scale", [0.9, 1.1])
def test_a_state_that_comes_less_often_than_commands_may_be_off_by_a_tenth(scale: float) -> None:
    places: list[float] = []

    def measure(place: float, tick: int) -> float:
        places.append(scale * place)
        return places[tick - tick % 5]

    assert not any(drive_back_and_forth(measure, 1.0, 3000))
    assert places[-1] > 5.0


def test_motion_in_the_wrong_direction_does_not_fade() -> None:
    watch, said = follow(lambda place: -place)
    assert any(said) and watch.drift[0] == pytest.approx(2 * 0.2 * 149 * 0.02)


def test_an_entry_without_a_tracking_error_is_not_compared() -> None:
    watch, said = follow(lambda place: 0.3, tracking_error=(np.inf,) * 3)
    assert not any(said) and not watch.drift.any()


@pytest.mark.parametrize(
    ("step", "first"),
    [(0.01, (40, 41)), (0.0021, (69,))],
    ids=["0.2 s after the last new picture", "after 0.08, of a box of 4"],
)
def test_a_picture_that_stays_while_the_robot_moves_is_frozen(step: float, first: tuple[int, ...]) -> None:
    settings = make_settings(
        streams=(StreamRule("joints", 0.1, True, measures=True), StreamRule("front", 0.2, True, sees=True))
    )
    gate = FreshnessGate(settings.streams, None, 0.5)
    watch = PictureWatch(settings, gate.streams)
    place, said = np.zeros(2), []
    for tick in range(80):
        now = 0.02 * tick
        digest = b"moving" + bytes([tick if 20 <= tick < 30 else 0])
        gate.observe({"front": StreamReading(tick + 1, now, digest)}, now)
        place = place + np.array([step if tick >= 20 else 0.0, 0.0])
        said.append(watch.update(now, place.copy()))
    assert said[:30] == [""] * 30  # at rest it may repeat
    found = next(tick for tick, each in enumerate(said) if each)
    assert found in first and said[found].startswith(f"front: the same picture for {0.02 * (found - 30):.2f} s, though")


HALF = CommandLimits((replace(TOOL.entries[0], low=-np.inf), *TOOL.entries[1:]))
UNMEASURED = {"keeps": (False,) * 3, "tracking_error": (1.0,) * 3}


@pytest.mark.parametrize(
    ("changes", "code", "data"),
    [
        ({"command_hz": 55.0}, "rates-not-multiples", ("command_hz=55", "control_hz=10", 60)),
        ({"command_hz": 5.0}, "rates-not-multiples", ("command_hz=5",)),
        ({"control_hz": float("nan")}, "value-out-of-range", ("control_hz=nan",)),
        ({"blend_s": np.inf}, "value-out-of-range", ("blend_s=inf",)),
        ({"blend_s": 0.0}, "value-out-of-range", ("blend_s=0.0",)),
        ({"measured": (True,)}, "entries-mismatch", ("measured", 1, 2)),
        ({"tracking_error": (0.0, 1.0)}, "value-out-of-range", ("shoulder", "tracking_error=0.0")),
        ({"streams": (StreamRule("front", 0.1),), "measured": (True, False)}, "measuring-stream-missing", ("streams",)),
        ({"limits": TOOL, "measured": (True, False, False), **UNMEASURED}, "entry-not-measured", ("y", "-1…1")),
        ({"limits": HALF, "measured": (False,) * 3, **UNMEASURED}, "entry-not-measured", ("x", "-inf…1")),
        ({"streams": (StreamRule("a", 0.1, measures=True), StreamRule("a", 0.1))}, "stream-twice", ("a",)),
        ({"lost_s": 0.01}, "command-timeout-too-short", ("lost_s=0.01",)),
    ],
)
def test_invalid_settings_are_refused(changes: dict, code: str, data: tuple) -> None:
    made: CoreSettings = make_settings()
    with refuses(code, *data):
        replace(made, **changes)


def test_a_tick_may_take_a_tenth_of_a_second_and_at_least_three_periods() -> None:
    assert make_settings().longest_tick_s == 0.1
    assert make_settings(command_hz=10.0).longest_tick_s == pytest.approx(0.3)


def test_a_stream_needs_a_largest_age() -> None:
    with refuses("value-out-of-range", "front", "max_age_s=0"):
        StreamRule("front", 0)
