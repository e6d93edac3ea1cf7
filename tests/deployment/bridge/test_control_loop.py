"""Control loops: deadlines, durations, and a ramp to rest at each end, with the first cause reported."""

import gc
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge import control_loop
from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.bridge.control_loop import ControlThread
from embodied_rl.deployment.bridge.inference import AsyncInference
from embodied_rl.deployment.bridge.pacing import DurationHistogram, Pacer, low_latency_interpreter
from embodied_rl.deployment.execution.tick import Mode, State, Tick
from embodied_rl.interfaces.errors import TransportError
from tests.support.control_loop import TOOL, ControlLoop


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


@pytest.mark.thorough
def test_the_interpreter_settings_are_restored() -> None:
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    with low_latency_interpreter():
        assert sys.getswitchinterval() == pytest.approx(1e-4)
        assert gc.get_freeze_count() > frozen
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0


RUNNING = 30


class Controlling:
    """A controller of a moving robot that fails in a tick, or does not come to rest."""

    def __init__(self, fails: bool = False, rests: bool = True) -> None:
        self.loop, self.fails, self.rests = ControlLoop(TOOL), fails, rests
        self.core = self.loop.core
        self.loop.tick(RUNNING, wanted=Mode.RUN)
        self.ticks = 0

    def tick(self) -> Tick:
        self.ticks += 1
        if self.fails and self.ticks > 3:
            raise ValueError("the first cause")
        return self.loop.tick()

    def stop(self) -> bool:
        if self.rests and self.core.state == State.ACTIVE:
            self.core.deactivate()
        return self.core.state != State.ACTIVE


class FakePublisher:
    """Records commands; raises for some."""

    def __init__(self, loses: range = range(0)) -> None:
        self.commands: list[np.ndarray] = []
        self.loses = loses

    def publish(self, made: Tick) -> None:
        assert made.command is not None
        self.commands.append(made.command)
        if len(self.commands) in self.loses:
            raise TransportError("/command: a message was not published")


def start(controller: Any, line: FakePublisher) -> ControlThread:
    latest: Any = SimpleNamespace(find_newest_state=lambda: None)
    thread = ControlThread(controller, latest, line.publish, 0.002, priority=False)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("fails", "loses", "cause"),
    [(True, range(0), ValueError), (True, range(4, 10**6), ValueError), (False, range(4, 6), TransportError)],
    ids=["tick", "tick and line", "line"],
)
def test_a_failing_loop_ramps_to_rest_and_reports_the_first_cause(
    fails: bool, loses: range, cause: type[Exception]
) -> None:
    controller, line = Controlling(fails), FakePublisher(loses)
    assert (controller.loop.last.command[:2] != 0).any()
    thread, until = start(controller, line), time.monotonic() + 60
    while thread.runs and time.monotonic() < until:
        time.sleep(0.01)
    assert type(thread.failure) is cause
    assert controller.core.state == State.INACTIVE
    speeds = np.array(line.commands)[:, :2]
    assert (speeds[-1] == 0).all()
    assert (np.abs(np.diff(speeds, axis=0)) <= 10.0 / 50 * (1 + 1e-6)).all(), "a ramp, no jump"


def test_a_robot_that_does_not_come_to_rest_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_loop, "STOPPING_S", 0.05)
    controller = Controlling(rests=False)
    thread = start(controller, FakePublisher())
    thread.stop()
    assert "not commanded to rest" in str(thread.failure)


def test_an_unexpected_exception_of_inference_ends_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(request: Any) -> Any:
        raise ValueError("a fault of the program")

    client: Any = SimpleNamespace(infer=infer)
    controller: Any = Controlling()
    controller.inputs = SimpleNamespace(inference=AsyncInference(client))
    bridge, until = Bridge.__new__(Bridge), time.monotonic() + 60
    bridge.node = SimpleNamespace(start=lambda: None, failure=None)  # type: ignore[assignment]
    bridge.robot = SimpleNamespace(command_hz=500.0)  # type: ignore[assignment]
    bridge.config = SimpleNamespace(priority=False, seconds=None)  # type: ignore[assignment]
    bridge._lockstep = None
    bridge.latest = SimpleNamespace(find_newest_state=lambda: None)  # type: ignore[assignment]
    bridge.controller, bridge.publisher = controller, None
    monkeypatch.setattr(bridge, "report", lambda at_once=False: None, raising=False)
    controller.inputs.inference.submit(SimpleNamespace())
    with pytest.raises(ValueError, match="a fault of the program"):
        bridge.run(lambda: time.monotonic() >= until)
    assert time.monotonic() < until
    assert controller.core.state == State.INACTIVE
