"""Return points: which one is chosen, that their file is checked, and how a robot goes there."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.deployment.execution.return_points import (
    MOST_POINTS,
    ReturnMotion,
    ReturnPoint,
    ReturnPoints,
    ReturnSettings,
    choose_distances,
    load_return_points,
    make_return_point,
    save_return_points,
)
from embodied_rl.interfaces.sim import Array
from tests.support.refusals import refuses

LIMITS = CommandLimits((
    EntryLimits("x", "displacement", -1, 1, 0.4, 2, 40),
    EntryLimits("elbow", "position", -2, 2, 1, 5, 50),
    EntryLimits("grip", "position", -1, 1, math.inf, math.inf, math.inf),
))  # fmt: skip
POINTS = ReturnPoints(
    "arm",
    ("x", "elbow", "grip"),
    (
        ReturnPoint("never tried", "lift", (0.5, 0.1, None), "pictures/a.png"),
        ReturnPoint("often fails", "lift", (0.5, 0.1, 1.0), tries=8, failures=8),
        ReturnPoint("often succeeds", "push", (-0.5, None, 1.0), tries=8, failures=0),
    ),
)
GOING = ReturnSettings(tolerance=(0.005, 0.01, math.inf), tracking_error=(0.1, 0.2, math.inf))
PERIOD = 0.01


def test_points_are_drawn_by_the_rule_of_succession() -> None:
    rates = np.array([1 / 2, 9 / 10, 1 / 10])
    assert POINTS.compute_weights() == pytest.approx(rates / rates.sum())
    assert POINTS.compute_weights(0) == pytest.approx(np.full(3, 1 / 3))
    assert POINTS.compute_weights(2) == pytest.approx(rates**2 / (rates**2).sum())
    drawn = [POINTS.choose(7, number).name for number in range(2000)]
    assert drawn == [POINTS.choose(7, number).name for number in range(2000)]
    assert drawn != [POINTS.choose(8, number).name for number in range(2000)]
    for point, weight in zip(POINTS.points, POINTS.compute_weights(), strict=True):
        deviation = math.sqrt(weight * (1 - weight) / 2000)
        assert drawn.count(point.name) / 2000 == pytest.approx(weight, abs=5 * deviation)


def test_counts_are_kept_by_name() -> None:
    told = POINTS.count("never tried", failed=True).count("never tried", failed=False)
    assert (told.find("never tried").tries, told.find("never tried").failures) == (2, 1)
    assert told.points[1:] == POINTS.points[1:]
    with refuses("return-point-unknown", "elsewhere"):
        POINTS.count("elsewhere", failed=True)
    with refuses("return-point-twice", POINTS.points[0].name):
        POINTS.add(POINTS.points[0])
    with refuses("return-point-missing", "arm"):
        ReturnPoints("arm", ("x",)).choose(0, 0)


def test_a_task_has_its_own_points_and_those_of_none() -> None:
    everywhere = POINTS.add(ReturnPoint("anywhere", "", (0.0, None, None)))
    assert [point.name for point in everywhere.select("push").points] == ["often succeeds", "anywhere"]
    assert [point.name for point in everywhere.select("sweep").points] == ["anywhere"]
    with refuses("return-point-missing", "sweep", "lift, push"):
        POINTS.select("sweep")
    with refuses("return-point-missing", "sweep"):
        ReturnPoints("arm", ("x",)).select("sweep")


@pytest.mark.thorough
def test_there_are_never_more_points_than_are_read(tmp_path: Path) -> None:
    many = replace(POINTS, points=tuple(ReturnPoint(str(n), "", (0.0, 0.0, 0.0)) for n in range(MOST_POINTS)))
    with refuses("return-points-too-many", MOST_POINTS):
        many.add(ReturnPoint("one more", "", (0.0, 0.0, 0.0)))
    long = replace(many, points=tuple(replace(point, task="ä" * 500) for point in many.points))
    with refuses("return-points-too-many", "16 MiB"):
        save_return_points(long, tmp_path / "points.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "large.json").write_bytes(b" " * (16 * 2**20 + 1))
    with refuses("return-points-damaged", "16 MiB"):
        load_return_points(tmp_path / "large.json", "arm", LIMITS)


def test_a_point_that_is_made_can_be_read_back() -> None:
    assert make_return_point("a", "lift", [0.5, None, 1], LIMITS) == ReturnPoint("a", "lift", (0.5, None, 1.0))
    assert make_return_point("a", "", [-1, 2, None], LIMITS).pose == (-1.0, 2.0, None), "the edges belong to the box"
    for name, task, pose in (("", "lift", [0, 0, 0]), ("a", "l\nift", [0, 0, 0]), ("a", "lift", [2, 0, 0])):
        with refuses("return-point-invalid"):
            make_return_point(name, task, pose, LIMITS)


def test_points_come_back_from_their_file(tmp_path: Path) -> None:
    save_return_points(POINTS, tmp_path / "points.json")
    assert load_return_points(tmp_path / "points.json", "arm", LIMITS) == POINTS
    assert [each.name for each in tmp_path.iterdir()] == ["points.json"]


def _set(said: dict[str, Any], path: list[str | int], value: Any) -> dict[str, Any]:
    place: Any = said
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return said


@pytest.mark.parametrize(
    ("path", "value", "code", "data"),
    [
        (["robot"], "leg", "return-points-of-another-robot", "robot is 'leg', and 'arm'"),
        (["entries"], ["x", "grip", "elbow"], "return-points-of-another-robot", "entries"),
        (["version"], 2, "return-points-damaged", "version is 2"),
        (["plugin"], "os:system", "key-unused", "'plugin'"),
        (["points"], {}, "return-points-damaged", "points"),
        (["points", 0], 3, "return-points-damaged", "point 0"),
        (["points", 0, "run"], "x", "key-unused", "point 0: unknown key 'run'"),
        (["points", 2, "name"], "often fails", "return-point-twice", "'often fails'"),
        (["points", 1, "name"], "a\x1b[31m", "return-point-invalid", "name"),
        (["points", 1, "name"], "", "return-point-invalid", "name"),
        (["points", 1, "task"], "x" * 501, "return-point-invalid", "task"),
        (["points", 0, "picture"], "/etc/passwd", "return-point-invalid", "picture="),
        (["points", 0, "picture"], "a/../../b.png", "return-point-invalid", "picture="),
        (["points", 0, "picture"], "C:\\b.png", "return-point-invalid", "picture="),
        (["points", 0, "tries"], -1, "return-point-invalid", "tries="),
        (["points", 0, "tries"], True, "return-point-invalid", "tries="),
        (["points", 0, "tries"], 2**53, "return-point-invalid", "tries="),
        (["points", 0, "failures"], 1, "return-point-invalid", "tries="),
        (["points", 0, "pose"], [0, 0], "return-point-invalid", "pose"),
        (["points", 0, "pose"], [0, 0, "1"], "return-point-invalid", "pose of 'grip' is '1'"),
        (["points", 0, "pose"], [0, 2.5, 0], "return-point-invalid", "pose of 'elbow' is 2.5, outside of its -2…2"),
        (["points", 0, "pose"], [10**400, 0, 0], "return-point-invalid", "pose of 'x'"),
        (["points", 0, "pose"], [math.inf, 0, 0], "return-points-damaged", "points.json"),
        (["points", 0, "pose"], [math.nan, 0, 0], "return-points-damaged", "points.json"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, path: list[str | int], value: Any, code: str, data: str) -> None:
    file = tmp_path / "points.json"
    save_return_points(POINTS, file)
    file.write_text(json.dumps(_set(json.loads(file.read_text()), path, value)))
    with refuses(code, file, data):
        load_return_points(file, "arm", LIMITS)


@pytest.mark.parametrize(
    ("text", "code"),
    [(text, "return-points-damaged") for text in ("", "[", "[" * 100_000, "3", "\x00")]
    + [(text, "key-missing") for text in ('{"format": 1}', '{"version": 1}')],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "points.json"
    file.write_text(text)
    with refuses(code, "points.json"):
        load_return_points(file, "arm", LIMITS)
    with refuses("return-points-damaged", "none.json"):
        load_return_points(tmp_path / "none.json", "arm", LIMITS)


class Arm:
    """An arm that does what it is commanded, with a speed for x times `slip`, and a `drift`; `stuck` moves nothing."""

    def __init__(
        self, start: tuple[float, float, float], stuck: bool = False, slip: float = 1.0, drift: float = 0.0
    ) -> None:
        self.place, self.stuck, self.now = np.array(start), stuck, 100.0
        self.slip, self.drift = slip, drift

    def go(self, motion: ReturnMotion, most: int = 5000) -> tuple[Array, str]:
        """Return what was wanted [ticks, A], and why it was given up."""
        assert motion.begin(self.measured, self.place.copy(), self.now) == ""
        wanted = []
        for _ in range(most):
            told = motion.step(self.measured, self.now)
            if told.wanted is None:
                assert told.done != bool(told.failed) and told.done == motion.arrived
                return np.array(wanted), told.failed
            assert not motion.arrived
            wanted.append(told.wanted)
            self.now += PERIOD
            if not self.stuck:
                self.place = np.array(
                    [self.place[0] + (self.slip * told.wanted[0] + self.drift) * PERIOD, *told.wanted[1:]]
                )
        raise AssertionError("it neither arrived nor gave up")

    @property
    def measured(self) -> Array:
        return np.array([self.place[0], self.place[1], math.nan])


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.floats(-0.9, 0.9), st.floats(-1.9, 1.9), st.floats(-0.9, 0.9), st.floats(-1.9, 1.9))
def test_a_robot_arrives_within_its_share_of_the_limits(x: float, elbow: float, to_x: float, to_elbow: float) -> None:
    arm = Arm((x, elbow, -1.0))
    wanted, failed = arm.go(ReturnMotion(ReturnPoint("there", "", (to_x, to_elbow, 0.5)), LIMITS, GOING))
    assert failed == "" and np.abs(arm.place - [to_x, to_elbow, 0.5]).max() < 0.011
    elbows = np.diff(np.array([elbow, *wanted[:, 1]])) / PERIOD
    assert np.abs(wanted[:, 0]).max(initial=0) <= 0.5 * 0.4 * 1.05
    assert np.abs(elbows).max(initial=0) <= 0.5 * 1 * 1.01
    assert np.abs(np.diff(elbows)).max(initial=0) / PERIOD <= 0.5 * 5 * 1.05


@pytest.mark.parametrize(
    ("limit", "most", "lasts"),
    [
        ("speed", 1.0, 15 / 8 / 0.5),
        ("acceleration", 5.0, math.sqrt(10 / math.sqrt(3) / 2.5)),
        ("jerk", 50.0, (60 / 25) ** (1 / 3)),
    ],
)
def test_a_way_of_1_lasts_as_long_as_a_line_of_minimum_jerk_needs(limit: str, most: float, lasts: float) -> None:
    free = dict.fromkeys(("speed", "acceleration", "jerk"), math.inf)
    elbow = replace(LIMITS.entries[1], **(free | {limit: most}))
    arm = Arm((0.0, 0.0, 0.0))
    limits = CommandLimits((LIMITS.entries[0], elbow, LIMITS.entries[2]))
    assert arm.go(ReturnMotion(ReturnPoint("there", "", (None, 1.0, None)), limits, GOING))[1] == ""
    assert arm.now - 100 == pytest.approx(lasts, abs=2 * PERIOD)


def test_an_entry_without_a_place_is_not_moved() -> None:
    arm = Arm((0.0, 0.7, -1.0))
    wanted, failed = arm.go(ReturnMotion(ReturnPoint("there", "", (0.2, None, None)), LIMITS, GOING))
    assert failed == "" and (wanted[:, 1] == 0.7).all() and (wanted[:, 2] == -1).all()


def test_a_robot_that_is_there_is_commanded_its_place_once() -> None:
    wanted, failed = Arm((0.2, 0.7, -1.0)).go(ReturnMotion(ReturnPoint("", "", (0.2, 0.7, None)), LIMITS, GOING))
    assert failed == "" and wanted.tolist() == [[0.0, 0.7, -1.0]]


def test_a_speed_whose_measurement_is_lost_is_that_of_the_line() -> None:
    motion = ReturnMotion(ReturnPoint("there", "", (0.5, None, None)), LIMITS, GOING)
    assert motion.begin(np.array([0.0, 0.0, math.nan]), np.zeros(3), 0.0) == ""
    wanted = motion.step(np.full(3, math.nan), 1.875 * 0.5 / (0.5 * 0.4) / 2).wanted
    assert wanted is not None and wanted[0] == pytest.approx(0.5 * 0.4), "the largest, half-way"


def test_a_robot_that_does_not_follow_is_given_up_in_words() -> None:
    motion = ReturnMotion(ReturnPoint("there", "", (0.5, None, None), tries=3, failures=2), LIMITS, GOING)
    assert motion.words == "go to the return point 'there' (2 of 3 tries failed there)"
    assert not motion.arrived and Arm((0.0, 0.0, 0.0)).go(motion)[1] == ""
    arm = Arm((0.0, 0.0, 0.0), stuck=True)
    assert arm.go(motion)[1].startswith("'x' left the line by 0.1")
    patient, begun = replace(GOING, tracking_error=(math.inf,) * 3), arm.now
    _, failed = arm.go(ReturnMotion(motion.point, LIMITS, patient))
    assert failed == "'x' did not arrive, and is away by 0.5"
    assert arm.now - begun == pytest.approx(1.875 * 0.5 / (0.5 * 0.4) + GOING.settle_s, abs=2 * PERIOD)


def test_a_distance_is_the_robots_own_or_a_share_of_its_box() -> None:
    entries = tuple(replace(LIMITS.entries[0], low=2.0, high=high) for high in (4.0, 4.0, math.inf))
    assert choose_distances(CommandLimits(entries), [0.1, math.inf, math.inf], 0.25) == (0.1, 0.5, math.inf)


def test_a_speed_needs_a_measured_position() -> None:
    motion = ReturnMotion(ReturnPoint("there", "", (0.5, None, None)), LIMITS, GOING)
    assert "not measured" in motion.begin(np.full(3, math.nan), np.zeros(3), 0.0)


def test_what_the_arm_loses_on_its_way_is_brought_back() -> None:
    arm = Arm((0.0, 0.0, 0.0), slip=0.9)
    assert arm.go(ReturnMotion(ReturnPoint("there", "", (0.8, None, None)), LIMITS, GOING))[1] == ""
    assert arm.place[0] == pytest.approx(0.8, abs=GOING.tolerance[0])


def test_an_entry_without_a_place_is_not_held_where_it_was() -> None:
    arm = Arm((0.0, 0.0, 0.0), drift=0.01)
    wanted, failed = arm.go(ReturnMotion(ReturnPoint("there", "", (None, 1.0, None)), LIMITS, GOING))
    assert failed == "" and (wanted[:, 0] == 0).all() and arm.place[0] > 0.01
