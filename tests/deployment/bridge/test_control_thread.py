"""What ends the control thread: whatever it is, the robot is commanded a ramp to rest, and the first cause is told."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge import realtime
from embodied_rl.deployment.bridge.asking import AskerThread
from embodied_rl.deployment.bridge.realtime import ControlThread
from embodied_rl.deployment.bridge.running import Bridge
from embodied_rl.deployment.execution.tick import Mode, State, Tick
from embodied_rl.interfaces.errors import TransportError
from tests.support.control_loop import TOOL, ControlLoop

RUNNING = 30


class Controlling:
    """A controller whose robot moves, until it fails in a tick, or refuses to rest."""

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

    def leave(self) -> bool:
        if self.rests and self.core.state == State.ACTIVE:
            self.core.deactivate()
        return self.core.state != State.ACTIVE


class Line:
    """Takes commands; raises for some."""

    def __init__(self, loses: range = range(0)) -> None:
        self.commands: list[np.ndarray] = []
        self.loses = loses

    def publish(self, made: Tick) -> None:
        assert made.command is not None
        self.commands.append(made.command)
        if len(self.commands) in self.loses:
            raise TransportError("/command: a message was not published")


def start(controller: Any, line: Line) -> ControlThread:
    inbox: Any = SimpleNamespace(find_newest_state=lambda: None)
    thread = ControlThread(controller, inbox, line.publish, 0.002, priority=False)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("fails", "loses", "cause"),
    [(True, range(0), ValueError), (True, range(4, 10**6), ValueError), (False, range(4, 6), TransportError)],
    ids=["tick", "tick and line", "line"],
)
def test_a_loop_that_fails_ramps_to_rest_and_tells_the_first_cause(
    fails: bool, loses: range, cause: type[Exception]
) -> None:
    controller, line = Controlling(fails), Line(loses)
    assert (controller.loop.last.command[:2] != 0).any()
    thread, until = start(controller, line), time.monotonic() + 60
    while thread.runs and time.monotonic() < until:
        time.sleep(0.01)
    assert type(thread.failure) is cause
    assert controller.core.state == State.INACTIVE
    speeds = np.array(line.commands)[:, :2]
    assert (speeds[-1] == 0).all()
    assert (np.abs(np.diff(speeds, axis=0)) <= 10.0 / 50 * (1 + 1e-6)).all(), "a ramp, no jump"


def test_a_robot_that_does_not_come_to_rest_is_no_silent_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "LEAVING_S", 0.05)
    controller = Controlling(rests=False)
    thread = start(controller, Line())
    thread.stop()
    assert "not commanded to rest" in str(thread.failure)


def test_a_fault_of_who_asks_the_policy_ends_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(question: Any) -> Any:
        raise ValueError("a fault of the program")

    asker: Any = SimpleNamespace(ask=ask)
    controller: Any = Controlling()
    controller.around = SimpleNamespace(asking=AskerThread(asker))
    bridge, until = Bridge.__new__(Bridge), time.monotonic() + 60
    bridge.node = SimpleNamespace(start=lambda: None, failure=None)  # type: ignore[assignment]
    bridge.robot = SimpleNamespace(command_hz=500.0)  # type: ignore[assignment]
    bridge.config = SimpleNamespace(priority=False)  # type: ignore[assignment]
    bridge.inbox = SimpleNamespace(find_newest_state=lambda: None)  # type: ignore[assignment]
    bridge.controller, bridge.publisher = controller, None
    monkeypatch.setattr(bridge, "report", lambda at_once=False: None, raising=False)
    controller.around.asking.ask(SimpleNamespace())
    with pytest.raises(ValueError, match="a fault of the program"):
        bridge._run_in_real_time(lambda: time.monotonic() >= until)
    assert time.monotonic() < until, "it ended by itself"
    assert controller.core.state == State.INACTIVE
