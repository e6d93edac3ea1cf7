"""Control loops: a thread in real time, and a loop in lockstep with a simulated robot that waits for each command."""

import threading
import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.controller import Controller
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.pacing import DurationHistogram, Pacer, read_seconds, request_realtime_priority
from embodied_rl.deployment.execution.tick import State, Tick
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import RunFailed, TransportError

STOPPING_S = 10.0
"""Time limit for bringing the robot to rest; robots with sensible limits need less."""
POLL_S = 0.02


class ControlThread:
    """Control loop in real time, in its own thread.

    Attributes:
        work: durations from the wake-up to the published command.
        age: durations from the arrival of the newest state to the command computed from it.
        priority: the scheduling class, or why real-time priority was refused.
        failure: the exception that ended the loop, or `RunFailed` if the robot was not at rest in time.
    """

    def __init__(
        self,
        controller: Controller,
        latest: LatestMessages,
        publish: Callable[[Tick], None],
        period_s: float,
        *,
        priority: bool,
    ) -> None:
        self._controller, self._latest, self._publish = controller, latest, publish
        self.pacer = Pacer(period_s)
        self.work, self.age = DurationHistogram(), DurationHistogram()
        self.ticks, self.priority = 0, "ordinary"
        self.failure: BaseException | None = None
        self._wants_priority = priority
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Bring the robot to rest and end the thread; raises RuntimeError if it does not end."""
        self._stop_requested.set()
        self._thread.join(2 * STOPPING_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the control loop has not ended for {2 * STOPPING_S:g} s")

    def _run(self) -> None:
        try:
            if self._wants_priority:
                self.priority = request_realtime_priority()
            until = None
            while True:
                self.pacer.wait()
                began = read_seconds()
                made = self._controller.tick()
                self.ticks += 1
                if made is not None and made.command is not None:
                    self._publish(made)
                    now = read_seconds()
                    self.work.add(now - began)
                    if (newest := self._latest.find_newest_state()) is not None:
                        self.age.add(now - newest)
                if self._stop_requested.is_set():
                    until = time.monotonic() + STOPPING_S if until is None else until
                    if self._controller.stop():
                        return
                    if time.monotonic() >= until:
                        raise RunFailed(f"the robot was not commanded to rest within {STOPPING_S:g} s; check the robot")
        except BaseException as error:  # noqa: BLE001  the bridge raises it
            self.failure = error
            self._stop_after(error)

    def _stop_after(self, error: BaseException) -> None:
        """Command a ramp to rest by the core alone; further errors become notes of the first one."""
        core, until = self._controller.core, time.monotonic() + STOPPING_S
        try:
            while core.state == State.ACTIVE and time.monotonic() < until:
                core.deactivate()
                self.pacer.wait()
                made = core.tick()
                if made.command is None:
                    continue
                try:
                    self._publish(made)
                except TransportError as other:  # the next command may arrive
                    if str(other) != str(error):
                        error.add_note(str(other))
        except BaseException as other:  # noqa: BLE001  the first one is the cause
            error.add_note(f"Bringing the robot to rest failed, too: {type(other).__name__}: {other}")
        if core.state == State.ACTIVE:
            error.add_note("The robot was not commanded to rest. Check the robot.")


class LockstepClock:
    """The core's clock in lockstep, which counts control steps, and the time of the robot's stamps."""

    def __init__(self, control_hz: float) -> None:
        self._period_s, self._steps, self.stamp = 1 / control_hz, 0, 0

    def read(self) -> float:
        return self._steps * self._period_s

    def read_source(self) -> int:
        return self.stamp

    def advance(self) -> None:
        self._steps += 1


class LockstepLoop:
    """Control loop in lockstep: answers each complete observation with one command.

    Args:
        timeout_s: for the robot's answer to a command, within an episode.
    """

    def __init__(
        self,
        controller: Controller,
        latest: LatestMessages,
        clock: LockstepClock,
        publish: Callable[[Tick], None],
        timeout_s: float,
    ) -> None:
        self._controller, self._latest, self._clock = controller, latest, clock
        self._publish, self._timeout_s = publish, timeout_s
        self._stamp: int | None = None
        self._since = time.monotonic()
        self.ticks = 0

    def step(self, node: Transport) -> None:
        """Wait up to `POLL_S` for the next observation and answer it; raises RunFailed: the robot does not answer."""
        node.spin_once()
        node.spin_until(lambda: self._controller.has_new_episode() or self._find_due_stamp() is not None, POLL_S)
        self._controller.update_episode()
        running = self._controller.core.state == State.ACTIVE
        if not running:
            self._since = time.monotonic()
        stamp = self._find_due_stamp()
        if stamp is None:
            if running and time.monotonic() - self._since > self._timeout_s:
                raise RunFailed(
                    f"The robot did not answer a command within {self._timeout_s:g} s. In lockstep each command "
                    "must be followed by one message on every topic; check that the robot runs, with lockstep=true."
                )
            return
        self._clock.stamp = stamp
        made = self._controller.tick()
        if made is None or made.command is None:
            return
        self._stamp, self._since = stamp, time.monotonic()
        self._clock.advance()
        self.ticks += 1
        self._publish(made)

    def _find_due_stamp(self) -> int | None:
        """Return the stamp of a complete new observation; None without one, or without an active controller."""
        if not self._controller.pending and self._controller.core.state != State.ACTIVE:
            return None
        return self._latest.find_common_stamp(self._stamp, self._controller.find_min_source_ns())
