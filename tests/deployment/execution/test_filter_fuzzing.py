"""Fuzzing of the safety filter finds no violation, and finds planted ones."""

import math

import numpy as np
import pytest

from embodied_rl.deployment.execution.limiter import Limiter
from embodied_rl.deployment.execution.limits import CommandLimits, EntryKind, EntryLimits
from tests.support.filter_fuzzing import VIOLATIONS, FuzzedRobot, count_violations, fuzz_filter

pytestmark = pytest.mark.thorough
PERIOD = 0.01


def make_robot(kind: EntryKind, commands: list[float], speed: float = 1.0, jerk: float = 1e9) -> FuzzedRobot:
    limits = CommandLimits((EntryLimits("q", kind, -0.2, 0.2, speed, 1e3 if jerk > 1e6 else 1e9, jerk),))
    robot = FuzzedRobot(limits, PERIOD, True, np.zeros(1), np.zeros(1))
    for each in commands:
        robot.obey(np.array([each]))
    return robot


@pytest.mark.parametrize(
    ("robot", "found"),
    [
        (make_robot("position", [0.0, 0.001, 0.0, 0.0]), {}),
        (make_robot("position", [0.02], speed=1.0), {"speed": 1}),
        (make_robot("position", [0.15, 0.15], speed=20.0), {"acceleration": 2}),
        (make_robot("position", [0.001, 0.001], jerk=5e3), {}),
        (make_robot("position", [0.003, 0.003], jerk=5e3), {"jerk": 1}),
        (make_robot("position", [0.003, 0.003, 0.006, 0.009, 0.012], jerk=2.9e3), {"jerk": 4}),
        (make_robot("velocity", [1.1], speed=1.0), {"speed": 1}),
        (make_robot("velocity", [1.0] * 21, speed=1.0), {"box": 1}),
        (make_robot("velocity", [1.0, -1.0], jerk=2.5e4), {"jerk": 1}),
        (make_robot("position", [0.25], speed=100.0), {"box": 1, "acceleration": 1}),
        (make_robot("velocity", [math.nan]), {"not finite": 1}),
    ],
)
def test_planted_violations_are_counted(robot: FuzzedRobot, found: dict[str, int]):
    assert {name: count for name, count in count_violations(robot).items() if count} == found


def test_fuzzing_violates_no_limit_and_many_targets_pass():
    counts = fuzz_filter(20_000, seed=7)
    assert {name: counts[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0)
    assert counts["ticks"] == 20_000
    assert counts["unchanged"] > 1000


@pytest.mark.parametrize("broken", ["_limit_for_stop", "_bound"])
def test_fuzzing_finds_a_filter_without_one_of_its_stages(broken: str, monkeypatch: pytest.MonkeyPatch):
    loose = {"_limit_for_stop": lambda self, acceleration, low, high: acceleration, "_bound": lambda self: (-1e3, 1e3)}
    monkeypatch.setattr(Limiter, broken, loose[broken])
    counts = fuzz_filter(3000, seed=7)
    assert sum(counts[name] for name in VIOLATIONS) > 0
