"""Deadlines of the control loop under a clock that the test sets, and the histogram of durations."""

import gc
import sys

import numpy as np
import pytest

from embodied_rl.deployment.bridge.pacing import DurationHistogram, Pacer, low_latency_interpreter


class FakeTime:
    """A clock that sleeping sets, late by `late` seconds."""

    def __init__(self) -> None:
        self.now, self.late = 100.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


def test_deadlines_do_not_drift() -> None:
    time = FakeTime()
    pacer, due = Pacer(0.01, lambda: time.now, time.sleep), []
    for _ in range(100):
        due.append(pacer.wait())
        time.now += 0.004  # the tick's own work
        time.late = 0.001
    np.testing.assert_allclose(due, 100 + 0.01 * np.arange(100), atol=1e-9)
    assert pacer.missed == 0
    assert pacer.lateness.measure(0.99) == pytest.approx(0.001, rel=0.06)


def test_a_long_tick_misses_deadlines_and_does_not_shift_the_others() -> None:
    time = FakeTime()
    pacer = Pacer(0.01, lambda: time.now, time.sleep)
    pacer.wait()
    time.now += 0.035
    late = pacer.wait()
    following = pacer.wait()
    assert pacer.missed == 2
    assert late == pytest.approx(100.03)
    assert following == pytest.approx(100.04)


def test_quantiles_are_those_of_the_durations_within_five_percent() -> None:
    drawn = np.random.default_rng(0).lognormal(-7, 1, 5000)
    counted = DurationHistogram()
    for each in drawn:
        counted.add(float(each))
    for share in (0.5, 0.9, 0.99):
        assert counted.measure(share) == pytest.approx(np.quantile(drawn, share), rel=0.06)
    said = counted.summarise()
    assert said["count"] == 5000
    assert said["max_ms"] == pytest.approx(1e3 * drawn.max())


def test_an_empty_histogram_and_extreme_durations() -> None:
    counted = DurationHistogram()
    assert counted.summarise() == {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}
    for seconds in (-1.0, 0.0, 1e9):
        counted.add(seconds)
    assert counted.count == 3
    assert counted.longest == 1e9


def test_the_interpreter_settings_are_restored() -> None:
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    with low_latency_interpreter():
        assert sys.getswitchinterval() == pytest.approx(1e-4)
        assert gc.get_freeze_count() > frozen
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0
