"""Replay of a demonstration at its recorded times, and its end when the robot is elsewhere."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.demonstration import Demonstration, Replay, read_demonstration
from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.interfaces.sim import Array
from tests.support.demonstrations import describe_episode, make_body, write_episode
from tests.support.refusals import refuses

BODY = make_body(4, 3)
LIMITS = CommandLimits((
    EntryLimits("x", "displacement", -1, 1, 0.4, 2, 40),
    EntryLimits("elbow", "position", -2, 2, 1, 5, 50),
    EntryLimits("turn", "velocity", -1, 1, 1, 5, 50),
))  # fmt: skip
ANY = (math.inf,) * 3


def record(times: list[float], x: float = 0.0) -> Demonstration:
    """Steps in which x moves by 0.01 each, the elbow goes to 0.1, 0.2 …, and the turn is 0.1, 0.2 …"""
    steps = np.arange(1, len(times))
    actions = np.stack([np.full(len(steps), 0.01), 0.1 * steps, 0.1 * steps], axis=1)
    measured = np.stack([x + 0.01 * (steps - 1), 0.1 * (steps - 1), np.full(len(steps), math.nan)], axis=1)
    return Demonstration(np.array(times), actions, measured)


def replay(
    demonstration: Demonstration, period: float, error: float = math.inf, push: float = 0.0, hz: float | None = None
) -> tuple[Array, str]:
    """Return what was wanted [ticks, A], and why it was given up; `push` moves x aside in each tick."""
    motion = Replay(demonstration, LIMITS, (error, error, error), ANY, period, "drawer.npz")
    measured, now, wanted = demonstration.measured[0].copy(), 1e5, []
    assert motion.begin(measured, np.zeros(3), now) == ""
    for number in range(10_000):
        found = motion.step(measured, 1e5 + number * (period if hz is None else 1 / hz))
        if found.wanted is None:
            assert found.done != bool(found.failed)
            return np.array(wanted), found.failed
        wanted.append(found.wanted)
        measured = np.array([measured[0] + found.wanted[0] * period + push, found.wanted[1], math.nan])
    raise AssertionError("it did not end")


@pytest.mark.parametrize("ticks", [1, 8])
def test_each_step_lasts_as_long_as_it_did(ticks: int) -> None:
    demonstration = record([0.0, 0.08, 0.16, 0.24])
    wanted, failed = replay(demonstration, 0.08 / ticks, error=1e-9)
    assert failed == "" and len(wanted) == 3 * ticks
    assert wanted[:, 0] == pytest.approx(np.full(3 * ticks, 0.01 / 0.08))
    assert wanted[:, 1] == pytest.approx(np.arange(1, 3 * ticks + 1) * 0.1 / ticks)
    assert wanted[:, 2] == pytest.approx(np.repeat([0.1, 0.2, 0.3], ticks))
    assert (wanted[ticks - 1 :: ticks, 1] == demonstration.actions[:, 1]).all(), (
        "the last tick of a step commands the action"
    )


def test_a_recording_of_one_step_is_replayed() -> None:
    wanted, failed = replay(record([0.0, 0.08]), 0.04)
    assert failed == "" and wanted[:, 1] == pytest.approx([0.05, 0.1])


def test_the_recordings_own_time_base_holds() -> None:
    wanted, _ = replay(record([0.0, 0.1, 0.4, 0.5]), 0.1)
    assert wanted[:, 0] == pytest.approx([0.1, 0.01 / 0.3, 0.01 / 0.3, 0.01 / 0.3, 0.1])
    assert wanted[:, 2] == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.3])
    assert wanted[:, 1] == pytest.approx([0.1, 0.1 + 0.1 / 3, 0.1 + 0.2 / 3, 0.2, 0.3])


def test_a_robot_that_is_elsewhere_ends_the_replay() -> None:
    times = [0.05 * number for number in range(20)]
    assert replay(record(times), 0.05, error=0.03)[1] == ""
    wanted, failed = replay(record(times), 0.05, error=0.03, push=0.004)
    assert failed == "step 8: 'x' left the recording by 0.032, more than 0.03" and len(wanted) == 8


def test_it_does_not_begin_far_from_the_recorded_start() -> None:
    motion = Replay(record([0.0, 0.1]), LIMITS, ANY, (0.01, 0.01, 0.01), 0.1)
    assert motion.begin(np.array([0.005, 0.0, math.nan]), np.zeros(3), 0.0) == ""
    assert motion.begin(np.array([0.2, 0.0, math.nan]), np.zeros(3), 0.0).startswith("'x' is away from the recorded")


@pytest.mark.parametrize(
    ("period", "jump", "ends"),
    [(0.01, -0.1, True), (0.01, 0.3, True), (0.01, 0.2, False), (0.2, 0.3, False), (0.2, 0.5, True)],
)
def test_time_that_jumps_ends_the_replay(period: float, jump: float, ends: bool) -> None:
    demonstration = record([0.1 * number for number in range(40)])
    motion = Replay(demonstration, LIMITS, ANY, ANY, period)
    motion.begin(demonstration.measured[0], np.zeros(3), 5.0)
    assert motion.step(demonstration.measured[0], 5.0).wanted is not None
    assert motion.step(demonstration.measured[0], 5.0 + jump).failed.startswith("time jumped by") == ends


def test_a_demonstration_of_fewer_entries_is_refused() -> None:
    with refuses("demonstration-of-another-robot", 3, 2):
        Replay(record([0.0, 0.1]), CommandLimits(LIMITS.entries[:2]), ANY, ANY, 0.01)


@pytest.mark.parametrize(
    ("times", "actions", "measured"),
    [
        ([0.0, 0.1], np.zeros((2, 3)), np.zeros((2, 3))),
        ([0.0, 0.1, 0.1], np.zeros((2, 3)), np.zeros((2, 3))),
        ([0.1, 0.2, 0.3], np.zeros((2, 3)), np.zeros((2, 3))),
        ([0.0, 0.1, math.nan], np.zeros((2, 3)), np.zeros((2, 3))),
        ([0.0, 0.1, math.inf], np.zeros((2, 3)), np.zeros((2, 3))),
        ([0.0, 0.1, 0.2], np.array([[0, 0, 0], [0, math.nan, 0]]), np.zeros((2, 3))),
        ([0.0, 0.1, 0.2], np.zeros((2, 3)), np.zeros((1, 3))),
        ([0.0], np.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_an_invalid_demonstration_is_refused(times: list[float], actions: Array, measured: Array) -> None:
    with refuses("demonstration-invalid"):
        Demonstration(np.array(times), actions, measured)


def test_an_episode_of_collect_is_read_with_what_measures_each_entry(tmp_path: Path) -> None:
    state, actions = np.arange(12.0).reshape(3, 4), np.arange(9.0).reshape(3, 3)
    demonstration = read_demonstration(write_episode(tmp_path / "a.npz", BODY, actions, state), BODY, (2, 0, -1))
    assert demonstration.times == pytest.approx([0, 0.08, 0.16, 0.24]) and (demonstration.actions == actions).all()
    assert (demonstration.measured[:, :2] == state[:, [2, 0]]).all() and np.isnan(demonstration.measured[:, 2]).all()
    assert Replay(demonstration, LIMITS, ANY, ANY, 0.08, "a.npz").words == "replay a.npz, 0.2 s"


@pytest.mark.parametrize(
    ("arrays", "data"),
    [
        ({"state": np.zeros((3, 4))}, "actions"),
        ({"state": np.zeros((3, 4)), "actions": np.array([object()])}, "pickle"),
        ({"state": np.zeros((2, 4)), "actions": np.zeros((3, 3))}, "[2, 4]"),
        ({"state": np.zeros((3, 4)), "actions": np.zeros((3, 2))}, "[3, 2]"),
        ({"state": np.zeros((3, 2)), "actions": np.zeros((3, 3))}, "[3, 2]"),
        ({"state": np.zeros(3), "actions": np.zeros((3, 3))}, "[3]"),
    ],
)
def test_a_file_without_an_episode_is_refused(tmp_path: Path, arrays: dict[str, Array], data: str) -> None:
    np.savez(tmp_path / "a.npz", allow_pickle=True, **arrays, **describe_episode(BODY))  # type: ignore[arg-type]
    with refuses("demonstration-damaged", "a.npz", data):
        read_demonstration(tmp_path / "a.npz", BODY, (2, 0, -1))


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"action_names": ["a0", "a2", "a1"]}, ("action_names", "('a0', 'a2', 'a1') there, ('a0',")),
        ({"state_names": ["s0"]}, ("state_names", "('s0',) there")),
        ({"action_high": [0.03, 1.0, 1.0]}, ("action_high", "(0.03, 1.0, 1.0) there, (1.0, 1.0, 1.0)")),
        ({"action_low": [[-1.0]]}, ("action_low",)),
        ({"control_hz": 25.0}, ("control_hz", "25.0 there, 12.5 here")),
        ({"control_hz": math.nan}, ("control_hz", "nan there")),
        ({"action_names": ["x" * 5000]}, ("action_names", "('xxx")),
    ],
)
def test_a_demonstration_of_another_robot_is_refused(
    tmp_path: Path, changes: dict[str, Any], data: tuple[str, ...]
) -> None:
    file = write_episode(tmp_path / "a.npz", BODY, np.zeros((3, 3)), np.zeros((3, 4)), **changes)
    with refuses("demonstration-of-another-robot", "a.npz", *data) as caught:
        read_demonstration(file, BODY, (2, 0, -1))
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"control_hz": [12.5, 12.5]}, "demonstration-damaged"),
        ({"control_hz": "12.5"}, "demonstration-damaged"),
        ({"action_names": [0.0, 1.0, 2.0]}, "demonstration-damaged"),
        ({"state_units": "mm"}, "demonstration-damaged"),
        ({"state_names": None}, "demonstration-damaged"),
        ({"action_names": None}, "demonstration-without-robot"),
    ],
)
def test_a_demonstration_with_an_invalid_robot_is_refused(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    file = write_episode(tmp_path / "a.npz", BODY, np.zeros((3, 3)), np.zeros((3, 4)), **changes)
    with refuses(code, "a.npz"):
        read_demonstration(file, BODY, (2, 0, -1))


def test_a_measurement_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    state = np.zeros((3, 4))
    state[1, 0] = math.nan
    file = write_episode(tmp_path / "a.npz", BODY, np.zeros((3, 3)), state)
    read_demonstration(file, BODY, (2, 1, -1))
    with refuses("demonstration-invalid"):
        read_demonstration(file, BODY, (2, 0, -1))


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    planted = np.array([Planted(tmp_path / "executed")], object)
    np.savez(tmp_path / "a.npz", allow_pickle=True, actions=planted, state=np.zeros((1, 4)))
    with refuses("demonstration-damaged", "a.npz"):
        read_demonstration(tmp_path / "a.npz", BODY, (2, 0, -1))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_a_damaged_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(raw)
    with refuses("demonstration-damaged", "a.npz"):
        read_demonstration(tmp_path / "a.npz", BODY, (2, 0, -1))
