"""Servo steps of a simulated robot in real time: follow commands, hold still, or stop on a timeout or an e-stop."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.simulated_robot.checks import CommandCheck

Command = NDArray[np.float64]


class Drive:
    """Queue of received commands, and their execution. Times are in seconds of one monotonic clock.

    Before the first command that moves the robot, with a speed or with another position than the first command, it
    holds still, and the time of the episode does not advance. The robot stops without a command for `timeout_s`
    seconds, or while the e-stop is pressed. After the e-stop is released the first command must be at rest, so that
    queued commands do not move the robot.

    Attributes:
        delay_s: seconds until a command takes effect.
        stopped: the e-stop is pressed, or was pressed and no command at rest came since.
        silent: no command came for `timeout_s`, after there were some.
        why: reason of the stop; empty if the robot does not stop.
    """

    def __init__(self, check: CommandCheck, timeout_s: float) -> None:
        self._check, self.timeout_s, self.delay_s = check, timeout_s, 0.0
        self.pressed = self.stopped = False
        self.why = ""
        self.begin()

    def begin(self) -> None:
        """Clear all commands for a new episode."""
        self._waiting: deque[tuple[float, Command]] = deque()
        self._first: Command | None = None
        self._last: tuple[float, Command] | None = None
        self.stopped, self.silent = self.pressed, False

    def take(self, command: Command, now: float) -> None:
        """Queue a received command; raise `UserError` if the e-stop forbids it."""
        self.allow(command)
        self._waiting.append((now + self.delay_s, command))

    def allow(self, command: Command) -> None:
        """Check that the e-stop allows a command; a command at rest ends a stop that was released.

        Raises:
            UserError: the e-stop forbids it.
        """
        if self.pressed:
            raise UserError("the emergency stop is pressed", code="emergency-stop-pressed")
        if self.stopped and not self._check.rests(command):
            raise UserError("after an emergency stop the first command must be at rest", code="command-not-at-rest")
        self.stopped = False

    def press(self, pressed: bool) -> None:
        """Press or release the emergency stop."""
        self.pressed = pressed
        self.stopped |= pressed
        if pressed:
            self._waiting.clear()

    def step(self, robot: ServoedRobot, now: float) -> None:
        """Make one step of the servo."""
        while self._waiting and self._waiting[0][0] <= now:
            due, command = self._waiting.popleft()
            self._first = command if self._first is None else self._first
            speeds = self._check.speeds
            still = bool(speeds.any() and self._check.rests(command) and (command == self._first)[~speeds].all())
            if self._last is not None or not still:
                self._last = (due, command)
        self.silent = self._last is not None and now - self._last[0] > self.timeout_s
        self.why = f"no command for {self.timeout_s * 1e3:.0f} ms" if self.silent else ""
        if self.stopped:
            self.why = f"the emergency stop {'is' if self.pressed else 'was'} pressed"
        if self.why:
            robot.brake()
        else:
            robot.servo(None if self._last is None else self._last[1])
