"""The loop in real time: a thread that wakes at absolute deadlines, decides, and publishes the command."""

import threading
import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.controller import Controller
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.bridge.pacing import DurationHistogram, Pacer, prefer_this_thread, read_seconds
from embodied_rl.deployment.execution.tick import State, Tick
from embodied_rl.interfaces.errors import RunFailed, TransportError

LEAVING_S = 10.0
"""Seconds in which any robot of sensible limits comes to rest."""


class ControlThread:
    """Runs the control loop.

    Args:
        controller: decides. inbox: what it observes.
        publish: takes a tick that has a command.
        period_s: between two ticks.
        priority: ask the system for real-time priority.

    Attributes:
        pacer: deadlines, lateness.
        work: seconds from waking to the published command.
        age: seconds from the arrival of the newest state to the command that follows from it.
        ticks: so far. priority: what came of it, in words.
        failure: a fault that ended the loop, or that the robot was not at rest in time; see `stop`.
    """

    def __init__(
        self,
        controller: Controller,
        inbox: Inbox,
        publish: Callable[[Tick], None],
        period_s: float,
        *,
        priority: bool,
    ) -> None:
        self._controller, self._inbox, self._publish = controller, inbox, publish
        self.pacer = Pacer(period_s)
        self.work, self.age = DurationHistogram(), DurationHistogram()
        self.ticks, self.priority = 0, "ordinary"
        self.failure: BaseException | None = None
        self._asked_for = priority
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controls the robot", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Bring the robot to rest, then end.

        Raises:
            RuntimeError: the loop hangs.
        """
        self._leave.set()
        self._thread.join(2 * LEAVING_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the control loop has not ended for {2 * LEAVING_S:g} s")

    def _run(self) -> None:
        try:
            if self._asked_for:
                self.priority = prefer_this_thread()
            until = None
            while True:
                self.pacer.wait()
                self._tick()
                if self._leave.is_set():
                    until = time.monotonic() + LEAVING_S if until is None else until
                    if self._controller.leave():
                        return
                    if time.monotonic() >= until:
                        raise RunFailed(f"the robot was not commanded to rest within {LEAVING_S:g} s; see to it")
        except BaseException as error:  # noqa: BLE001  raised by the bridge, which sees that the loop ended
            self.failure = error
            self._stop_after(error)

    def _stop_after(self, error: BaseException) -> None:
        """Command a ramp to rest by the core alone, whatever ended the loop; what fails, too, is noted beside it."""
        core, until = self._controller.core, time.monotonic() + LEAVING_S
        try:
            while core.state == State.ACTIVE and time.monotonic() < until:
                core.deactivate()
                self.pacer.wait()
                made = core.tick()
                if made.command is not None:
                    self._publish_again(made, error)
        except BaseException as other:  # noqa: BLE001  the first one is the cause
            error.add_note(f"Nor was the robot brought to rest: {type(other).__name__}: {other}")
        if core.state == State.ACTIVE:
            error.add_note("The robot was not commanded to rest. See to it.")

    def _publish_again(self, made: Tick, error: BaseException) -> None:
        """Publish on the way to rest; the next command may arrive where this one does not."""
        try:
            self._publish(made)
        except TransportError as other:
            if str(other) != str(error):
                error.add_note(str(other))

    def _tick(self) -> None:
        began = read_seconds()
        made = self._controller.tick()
        self.ticks += 1
        if made is None or made.command is None:
            return
        self._publish(made)
        now = read_seconds()
        self.work.add(now - began)
        newest = self._inbox.find_newest_state()
        if newest is not None:
            self.age.add(now - newest)
